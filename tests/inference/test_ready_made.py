"""Ready-made kernels serve files that their libraries wrote."""

from __future__ import annotations

import contextlib
import io
import json
import pickle
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from local_backend.inference.kernel import frames, ready
from local_backend.inference.kernel.debug import description_of
from local_backend.inference.kernel.frames import KernelTask, Reply
from local_backend.inference.kernel.problems import KernelProblem
from local_backend.inference.kernel.serving import invoke
from local_backend.inference.kernel.tasks import KernelContext, TaskBatch

REPOSITORY = Path(__file__).resolve().parents[2]
NETWORK = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, size=3):
        super().__init__()
        self.layer = nn.Linear(2, size)

    def forward(self, x):
        return self.layer(x)


class Other(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 4)


if __name__ == "__main__":
    raise SystemExit("this is a script, too")
"""
Ask = Callable[..., list[Reply]]


class Served:
    """A started ready-made kernel. Counts its calls of `predict`."""

    def __init__(self, name: str, folder: Path, **attributes: str) -> None:
        self.kernel = ready.make(name)
        description = description_of(folder, name)
        description["attributes"] = [{"key": key, "value": value} for key, value in attributes.items()]
        log = io.StringIO()
        with contextlib.redirect_stderr(log):
            self.kernel.on_kernel_start(KernelContext(json.dumps(description)))
        self._log = log.getvalue()
        self.calls = 0
        predict = self.kernel.predict

        def counted(*arguments: Any) -> Any:
            self.calls += 1
            return predict(*arguments)

        self.kernel.predict = counted  # type: ignore[method-assign]

    def log(self) -> str:
        """Return what the kernel has logged when it started."""
        return self._log

    def replies(self, *bodies: Any) -> list[Reply]:
        """Return the replies to a batch of requests: objects of JSON, or tasks."""
        tasks = [one if isinstance(one, KernelTask) else KernelTask(0, json.dumps(one).encode()) for one in bodies]
        sent: list[bytes] = []
        payload = frames.batch(KernelTask(at, one.body, one.meta) for at, one in enumerate(tasks))[5:]
        invoke(self.kernel, TaskBatch(payload, lambda parts: sent.extend(parts) or True))
        found = [frames.reply_of(payload) for _, payload in frames.FrameReader().feed(b"".join(sent))]
        assert sorted(one.id for one in found) == list(range(len(tasks)))
        return sorted(found, key=lambda one: one.id)

    def answers(self, *bodies: Any) -> list[Any]:
        """Return the answers to a batch of requests as objects of JSON."""
        found = self.replies(*bodies)
        assert not any(one.failed for one in found), found
        return [json.loads(one.body) for one in found]

    def refused(self, body: Any) -> Reply:
        """Return the reply to a request that is not valid."""
        (found,) = self.replies(body)
        assert found.failed and found.meta == {"status": 400}, found
        return found


@pytest.fixture(autouse=True)
def _modules_of_users() -> Iterator[None]:
    """A kernel process serves one model; here, many folders have modules of the same names."""
    before, path = set(sys.modules), list(sys.path)
    yield
    sys.path[:] = path
    for name in {"network", "train"} - before:
        sys.modules.pop(name, None)


def oip(array: np.ndarray, datatype: str = "FP32", name: str = "x", **members: Any) -> dict[str, Any]:
    return {"inputs": [{"name": name, "datatype": datatype, "shape": list(array.shape),
                        "data": array.reshape(-1).tolist()}], **members}


def linear() -> nn.Module:
    torch.manual_seed(1)
    return nn.Linear(2, 3).eval()


def wanted(model: nn.Module, rows: Any) -> list[Any]:
    with torch.inference_mode():
        found: list[Any] = model(torch.tensor(rows, dtype=torch.float32)).tolist()
    return found


def check_linear(served: Served, model: nn.Module) -> None:
    """Requests of several forms and sizes get their rows, and those of one form take one forward."""
    rows = [[[1.0, 2.0]], [[3.0, 4.0], [5.0, 6.0]]]
    found = served.answers(*({"instances": one} for one in rows), {"data": [[7, 8]]})
    for answer, one in zip(found, [*rows, [[7, 8]]], strict=True):
        assert np.allclose(answer["predictions"], wanted(model, one), atol=1e-6)
    assert served.calls <= 2
    (answer,) = served.answers(oip(np.array(rows[1], np.float32), id="a"))
    assert answer["id"] == "a" and answer["outputs"][0]["shape"] == [2, 3]
    array = np.array(rows[1], np.float32)
    head = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 2],
                                   "parameters": {"binary_data_size": 16}}],
                       "parameters": {"binary_data_output": True}}).encode()
    (reply,) = served.replies(KernelTask(0, head + array.tobytes(), {"header_length": len(head)}))
    binary = np.frombuffer(reply.body[reply.meta["header_length"]:], np.float32)
    assert np.allclose(binary.reshape(2, 3), wanted(model, rows[1]), atol=1e-6)


def test_torch_export(tmp_path: Path) -> None:
    model = linear()
    batch = torch.export.Dim("batch")
    torch.export.save(torch.export.export(model, (torch.zeros(2, 2),), dynamic_shapes=({0: batch},)),
                      tmp_path / "model.pt2")
    check_linear(Served("torch", tmp_path), model)


def test_torch_export_for_one_size_of_batch(tmp_path: Path) -> None:
    """Requests of that size are answered one by one, and after the first batch nothing else is tried."""
    model = linear()
    torch.export.save(torch.export.export(model, (torch.zeros(2, 2),)), tmp_path / "model.pt2")
    served = Served("torch", tmp_path)
    rows = {"instances": [[1.0, 2.0], [3.0, 4.0]]}
    for count in (1 + 2, 2):
        served.calls = 0
        for answer in served.answers(rows, rows):
            assert np.allclose(answer["predictions"], wanted(model, rows["instances"]), atol=1e-6)
        assert served.calls == count
    served.refused({"instances": [[1.0, 2.0]]})


def test_torchscript(tmp_path: Path) -> None:
    model = linear()
    torch.jit.save(torch.jit.trace(model, torch.zeros(1, 2)), tmp_path / "model.pt")
    check_linear(Served("torch", tmp_path), model)


def test_weights_find_their_model(tmp_path: Path) -> None:
    """As in the result of a training: the code beside, and other checkpoints."""
    model = linear()
    state = {f"layer.{name}": value for name, value in model.state_dict().items()}
    (tmp_path / "train").mkdir()
    for name in ("model_epoch_1", "model_epoch_final", "model_epoch_final_optimizer_state"):
        torch.save(state if name == "model_epoch_final" else {}, tmp_path / "train" / f"{name}.pth")
    with pytest.raises(KernelProblem):
        Served("torch", tmp_path)
    (tmp_path / "network.py").write_text(NETWORK)
    (tmp_path / "train.py").write_text("raise SystemExit('trains')\nclass A: pass\n")
    check_linear(Served("torch", tmp_path), model)
    check_linear(Served("torch", tmp_path, **{"class": "network:Net", "class_args": '{"size": 3}'}), model)
    for attributes in ({"class": "network:Gone"}, {"class": "network:Net", "class_args": '{"size": 9}'},
                       {"class": "network:Net", "class_args": "["}):
        with pytest.raises(KernelProblem):
            Served("torch", tmp_path, **attributes)


def test_a_pickled_module_needs_permission(tmp_path: Path) -> None:
    model = linear()
    torch.save(model, tmp_path / "model.pth")
    with pytest.raises(KernelProblem):
        Served("torch", tmp_path)
    check_linear(Served("torch", tmp_path, allow_pickle="true"), model)


def test_samples_get_the_shape_of_the_description(tmp_path: Path) -> None:
    """And the model runs once before the first request."""
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten()).eval()
    torch.jit.save(torch.jit.trace(model, torch.zeros(1, 1, 3, 3)), tmp_path / "model.pt")
    for size, warnings in ((3, 0), (1, 1)):
        (tmp_path / "model.json").write_text(json.dumps(
            {"name": "a", "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 1, size, size]}]}))
        served = Served("torch", tmp_path)
        assert len(re.findall("does not take zeros", served.log())) == warnings
    (tmp_path / "model.json").write_text(json.dumps(
        {"name": "a", "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 1, 3, 3]}]}))
    rows = [[[1, 2, 3]] * 3, [[4, 5, 6]] * 3]
    found = Served("torch", tmp_path).answers({"instances": rows}, {"instances": rows[:1]})
    with torch.inference_mode():
        expected = model(torch.tensor(rows, dtype=torch.float32).reshape(2, 1, 3, 3))
    assert np.allclose(found[0]["predictions"], expected) and np.allclose(found[1]["predictions"], expected[:1])


def test_indices_stay_integers(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Embedding(5, 2), nn.Flatten()).eval()
    torch.jit.save(torch.jit.trace(model, torch.zeros(1, 2, dtype=torch.int64)), tmp_path / "model.pt")
    (answer,) = Served("torch", tmp_path).answers({"instances": [[1, 4]]})
    assert np.allclose(answer["predictions"], model(torch.tensor([[1, 4]])).detach())


def test_one_bad_request_does_not_disturb_the_others(tmp_path: Path) -> None:
    model = linear()
    torch.jit.save(torch.jit.trace(model, torch.zeros(1, 2)), tmp_path / "model.pt")
    served = Served("torch", tmp_path)
    good = {"instances": [[1.0, 2.0]]}
    found = served.replies(good, {"instances": [[1.0, 2.0, 3.0]]}, KernelTask(0, b"{"), good)
    assert [one.failed for one in found] == [False, True, True, False]
    assert found[1].meta == found[2].meta == {"status": 400}
    served.refused({"instances": ["text"]})


def test_an_input_that_the_model_does_not_take_is_refused_with_what_it_takes(tmp_path: Path) -> None:
    torch.save({f"layer.{name}": value for name, value in linear().state_dict().items()}, tmp_path / "model.pth")
    (tmp_path / "network.py").write_text(NETWORK)
    served = Served("torch", tmp_path)
    assert b"takes 2 numbers" in served.refused({"instances": [[1.0, 2.0, 3.0]]}).body
    served.refused(oip(np.zeros((1, 2), np.int64), "INT64"))
    (tmp_path / "model.json").write_text(json.dumps(
        {"name": "a", "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}]}))
    assert b"x: FP32, any x 2" in Served("torch", tmp_path).refused({"instances": [[1.0] * 5]}).body


def test_a_model_that_takes_images_says_their_channels(tmp_path: Path) -> None:
    torch.save(nn.Sequential(nn.Conv2d(3, 2, 3)), tmp_path / "model.pth")
    served = Served("torch", tmp_path, allow_pickle="true")
    assert b"takes 3 x height x width numbers" in served.refused({"instances": [[1.0]]}).body


def test_a_model_that_fails_by_itself_is_no_fault_of_the_request(tmp_path: Path) -> None:
    torch.jit.save(torch.jit.trace(linear(), torch.zeros(1, 2)), tmp_path / "model.pt")
    served = Served("torch", tmp_path)
    for problem in (torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("CUDA error: device-side assert"),
                    AttributeError("x"), MemoryError()):
        def fails(*_: Any, problem: Exception = problem) -> Any:
            raise problem

        served.kernel.predict = fails  # type: ignore[method-assign]
        (reply,) = served.replies({"instances": [[1.0, 2.0]]})
        assert reply.failed and reply.meta == {"status": 500}, problem


def test_onnx(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    model = linear()
    torch.onnx.export(model, (torch.zeros(1, 2),), str(tmp_path / "model.onnx"), input_names=["x"],
                      output_names=["y"], dynamic_shapes=({0: torch.export.Dim("batch")},), verbose=False)
    served = Served("onnx", tmp_path)
    check_linear(served, model)
    (answer,) = served.answers(oip(np.array([[1, 2]], np.float32), outputs=[{"name": "y"}]))
    assert answer["outputs"][0]["name"] == "y"
    served.refused(oip(np.array([[1, 2]], np.float32), outputs=[{"name": "z"}]))
    served.refused(oip(np.array([[1, 2]], np.float32), name="z"))
    served.refused({"instances": [["a", "b"]]})
    assert b"x: any x 2" in served.refused({"instances": [[1.0, 2.0, 3.0]]}).body
    served.refused({"instances": [1.0]})


def test_sklearn(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    skops = pytest.importorskip("skops.io")
    from sklearn.linear_model import LogisticRegression

    rows = np.array([[0.0], [1.0], [2.0], [3.0]])
    model = LogisticRegression().fit(rows, ["low", "low", "high", "high"])
    skops.dump(model, tmp_path / "model.skops")
    served = Served("sklearn", tmp_path)
    assert served.answers({"instances": [[0.1], [2.9]]}, [[3.0]]) == [
        {"predictions": ["low", "high"]}, {"predictions": ["high"]}]
    (answer,) = served.answers(oip(rows[:1], "FP64", outputs=[{"name": "predict_proba"}, {"name": "predict"}]))
    assert [one["datatype"] for one in answer["outputs"]] == ["FP64", "BYTES"]
    assert np.allclose(answer["outputs"][0]["data"], model.predict_proba(rows[:1])[0])
    served.refused(oip(rows, "FP64", outputs=[{"name": "transform"}]))
    assert b"takes 1 values" in served.refused({"instances": [[1.0, 2.0]]}).body
    served.refused({"instances": [["text"]]})
    with pytest.raises(KernelProblem):
        Served("sklearn", tmp_path, method="transform")


def test_sklearn_takes_named_columns(tmp_path: Path) -> None:
    skops = pytest.importorskip("skops.io")
    from sklearn.linear_model import LinearRegression

    model = LinearRegression().fit([[0.0, 1.0], [1.0, 0.0], [2.0, 5.0]], [1.0, 10.0, 25.0])
    model.feature_names_in_ = np.array(["a", "b"], object)
    skops.dump(model, tmp_path / "model.skops", compression=8)
    served = Served("sklearn", tmp_path)
    (answer,) = served.answers({"instances": [{"b": 1.0, "a": 0.0}, {"b": 5.0, "a": 2.0}]})
    assert np.allclose(answer["predictions"], [1, 25])
    served.refused({"instances": [{"b": 1.0, "c": 0.0}]})


def test_a_pickled_estimator_needs_permission(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    joblib = pytest.importorskip("joblib")
    from sklearn.linear_model import LinearRegression

    joblib.dump(LinearRegression().fit([[0], [1]], [0, 2]), tmp_path / "model.joblib")
    with pytest.raises(KernelProblem):
        Served("sklearn", tmp_path)
    (answer,) = Served("sklearn", tmp_path, allow_pickle="true").answers({"data": [[2]]})
    assert np.allclose(answer["predictions"], [4])


def test_xgboost(tmp_path: Path) -> None:
    xgboost = pytest.importorskip("xgboost")
    rows = np.arange(20, dtype=np.float32).reshape(10, 2)
    booster = xgboost.train({"max_depth": 2}, xgboost.DMatrix(rows, rows.sum(1)), 3)
    booster.save_model(tmp_path / "model.ubj")
    served = Served("xgboost", tmp_path)
    (answer, other) = served.answers({"instances": rows[:3].tolist()}, {"instances": rows[3:].tolist()})
    assert np.allclose([*answer["predictions"], *other["predictions"]], booster.predict(xgboost.DMatrix(rows)))
    assert served.calls == 1
    served.refused({"instances": [[1.0]]})


def test_a_missing_library_names_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.onnx").touch()
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(KernelProblem, match="inference-onnx"):
        Served("onnx", tmp_path)


@pytest.mark.parametrize("files", [(), ("a.pt", "b.pt")])
def test_which_file_has_the_model_must_be_clear(tmp_path: Path, files: tuple[str, ...]) -> None:
    for name in files:
        (tmp_path / name).write_bytes(pickle.dumps(1))
    with pytest.raises(KernelProblem):
        Served("torch", tmp_path)
    with pytest.raises(KernelProblem):
        ready.make("caffe")


def test_huggingface(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "good", "bad"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    transformers.BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=len(words), hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
                                     intermediate_size=8)
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path)
    served = Served("huggingface", tmp_path)
    single, several, top = served.answers(
        {"inputs": "good"}, {"inputs": ["good", "bad"]}, {"inputs": ["bad"], "parameters": {"top_k": 2}})
    assert single["label"].startswith("LABEL_")
    assert several[0]["score"] == pytest.approx(single["score"], abs=1e-5)
    assert len(several) == 2 and len(top[0]) == 2
    (answer,) = served.answers({"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["good"]}]})
    assert json.loads(answer["outputs"][0]["data"][0])["label"] == single["label"]
    served.refused({"text": "good"})
    served.refused({"inputs": ["good"], "parameters": [1]})


@pytest.fixture
def generator(tmp_path: Path) -> Served:
    """A model that generates text of 4 words."""
    transformers = pytest.importorskip("transformers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "one", "two", "three", "four"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    transformers.BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=len(words), n_positions=64, n_embd=8, n_layer=1, n_head=2,
                                     bos_token_id=2, eos_token_id=3, pad_token_id=0)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    return Served("huggingface", tmp_path)


ENDLESS = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None, "suppress_tokens": [0, 1, 2, 3]}


def streamed(served: Served, body: dict[str, Any], gone_after: int) -> list[Reply]:
    """Return the replies to a request whose client goes after so many of them."""
    sent: list[bytes] = []

    def send(parts: Iterable[bytes]) -> bool:
        sent.append(b"".join(parts))
        return True

    payload = frames.batch([KernelTask(0, json.dumps(body).encode())])[5:]
    invoke(served.kernel, TaskBatch(payload, send, lambda number: len(sent) >= gone_after))
    return [frames.reply_of(payload) for _, payload in frames.FrameReader().feed(b"".join(sent))]


def test_a_model_of_huggingface_streams_what_it_generates(generator: Served) -> None:
    body = {"inputs": "one two", "stream": True, "parameters": ENDLESS}
    *parts, last = streamed(generator, body, 100)
    assert len(parts) > 1 and all(one.more and one.body for one in parts)
    assert not last.more and not last.failed and not last.body
    assert parts[0].meta == {"content_type": "text/plain; charset=utf-8"}
    (whole,) = generator.answers(body | {"stream": False})
    assert whole[0]["generated_text"].endswith(b"".join(one.body for one in parts).decode().strip())


def test_a_stream_of_huggingface_ends_with_its_client(generator: Served) -> None:
    *parts, last = streamed(generator, {"inputs": "one", "stream": True, "parameters": ENDLESS}, 1)
    assert len(parts) == 1 and last.failed and last.meta["status"] == 499
    generator.refused({"inputs": ["one", "two"], "stream": True})
