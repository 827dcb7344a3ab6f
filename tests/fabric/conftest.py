"""Fixtures for the tests of fabric_data."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    for name in ("DATA_DIR", "DLI_DATA_SOURCES_FILE", "FABRIC_DATA_CACHE_BYTES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FABRIC_DATA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def data(tmp_path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"
