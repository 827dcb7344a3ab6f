"""The commands and the file of docs/connections.md work as written."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kind_package import put_package
from support import eventually
from user import DEADLINE, User

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parent.parent.parent
#: Stand-ins with the fields of the real kinds, so that the test needs no drivers.
KINDS = """
from local_backend.data.errors import DataError
from local_backend.data.kind import Family, Field, Kind

class Quick(Family):
    def test(self):
        if self.values["password"] != "a better password":
            raise DataError("wrong password " + self.values["password"])

POSTGRESQL = Kind("postgresql", "PostgreSQL", Quick, (
    *(Field(name, name) for name in ("host", "port", "database", "username")),
    Field("password", "the password", required=True, secret=True)))
S3 = Kind("s3", "Amazon S3", Quick, (Field("endpoint_url", "its URL"), Field("access_key_id", "its key"),
                                     Field("secret_access_key", "the secret", secret=True)))
"""


def blocks(language: str) -> list[str]:
    text = (ROOT / "docs" / "connections.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[User]:
    """A reader of the page: `local-backend` is on the PATH, and the kinds of the page exist."""
    folder = tmp_path_factory.mktemp("page")
    user = User(folder / "home")
    commands, kinds = folder / "bin", folder / "kinds"
    commands.mkdir()
    # Python finds this package before the installed package of the same name.
    put_package(kinds, "dlicmd", {"postgresql": "stand_ins:POSTGRESQL", "s3": "stand_ins:S3",
                                  "http": "local_backend.data.kinds.http:HTTP"}, {"stand_ins.py": KINDS})
    call = "import sys; from local_backend.cli import main; sys.exit(main())"
    (commands / "local-backend").write_text(f"#!/bin/sh\nexec {sys.executable} -c '{call}' \"$@\"\n")
    (commands / "local-backend").chmod(0o755)
    user.environment |= {
        "PATH": f"{commands}:{user.environment['PATH']}", "DLI_NURSERY_IDLE": "0", "PYTHONPATH": str(kinds),
        "LAKE_SECRET": "planted-of-the-lake",
    }
    yield user
    user.backend("stop", "--jobs")


def shell(user: User, text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-eo", "pipefail", "-c", text], env=user.environment, cwd=user.folder, text=True, capture_output=True,
        timeout=DEADLINE, check=False,
    )


def everything(home: Path) -> str:
    return "".join(path.read_bytes().decode("latin-1") for path in home.rglob("*") if path.is_file())


def test_the_commands_of_the_page_work(reader: User) -> None:
    process = reader.serve("--port", "0")
    try:
        eventually((reader.home / "backend.json").exists, "the server serves")
        steps = [shell(reader, block) for block in blocks("sh")]
        assert all(step.returncode == 0 for step in steps), steps
        assert re.search(r"^warehouse +postgresql +\S+ +- +[0-9a-f-]{36}$", steps[0].stdout, re.MULTILINE), steps[0]
        found = {item["name"]: item for item in json.loads(steps[1].stdout[steps[1].stdout.index("["):])}
        assert found["lake"]["secrets"] == {"secret_access_key": "env:LAKE_SECRET"}
        assert found["lake"]["sharedWith"] == "everybody" and found["warehouse"]["sharedWith"] == ["bob"]
        assert steps[2].stdout.startswith("added signed (http), id ")
        assert steps[3].stdout == "warehouse: ok\nremoved lake\n"
        held = everything(reader.home)
        assert "the password" not in held and "a better password" not in held and "planted" not in held
        assert "sig=..." not in held
    finally:
        reader.backend("stop")
        process.communicate(timeout=DEADLINE)


def test_the_file_of_the_page_works(reader: User) -> None:
    file = reader.folder / "connections.yaml"
    file.write_text(blocks("yaml")[0])
    process = reader.serve("--port", "0", "--connections", "connections.yaml")
    try:
        eventually((reader.home / "backend.json").exists, "the server serves")
        listed = json.loads(reader.backend("connection", "list", "-o", "json").out)
        shown = [item for item in listed if item["fromFile"]]
        assert {item["name"]: (item["fromFile"], item["sharedWith"]) for item in shown} == {
            "warehouse": (True, "everybody"), "lake": (True, ["ada", "bob"])}
        done = reader.backend("connection", "remove", "lake")
        assert done.code == 1 and "is defined in" in done.err and "connections.yaml" in done.err
        done = reader.backend("connection", "test", next(item["id"] for item in shown if item["name"] == "warehouse"))
        assert done.code == 1 and "WAREHOUSE_PASSWORD is not set in the environment of the server" in done.err
    finally:
        reader.backend("stop")
        process.communicate(timeout=DEADLINE)
