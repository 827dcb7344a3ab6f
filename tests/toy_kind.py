"""A kind of connection for tests: files of a folder of this machine, which can be away, slow or closed to strangers.

What is going on is said by files beside the data: `down` (the server is not there), `gate` (the second half of a
file does not come while this is there), `broken` (a fault of ours).
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

from local_backend.data.errors import DataError, DataUnavailable
from local_backend.data.kinds.base import Entry, Field, FileFamily, Kind

PASSWORD = "planted-right-password"


class ToyFamily(FileFamily):
    """See the module."""

    @property
    def root(self) -> Path:
        """The folder; every way in passes here."""
        folder = Path(self.values["folder"])
        if (folder / "down").exists():
            raise DataUnavailable("the toy server is down")
        if (folder / "broken").exists():
            raise RuntimeError(f"toy is broken, {self.values['password']}")
        if self.values["password"] != PASSWORD:
            raise DataError(f"the toy server does not know the password {self.values['password']}")
        return folder

    def test(self) -> None:
        assert self.root

    def entries(self, location: Mapping[str, Any]) -> Iterator[Entry]:
        path = self.root / location["path"]
        if not path.exists():
            raise DataError(f"there is no {location['path']} on the toy server")
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            yield Entry(file.name, str(file), file.stat().st_size, str(file.stat().st_mtime_ns))

    def read(self, entry: Entry, start: int, end: int | None) -> Generator[bytes, None, None]:
        content = Path(entry.key).read_bytes()[start:end]
        gate = Path(self.values["folder"]) / "gate"
        yield content[: len(content) // 2]
        while gate.exists():
            time.sleep(0.02)
        assert self.root
        yield content[len(content) // 2 :]

    def storage(self) -> tuple[str, dict[str, Any]]:
        return "toy", {"password": self.values["password"]}


KINDS = (
    Kind("toy", "Toy", ToyFamily, (
        Field("folder", "where the files are", required=True),
        Field("password", "password", required=True, secret=True),
    )),
)


def installed_in(folder: Path) -> str:
    """Make this a package with an entry point in `folder`; what PYTHONPATH has to be."""
    info = folder / "toy_kinds-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-kinds\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[dlicmd.data_kinds]\ntoy = toy_kind\n")
    (folder / "toy_kind.py").write_text(Path(__file__).read_text(encoding="utf-8"), encoding="utf-8")
    return str(folder)


