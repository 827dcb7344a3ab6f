"""A user per test, whose processes end with it, and a user on another machine than the server."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from support import eventually
from user import User


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    user = User(tmp_path / "home")
    yield user
    user.close()
    shutil.rmtree(tmp_path, ignore_errors=True)


@pytest.fixture
def warm(user: User) -> User:
    """A user whose jobs start from a nursery, as in normal operation."""
    return user.warm()


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[tuple[User, User, list[str]]]:
    """(user on the server, user on the client, connection options of the client)."""
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    for number, part in enumerate(certificate.cert_chain_pems):
        part.write_to_path(tmp_path / "cert.pem", append=number > 0)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    (tmp_path / "far").mkdir()
    (tmp_path / "near").mkdir()
    server, client = User(tmp_path / "far" / "home"), User(tmp_path / "near" / "home")
    server.environment["DLI_PASSWORD"] = "correct horse"
    process = server.serve(
        "--host", "127.0.0.1", "--port", "0", "--tls-cert", str(tmp_path / "cert.pem"),
        "--tls-key", str(tmp_path / "key.pem"),
    )
    try:
        eventually((server.home / "backend.json").exists, "the server serves")
        url = json.loads((server.home / "backend.json").read_text())["url"]
        assert url.startswith("https://")
        yield server, client, ["--rest-host", "127.0.0.1", "--rest-port", url.rpartition(":")[2].strip("/"),
                               "--ca-cert", str(tmp_path / "ca.pem")]
    finally:
        server.backend("stop", "--jobs")
        process.communicate(timeout=60)
