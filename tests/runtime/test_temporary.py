"""TMPDIR of an attempt."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from local_backend.runtime import temporary
from local_backend.runtime.paths import ExecPaths


@pytest.fixture
def paths(tmp_path: Path) -> ExecPaths:
    found = ExecPaths(tmp_path / "state", tmp_path / "results", "local-1")
    found.temporary.parent.mkdir(parents=True)
    return found


def test_the_folder_is_private_and_disappears_with_its_content(paths: ExecPaths) -> None:
    folder = temporary.make(paths)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700 and list(folder.iterdir()) == []
    (folder / "left").mkdir(mode=0)
    temporary.remove(paths)
    assert not folder.exists() and not paths.temporary.is_symlink()
    temporary.remove(paths)


@pytest.mark.parametrize("kind", ["file", "folder", "link", "nothing"])
def test_a_program_that_replaces_the_link_does_not_prevent_the_next_attempt(
    paths: ExecPaths, tmp_path: Path, kind: str
) -> None:
    first = temporary.make(paths)
    paths.temporary.unlink()
    (other := tmp_path / "other").mkdir()
    if kind == "file":
        paths.temporary.write_text("x")
    elif kind == "folder":
        (paths.temporary / "inner").mkdir(parents=True)
    elif kind == "link":
        paths.temporary.symlink_to(other)
    again = temporary.make(paths)
    assert again not in (first, other) and paths.temporary.readlink() == again and other.exists()
    temporary.remove(paths)
    first.rmdir()
