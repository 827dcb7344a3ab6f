"""Fixtures of the engine's tests."""

import pytest


@pytest.fixture
def result_dir(tmp_path, monkeypatch):
    """RESULT_DIR of a script that runs without a backend; the folder is not there yet."""
    monkeypatch.setenv("RESULT_DIR", str(tmp_path / "result"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("DLI_RUNNER_FD", raising=False)
    return tmp_path / "result"
