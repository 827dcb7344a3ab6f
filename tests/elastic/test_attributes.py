"""Attributes of a submission for the engine, `--msd-attr name=value`."""

import pytest
from fake_runner import FakeRunner
from scripts import lay_out

from local_backend.elastic.driver.options import Options, TrainingRequest

REQUEST = TrainingRequest(engines=None, effective_batch=None, validation_freq=1, checkpoint_freq=1, seed=0)


def test_options_have_defaults_without_attributes():
    options = Options.of({}, REQUEST)
    assert (options.hang_seconds, options.snapshot_seconds) == (5.0, 10.0)


@pytest.mark.parametrize("mode", ["exact", "fast", "async"])
def test_the_mode_of_the_script_overrides_the_mode_attribute(mode):
    asked = TrainingRequest(None, None, 1, 1, 0, mode=mode)
    assert Options.of({"mode": mode}, REQUEST).mode == mode
    assert Options.of({"mode": "fast"}, asked).mode == mode


def test_unknown_attributes_are_ignored():
    assert Options.of({"owner": "me", "snapshot_seconds": "0.5"}, REQUEST).snapshot_seconds == 0.5


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("mode", "swift", "the attribute mode must be one of exact, fast, async, not 'swift'"),
        ("hang_seconds", "soon", "the attribute hang_seconds must be a number of seconds above 0, not 'soon'"),
        ("hang_seconds", "0", "the attribute hang_seconds must be a number of seconds above 0, not '0'"),
        ("snapshot_seconds", "inf", "the attribute snapshot_seconds must be a number of seconds above 0, not 'inf'"),
        ("window", "1.5", "the attribute window must be a number of steps, whole and above 0, not '1.5'"),
    ],
)
def test_a_wrong_attribute_is_named_in_the_error(name, value, words):
    with pytest.raises(ValueError, match=words):
        Options.of({name: value}, REQUEST)


TRAIN = """
import torch
from fabric_model import FabricModel
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
FabricModel(model, lambda: None, torch.nn.functional.cross_entropy, optimizer).train(1, 4)
"""


def test_a_wrong_attribute_ends_the_script_before_any_worker_starts(tmp_path):
    runner = FakeRunner(tmp_path, 2)
    runner.attributes = {"mode": "swift"}
    ended = runner.run(lay_out(tmp_path, TRAIN))
    assert ended.returncode == 1
    last = ended.stderr.splitlines()[-1]
    assert last == "ValueError: the attribute mode must be one of exact, fast, async, not 'swift'"
    assert ended.of("spawn") == []
