"""Ordinary PyTorch trains on workers that come and go as it does in the script's own process: to the last bit."""

import pytest
from ordinary import CASES, Case, train
from resident import Resident


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """Without a backend, at full speed."""
    monkeypatch.setenv("RESULT_DIR", str(tmp_path / "alone"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("DLI_RUNNER_FD", raising=False)
    hurry = tmp_path / "now"
    hurry.touch()
    return lambda build: train(build, str(hurry))


@pytest.mark.parametrize("build", CASES, ids=lambda build: build.__name__)
def test_the_same_bits_on_one_then_three_then_two_workers_as_alone(tmp_path, alone, build):
    expected = alone(build)
    results = []
    training = Resident(tmp_path, 1, lambda: results.append(train(build, str(tmp_path / "result" / "hurry"))))
    training.begin()
    try:
        training.wait_for_step(2)
        training.resize(3)
        training.resize(2)
        training.finish()
    finally:
        training.abort()
    assert results == [expected]
