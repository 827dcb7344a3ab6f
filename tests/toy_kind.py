"""A kind of connection for tests: files of a local folder, served by a pretend server that can fail.

Files beside the data control the server: `down` (the server is not reachable), `gate` (the second half of a file is
held back while this file exists), `broken` (an internal error of the kind).
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

from kind_package import put_package

from local_backend.data.errors import DataError, DataUnavailable
from local_backend.data.kind import Field, FileFamily, Kind, SourceFile

PASSWORD = "planted-right-password"


class ToyFamily(FileFamily):
    """The family of the kind; the docstring of the module describes its behavior."""

    @property
    def root(self) -> Path:
        """Return the folder, after the checks that every operation makes."""
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

    def files(self, location: Mapping[str, Any]) -> Iterator[SourceFile]:
        path = self.root / location["path"]
        if not path.exists():
            raise DataError(f"there is no {location['path']} on the toy server")
        for one in sorted(path.rglob("*")) if path.is_dir() else [path]:
            yield SourceFile(one.name, str(one), one.stat().st_size, str(one.stat().st_mtime_ns))

    def read(self, file: SourceFile, start: int, end: int | None) -> Generator[bytes, None, None]:
        content = Path(file.key).read_bytes()[start:end]
        gate = Path(self.values["folder"]) / "gate"
        yield content[: len(content) // 2]
        while gate.exists():
            time.sleep(0.02)
        assert self.root
        yield content[len(content) // 2 :]

    def storage(self) -> tuple[str, dict[str, Any]]:
        return "toy", {"password": self.values["password"]}


TOY = Kind(
    "toy", "Toy", ToyFamily,
    (Field("folder", "where the files are", required=True), Field("password", "password", required=True, secret=True)),
)


def installed_in(folder: Path) -> str:
    """Write a package with this kind into `folder`, and return the value for PYTHONPATH."""
    put_package(folder, "toy-kinds", {"toy": "toy_kind:TOY"}, {
        file.name: file.read_text(encoding="utf-8") for file in (Path(__file__), Path(put_package.__code__.co_filename))
    })
    return str(folder)
