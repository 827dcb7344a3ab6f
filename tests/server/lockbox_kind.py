"""A kind of connection for tests: a folder protected by a password."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

from kind_package import put_package

from local_backend.data.errors import DataError
from local_backend.data.kind import Field, FileFamily, Kind, SourceFile


class Lockbox(FileFamily):
    """Files of `folder`; the password is in `folder/.password`."""

    def test(self) -> None:
        """See the base class."""
        print("a library says something")
        if self.values["password"] == "crash":
            raise RuntimeError("login failed for user reader with crash")
        if self.values["password"] != (Path(self.values["folder"]) / ".password").read_text():
            raise DataError(f"wrong password {self.values['password']}")

    def files(self, location: Mapping[str, Any]) -> Iterator[SourceFile]:
        """See the base class."""
        yield from ()

    def read(self, file: SourceFile, start: int, end: int | None) -> Generator[bytes, None, None]:
        """See the base class."""
        yield b""

    def storage(self) -> tuple[str, dict[str, Any]]:
        """See the base class."""
        return "file", {}


LOCKBOX = Kind(
    "lockbox", "Lockbox of the tests", Lockbox, (
        Field("folder", "where it is", required=True),
        Field("user", "who opens it", aliases=("username",)),
        Field("password", "what opens it", required=True, secret=True, aliases=("pwd",)),
        Field("token", "what else opens it", secret=True),
    ),
)


def put_lockbox(folder: Path) -> str:
    """Put a package with this kind into `folder`; return `folder`."""
    put_package(folder, "lockbox-kind", {"lockbox": "lockbox_kind:LOCKBOX"}, {
        file.name: file.read_text(encoding="utf-8") for file in (Path(__file__), Path(put_package.__code__.co_filename))
    })
    return str(folder)
