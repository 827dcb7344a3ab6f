"""The client file, as the server builds it. Tests of the file on a bare Python: tests/end_to_end."""

from __future__ import annotations

import ast
import hashlib
import io
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import NoReturn

import pytest
from live_server import Answer, Live
from support import PATIENCE

from local_backend import handout

#: Suffixes of compiled extensions and of byte code.
COMPILED = (".so", ".pyd", ".dylib", ".pyc")


def fetched(live: Live, **headers: str) -> Answer:
    return live.call("GET", "/ui/tools/dlicmd.py", headers=headers, token=None, base="")


def test_the_client_file_is_a_pure_python_program(live: Live) -> None:
    answer = fetched(live)
    assert answer.status == 200 and answer.body.startswith(b"#!/usr/bin/env python3\n")
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"] == 'attachment; filename="dlicmd.py"'
    assert len(answer.body) < 3 * 2**20
    names = zipfile.ZipFile(io.BytesIO(answer.body)).namelist()
    assert {"__main__.py", "dlicmd/cli/program.py", "requests/api.py", "certifi/cacert.pem"} <= set(names)
    tops = {name.partition("/")[0] for name in names}
    assert not [name for name in names if name.endswith(COMPILED)] and not tops & {"local_backend", "jsonschema"}
    assert {name.split("/")[1].rpartition("-")[0] for name in names if name.startswith("licences/")} >= {
        "certifi", "click", "requests", "rich", "urllib3"}, "the licenses of the libraries are missing"


def test_the_same_installation_makes_the_same_bytes(live: Live) -> None:
    answer = fetched(live)
    packed = zipfile.ZipFile(io.BytesIO(answer.body)).infolist()
    assert [member.filename for member in packed] == sorted(member.filename for member in packed)
    assert {(member.date_time, member.external_attr >> 16) for member in packed} == {((1980, 1, 1, 0, 0, 0), 0o644)}
    assert answer.headers["etag"] == f'"{hashlib.sha256(answer.body).hexdigest()}"'


def test_the_client_file_is_built_once(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    first = fetched(live)
    monkeypatch.setattr(handout, "_packed", None)
    assert fetched(live).body == first.body
    same = fetched(live, **{"If-None-Match": f'"x", {first.headers["etag"]}'})
    assert (same.status, same.body, same.headers["etag"]) == (304, b"", first.headers["etag"])
    assert fetched(live, **{"If-None-Match": '"x"'}).status == 200


@pytest.mark.parametrize(("name", "said"), [("dlim", "dlim "), ("dlim.py", "dlim "), ("dlicmd", "dlicmd ")])
def test_a_copy_with_the_name_dlim_is_dlim(tmp_path: Path, name: str, said: str) -> None:
    file = tmp_path / name
    file.write_bytes(handout.client_file().content)
    done = subprocess.run([sys.executable, str(file), "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(said)


def test_an_old_python_prints_the_required_version(tmp_path: Path) -> None:
    file = tmp_path / "dlicmd.py"
    file.write_bytes(handout.client_file().content)
    ast.parse(zipfile.ZipFile(file).read("__main__.py"), feature_version=(3, 4))
    pretended = f"import runpy, sys; sys.version_info = (3, 9, 1); runpy.run_path({str(file)!r}, run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", pretended], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 1 and done.stderr.startswith("dlicmd: this file needs Python 3.1")
    assert done.stderr.endswith(f"or later; {sys.executable} is 3.9\n")


def test_a_library_that_requires_a_newer_python_raises_the_minimum(monkeypatch: pytest.MonkeyPatch) -> None:
    def says(distribution: str) -> dict[str, str]:
        return {"Requires-Python": "!=3.12.0, >=3.12" if distribution == "rich" else ">=3.9"}

    monkeypatch.setattr("importlib.metadata.metadata", says)
    made = handout._made.__wrapped__()
    assert b"version_info < (3, 12)" in zipfile.ZipFile(io.BytesIO(made.content)).read("__main__.py")


def test_an_unreadable_installation_gives_status_500(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> NoReturn:
        raise PermissionError(13, "Permission denied", "/lib/click/core.py")

    monkeypatch.setattr(handout, "_made", broken)
    answer = fetched(live)
    assert answer.error == (500, "client.unreadable")
    assert "Permission denied: /lib/click/core.py" in answer.text
