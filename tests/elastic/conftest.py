"""Fixtures of the engine's tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from trouble import Recipe, Result, Trouble


@pytest.fixture(scope="package", autouse=True)
def elsewhere(tmp_path_factory):
    """An empty working directory: the main program has no file, so modules below the directory count as the user's."""
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("elsewhere"))
    yield
    os.chdir(before)


@pytest.fixture
def result_dir(tmp_path, monkeypatch):
    """RESULT_DIR of a script that runs without a backend. The folder does not exist yet."""
    monkeypatch.setenv("RESULT_DIR", str(tmp_path / "result"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("DLI_RUNNER_FD", raising=False)
    return tmp_path / "result"


@pytest.fixture(scope="session")
def unharmed(tmp_path_factory):
    """The result of a recipe without disturbances."""
    known: dict[Recipe, Result] = {}

    def result(recipe: Recipe) -> Result:
        if recipe not in known:
            training = Trouble(tmp_path_factory.mktemp("unharmed"), 1, recipe)
            training.hurry()
            training.begin()
            training.finish()
            known[recipe] = training.result()
        return known[recipe]

    return result


@pytest.fixture
def trouble(tmp_path):
    """A factory of trainings for `slots` slots. The fixture stops them after the test."""
    made: list[Trouble] = []

    def make(slots: int, recipe: Recipe | None = None, kind: type[Trouble] = Trouble, **attributes: str) -> Trouble:
        made.append(kind(tmp_path, slots, recipe))
        made[0].attributes = {**Trouble.attributes, "snapshot_seconds": "3600", **attributes}
        return made[0]

    yield make
    for one in made:
        one.abort()


@pytest.fixture(scope="module")
def one_thread():
    """PyTorch computes in one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
