"""A kind of connection for tests: a folder that opens with a password."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

from local_backend.data.errors import DataError
from local_backend.data.kinds.base import Entry, Field, FileFamily, Kind


class Lockbox(FileFamily):
    """Files of `folder`; its password is in `folder/.password`."""

    def test(self) -> None:
        """See the base class."""
        print("a library says something")
        if self.values["password"] == "crash":
            raise RuntimeError("login failed for user reader with crash")
        if self.values["password"] != (Path(self.values["folder"]) / ".password").read_text():
            raise DataError(f"wrong password {self.values['password']}")

    def entries(self, location: Mapping[str, Any]) -> Iterator[Entry]:
        """See the base class."""
        yield from ()

    def read(self, entry: Entry, start: int, end: int | None) -> Generator[bytes, None, None]:
        """See the base class."""
        yield b""

    def storage(self) -> tuple[str, dict[str, Any]]:
        """See the base class."""
        return "file", {}


KINDS = (
    Kind("lockbox", "Lockbox of the tests", Lockbox, (
        Field("folder", "where it is", required=True),
        Field("user", "who opens it", aliases=("username",)),
        Field("password", "what opens it", required=True, secret=True, aliases=("pwd",)),
        Field("token", "what else opens it", secret=True),
    )),
)
