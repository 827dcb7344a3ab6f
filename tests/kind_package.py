"""Packages with kinds of connections, laid out as an installer leaves them in a folder of the module path."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

GROUP = "dlicmd.data_kinds"


def put_package(folder: Path, name: str, kinds: Mapping[str, str], modules: Mapping[str, str]) -> None:
    """Write a package into `folder`: metadata with an entry point for each kind, and modules by file name."""
    info = folder / f"{name.replace('-', '_')}-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    points = "".join(f"{kind} = {value}\n" for kind, value in kinds.items())
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{points}")
    for file, text in modules.items():
        (folder / file).write_text(text, encoding="utf-8")
