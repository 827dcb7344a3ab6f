"""Downloads from a real SFTP server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fetching_desk import Count, Desk, content
from file_servers import SftpServer, sftp_server
from server_process import NotThere

from local_backend.data import transfer
from local_backend.data.errors import DataError, DataUnavailable
from local_backend.data.registry import find

pytestmark = pytest.mark.integration

LARGE = 2**20 + 7


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SftpServer]:
    """One server for all tests of this module. Tests are skipped where none can run."""
    try:
        with sftp_server(tmp_path_factory.mktemp("sftp")) as found:
            yield found
    except NotThere as problem:
        pytest.skip(str(problem))


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use parts of 0.5 MiB, and almost no pause before a retry."""
    monkeypatch.setattr(transfer, "SMALLEST", 1 << 19)
    monkeypatch.setattr(transfer, "_PAUSE_S", 0.001)


def put(server: SftpServer, path: str, data: bytes) -> None:
    """Write a file on the server."""
    file = Path(server.folder / path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)


def test_folders_and_files_are_downloaded(server: SftpServer, desk: Desk) -> None:
    put(server, "set/big", content(LARGE))
    put(server, "set/x/empty", b"")
    put(server, "other", b"no")
    meter = Count()
    found = desk.get("sftp", server.values, {"path": "set"}, meter=meter)
    assert desk.read() == {"big": content(LARGE), "x/empty": b""}
    assert (found.size, meter.bytes) == (LARGE, LARGE)
    desk.get("sftp", server.values, {"paths": "set/big, other"}, job=2)
    assert desk.read(2) == {"set/big": content(LARGE), "other": b"no"}
    desk.get("sftp", server.values | {"folder": "/set/x"}, {"paths": "empty"}, job=3)
    assert desk.read(3) == {"empty": b""}


def test_a_file_that_changes_during_the_download_is_never_mixed(
    server: SftpServer, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "_THREADS", 1)
    put(server, "a", content(LARGE, 1))
    write, count = transfer._write, [0]

    def replaced(fd: int, data: bytes, at: int) -> None:
        count[0] += 1
        if count[0] == 2:
            put(server, "a", content(LARGE + 1, 2))
        write(fd, data, at)

    monkeypatch.setattr(transfer, "_write", replaced)
    meter = Count()
    desk.get("sftp", server.values, {"paths": "a"}, meter=meter)
    assert desk.read() == {"a": content(LARGE + 1, 2)}


def test_an_unreadable_folder_is_not_treated_as_empty(server: SftpServer, desk: Desk) -> None:
    put(server, "half/open/a", b"a")
    put(server, "half/open/closed/b", b"b")
    with pytest.raises(DataError, match="half") as problem:
        desk.get("sftp", server.values, {"path": "half"})
    assert not isinstance(problem.value, DataUnavailable)


def test_wrong_values_are_rejected_with_the_reason(server: SftpServer, desk: Desk) -> None:
    with pytest.raises(DataError, match="no/such"):
        desk.get("sftp", server.values, {"paths": "no/such"})
    with pytest.raises(DataError, match="denies access") as refused:
        desk.get("sftp", server.values | {"password": "wr0ng"}, {"paths": "a"})
    assert not isinstance(refused.value, DataUnavailable) and "wr0ng" not in str(refused.value)
    with pytest.raises(DataUnavailable, match="SFTP: "):
        desk.get("sftp", server.values | {"port": "9"}, {"paths": "a"})
    with pytest.raises(DataError, match=r"'port'.*65535"):
        desk.get("sftp", server.values | {"port": "ssh"}, {"paths": "a"})


def test_a_server_with_another_host_key_is_refused(server: SftpServer, desk: Desk) -> None:
    import asyncssh

    other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode()
    with pytest.raises(DataError, match=r"denies access|not trusted"):
        desk.get("sftp", server.values | {"host_key": other}, {"paths": "a"})


def test_a_connection_can_be_tested_and_a_stream_needs_an_absolute_folder(server: SftpServer) -> None:
    family = find("sftp").open(server.values, loopback=True)
    family.test()
    with pytest.raises(DataError, match="'access'"):
        family.storage()  # type: ignore[attr-defined]
    values = {name: value for name, value in server.values.items() if name != "host_key"} | {"folder": "sets"}
    with pytest.raises(DataError, match="'folder'"):
        find("sftp").open(values).storage()  # type: ignore[attr-defined]
    values |= {"folder": "/sets"}
    protocol, options = find("sftp").open(values).storage()  # type: ignore[attr-defined]
    assert protocol == "sftp" and options["password"] == "right" and options["client_keys"] == []


def test_paths_with_dots_and_double_slashes_are_normalized(server: SftpServer, desk: Desk) -> None:
    put(server, "shell/x/a", b"1")
    put(server, "shell.txt", b"2")
    desk.get("sftp", server.values, {"path": "./shell//x/."})
    desk.get("sftp", server.values, {"paths": "./shell,.//shell.txt"}, job=2)
    assert (desk.read(), desk.read(2)) == ({"a": b"1"}, {"shell/x/a": b"1", "shell.txt": b"2"})
