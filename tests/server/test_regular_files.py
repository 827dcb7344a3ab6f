"""The list of the regular files below an open folder."""

from __future__ import annotations

import os
from pathlib import Path

from local_backend.files import FOLDER, regular_files


def test_files_of_all_folders_are_found_without_links(tmp_path: Path) -> None:
    (tmp_path / "deep" / "lower").mkdir(parents=True)
    (tmp_path / "left").mkdir()
    for name in ("top", "deep/lower/one", "left/out"):
        (tmp_path / name).write_text(name)
    (tmp_path / "link").symlink_to("top")
    (tmp_path / "folder").symlink_to("deep")
    os.mkfifo(tmp_path / "pipe")
    top = os.open(tmp_path, FOLDER)
    try:
        found = {name: status.st_size for name, status in regular_files(top, {"left"})}
    finally:
        os.close(top)
    assert found == {"top": 3, "deep/lower/one": 14}
