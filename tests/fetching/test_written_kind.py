"""The example package of docs/write-a-data-kind.md, built, installed and used as printed there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fetching_desk import Desk, content
from range_server import Site, serving

from local_backend.data import registry, transfer
from local_backend.data.errors import DataError

pytestmark = pytest.mark.integration

PAGE = Path(__file__).parent.parent.parent / "docs" / "write-a-data-kind.md"
TOKEN = "planted-token-of-artifacts"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which pip installed the package."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("installed")
    text = PAGE.read_text(encoding="utf-8")
    for name, language in (("pyproject.toml", "toml"), ("dlicmd_artifacts.py", "python")):
        [block] = re.findall(rf"`{re.escape(name)}`:\n\n```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        (source / name).write_text(block)
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index",
                    "--target", target, source], check=True, timeout=150)
    return target


@pytest.fixture
def site(installed: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """An artifact server, in a process where the kind is registered."""
    monkeypatch.syspath_prepend(str(installed))
    monkeypatch.setattr(transfer, "SMALLEST", 1 << 19)
    registry.clear()
    with serving(Site(authorization=f"Bearer {TOKEN}")) as made:
        put(made, **{"a/x.bin": content(3 << 19), "a/y.bin": content(10, 2), "b.bin": b""})
        yield made
    registry.clear()


def put(site: Site, **files: bytes) -> None:
    """Make the server serve these files and list them in its index."""
    new = Site({f"/files/{name}": data for name, data in files.items()})
    index = [(name, len(data), new.etag(f"/files/{name}")) for name, data in files.items()]
    # All at once: another thread may ask for the index meanwhile.
    site.files = new.files | {"/index.json": json.dumps(index).encode()}


def values(site: Site, token: str = TOKEN) -> dict[str, str]:
    return {"url": site.url, "token": token}


def test_the_command_lists_the_kind(installed: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "local_backend.cli", "connection", "kinds", "artifacts"],
                          env={**os.environ, "PYTHONPATH": str(installed)}, capture_output=True, text=True, check=True)
    assert "token of a user (required, secret)" in done.stdout


def test_files_of_the_example_kind_are_downloaded(site: Site, tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    assert desk.get("artifacts", values(site), {}).files == 3
    assert desk.read() == {"a/x.bin": content(3 << 19), "a/y.bin": content(10, 2), "b.bin": b""}
    desk.get("Artifact Server", values(site), {"path": "a/y"}, job=2)
    assert desk.read(2) == {"a/y.bin": content(10, 2)}


def test_a_file_that_changes_during_the_download_is_never_mixed(site: Site, tmp_path: Path) -> None:
    new = content(3 << 19, 7)

    def change(path: str) -> None:
        if path.startswith("/files/"):
            site.before = lambda path: None
            put(site, **{"a/x.bin": new})

    site.before = change
    Desk(tmp_path).get("artifacts", values(site), {"path": "a/x"})
    assert Desk(tmp_path).read() == {"a/x.bin": new}


def test_a_wrong_token_is_refused(site: Site) -> None:
    family = registry.find("artifacts").open(values(site, "planted-wrong"), loopback=True)
    with pytest.raises(DataError) as problem:
        family.test()
    assert type(problem.value) is DataError
