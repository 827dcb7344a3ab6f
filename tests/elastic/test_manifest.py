"""The manifest beside the weights: equal for equal trainings, without secrets; and the comparison of two manifests."""

import copy
import json
from pathlib import Path

import pytest
import torch
from fake_runner import FakeRunner
from scripts import alone, lay_out
from small import fabric

from local_backend.elastic.state import artifacts, manifest
from local_backend.elastic.state.manifest import code_of, compare, weights_digest

SCRIPT = """
import torch
from torch.nn import functional as F
from torch.utils.data import TensorDataset
from fabric_model import FabricModel


def datasets():
    return TensorDataset(torch.arange(80.0).view(20, 4) / 80, torch.arange(20) % 3), None


torch.manual_seed(1)
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
FabricModel(model, datasets, F.cross_entropy, optimizer).train(2, 4, 2, lr_scheduler=scheduler, clip_grad_norm=1.0)
"""


def read(result: Path) -> dict:
    return json.loads((result / "model" / "train" / "manifest.json").read_text())


@pytest.mark.integration
def test_one_worker_two_workers_and_a_plain_script_have_the_same_manifest(tmp_path):
    found = []
    for workers in (0, 1, 2):
        folder = tmp_path / str(workers)
        script = lay_out(folder, SCRIPT)
        ended = alone(folder, script) if workers == 0 else FakeRunner(folder, workers).run(script)
        assert ended.returncode == 0, ended.stderr
        found.append(read(folder / "result"))
    first = found[0]
    saved = torch.load(tmp_path / "0" / "result" / "model" / "train" / first["checkpoint"], weights_only=True)
    assert first["weights"] == weights_digest(saved)
    assert first["training"]["seed"] == 1
    assert first["options"]["clip_grad_norm"] == 1.0
    assert first["options"]["lr_scheduler"][""].startswith("StepLR ")
    assert first["code"]["files"] == 2
    for other in found[1:]:
        assert compare(first, other).differences == []
        assert compare(first, other).promised


@pytest.fixture
def made(result_dir, monkeypatch):
    """The manifest of a training in this process."""
    monkeypatch.setenv("TORCH_HUB_TOKEN", "a-secret-value")
    fabric()[0].train(1, 4, 2)
    return read(Path(artifacts.result_dir()))


def test_the_manifest_has_names_of_variables_but_no_values(made):
    assert "TORCH_HUB_TOKEN" in made["environment"]["names"]
    assert "a-secret-value" not in json.dumps(made)


@pytest.mark.parametrize(("section", "name", "value", "words"), [
    ("versions", "torch", "2.99.0", "the same bits are not promised: torch"),
    ("machine", "cpu_capability", "AVX9000", "the same bits are not promised: cpu_capability"),
    ("training", "seed", 12345, "the same bits are not promised: seed"),
    ("options", "ema", 0.9, "the same bits are not promised: ema null and 0.9"),
    ("training", "mode", "fast", "the same bits are not promised: mode exact and fast"),
    ("data", "digest", "0", "the same bits are not promised: digest"),
])
def test_a_difference_is_named_and_ends_the_promise(made, section, name, value, words):
    other = copy.deepcopy(made)
    other[section][name] = value
    comparison = compare(made, other)
    assert comparison.promise.startswith(words)
    assert not comparison.promised
    assert [text.partition(":")[0] for text in comparison.differences] == [f"{section}.{name}"]


def test_different_weights_against_the_promise_are_reported(made):
    comparison = compare(made, {**made, "weights": "sha256:0"})
    assert "the same bits are promised, but the weights differ" in comparison.promise
    assert compare(made, made).promise == "the same bits are promised"


def test_other_modes_promise_nothing(made):
    fast = {**made, "training": {**made["training"], "mode": "fast"}}
    assert compare(fast, fast).promise == "the same bits are not promised: mode fast"


def test_the_command_compares_two_files(made, tmp_path, capsys):
    other = copy.deepcopy(made)
    other["versions"]["torch"] = "2.99.0"
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path, content in zip(paths, (made, other), strict=True):
        path.write_text(json.dumps(content))
    assert manifest.main([str(paths[0]), str(paths[0])]) == 0
    assert manifest.main([str(path) for path in paths]) == 3
    assert "versions.torch" in capsys.readouterr().out
    paths[0].write_text("[]")
    assert manifest.main([str(path) for path in paths]) == 2
    assert manifest.main([]) == 2


def code_now(main, rate):
    code_of.cache_clear()
    return code_of((str(main), "--rate", rate))


def test_code_and_arguments_count_and_results_do_not(tmp_path, monkeypatch):
    main = tmp_path / "train.py"
    main.write_text("print()")
    (tmp_path / "config.yaml").write_text("rate: 1")
    monkeypatch.setenv("RESULT_DIR", str(tmp_path / "results"))
    before = code_now(main, "1")
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "copy.py").write_text("")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "more.py").write_text("")
    (tmp_path / "weights.pth").write_text("")
    assert code_now(main, "1") == before
    assert code_now(main, "2") != before
    (tmp_path / "config.yaml").write_text("rate: 2")
    assert code_now(main, "1")["digest"] != before["digest"]
    assert code_of(("",))["main"] is None


@pytest.mark.parametrize("change", [lambda s: s["weight"].add_(1), lambda s: s.pop("bias"), lambda s: s.update(a=1)])
def test_the_digest_of_weights_shows_every_change(change):
    state = {name: value.clone() for name, value in torch.nn.Linear(2, 2).state_dict().items()}
    before = weights_digest(state)
    assert weights_digest(dict(state)) == before
    change(state)
    assert weights_digest(state) != before
