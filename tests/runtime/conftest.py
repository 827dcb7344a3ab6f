"""Backends for the tests of the runtime."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from runtime_support import Bench, bench


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[Bench]:
    """A backend that starts every program with its own interpreter."""
    with bench(tmp_path) as one:
        yield one


@pytest.fixture(scope="session")
def _warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with bench(tmp_path_factory.mktemp("warm"), nursery_idle=600.0) as one:
        yield one


@pytest.fixture(scope="session")
def _cold(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with bench(tmp_path_factory.mktemp("cold")) as one:
        yield one


@pytest.fixture
def warm(_warm: Bench) -> Iterator[Bench]:
    """A shared backend with a nursery: the nursery takes seconds to become ready."""
    yield _warm
    _warm.end_all()


@pytest.fixture
def cold(_cold: Bench) -> Iterator[Bench]:
    """A shared backend without a nursery."""
    yield _cold
    _cold.end_all()


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[list[dict[str, Any]]], None]:
    """A fake NVML. The function sets the GPUs that it reports."""
    fake = Path(__file__).parents[1] / "fake_nvml" / "pynvml.py"
    spec = importlib.util.spec_from_file_location("pynvml", fake)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.setenv("FAKE_NVML", str(tmp_path / "gpus.json"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def set_devices(devices: list[dict[str, Any]]) -> None:
        (tmp_path / "new").write_text(json.dumps(devices))
        os.replace(tmp_path / "new", tmp_path / "gpus.json")

    return set_devices
