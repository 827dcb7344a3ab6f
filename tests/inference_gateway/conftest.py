"""Fixtures of the gateway's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from gateway_host import GatewayHost, model


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose path is short enough for Unix sockets."""
    return tmp_path_factory.mktemp("g")


@pytest.fixture
def host(folder: Path) -> Iterator[GatewayHost]:
    """A gateway of its own, without models."""
    with GatewayHost(folder) as made:
        yield made


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayHost]:
    """A gateway with the model `m` of alice and 1 kernel, for tests that change nothing."""
    with GatewayHost(tmp_path_factory.mktemp("g"), grpc_port=0) as made:
        made.serve(model(metadata={"platform": "test", "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}],
                                   "outputs": []}))
        made.kernel()
        yield made
