"""SFTP, through sshfs (asyncssh). The server must prove its identity: the library checks it only on request."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from local_backend.data.errors import DataError
from local_backend.data.kind import Field, Kind, SourceFile
from local_backend.data.kinds.filesystem import PIECE, Folders


class Sftp(Folders):
    """Folders of a machine with an SSH server."""

    protocol = "sftp"
    fresh: ClassVar[Mapping[str, Any]] = {}

    def storage_options(self) -> dict[str, Any]:
        if self.values.get("private_key") or self.values.get("host_key"):
            raise DataError("SFTP with a 'private_key' or a 'host_key' cannot be streamed; download the files "
                            "('access': 'download')")
        if not self.values.get("folder", "").startswith("/"):
            raise DataError("to stream over SFTP, give the connection a 'folder' that begins with a slash")
        return self._options() | {"known_hosts": os.path.expanduser("~/.ssh/known_hosts")}

    def options(self) -> dict[str, Any]:
        import asyncssh

        found = self._options()
        self.addresses(found["host"], found["port"])
        try:
            if key := self.values.get("host_key"):
                found["known_hosts"] = ([asyncssh.import_public_key(key)], [], [])
            else:
                found["known_hosts"] = os.path.expanduser("~/.ssh/known_hosts")
            if key := self.values.get("private_key"):
                found["client_keys"] = [asyncssh.import_private_key(key, self.values.get("passphrase"))]
        except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError) as problem:
            raise DataError(f"SFTP: {problem}") from None
        return found

    def url(self, file: SourceFile) -> str:
        return f"sftp://{self.values['host']}{file.key}"

    def pieces(self, key: str, start: int, end: int | None) -> Iterator[bytes]:
        # For a range, the file system of sshfs returns the whole file.
        with self.filesystem().open(key, "rb") as opened:
            opened.seek(start)
            while end is None or start < end:
                piece = opened.read(PIECE if end is None else min(PIECE, end - start))
                if not piece:
                    break
                yield piece
                start += len(piece)

    def top(self, location: Mapping[str, Any]) -> str:
        return self.values.get("folder", "").rstrip("/") or "."

    def _options(self) -> dict[str, Any]:
        # Use neither keys nor settings of the user that runs the server.
        found: dict[str, Any] = {
            "host": self.values["host"], "port": int(self.values.get("port") or 22),
            "username": self.values["username"], "client_keys": [], "agent_path": None, "config": [],
            "connect_timeout": 15}
        if self.values.get("password"):
            found["password"] = self.values["password"]
        return found


SFTP = Kind(
    "sftp", "SFTP", Sftp, extra="sftp", modules=("sshfs",), tested="asyncssh's server",
    fields=(Field("host", "name of the server", required=True, aliases=("hostname", "url"), host=True),
            Field("port", "port of the server (default 22)"),
            Field("username", "user of the server", required=True, aliases=("user",)),
            Field("password", "password of the user", secret=True),
            Field("private_key", "private key of the user: the text of the key file", secret=True),
            Field("passphrase", "passphrase of the private key", secret=True),
            Field("host_key", "public key of the server, 'ssh-ed25519 AAAA...' (default: ~/.ssh/known_hosts)"),
            Field("folder", "folder that paths are relative to (default: home folder of the user)",
                  aliases=("root", "path"))),
    aliases=("ftp-ssh", "ssh"),
)
