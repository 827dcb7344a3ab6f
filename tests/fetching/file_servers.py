"""Real servers for tests, as they come from packages: S3 (moto), SFTP (asyncssh), Azure storage (Azurite)."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support import PATIENCE, eventually

#: Of Azurite, and of every other copy of it.
AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


class NotThere(Exception):
    """There is no such server here; the text says what is missing."""


def _answers(port: int) -> bool:
    import socket

    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def _free_port() -> int:
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextlib.contextmanager
def _process(command: list[str], port: int, cwd: str) -> Iterator[None]:
    process = subprocess.Popen(command, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: _answers(port) or process.poll() is not None, f"{command[0]} answers")
        if process.poll() is not None:
            raise NotThere(f"{command[0]} did not start")
        yield
    finally:
        process.kill()
        process.wait()


@dataclass
class S3Server:
    """A server of S3's protocol, in a process of its own."""

    url: str

    @property
    def values(self) -> dict[str, str]:
        """Values of a connection to it."""
        return {"url": self.url, "access_key": "testing", "secret_key": "testing"}

    def client(self) -> Any:
        """A client that may write."""
        import boto3

        return boto3.client("s3", endpoint_url=self.url, region_name="us-east-1", aws_access_key_id="testing",
                            aws_secret_access_key="testing")


@contextlib.contextmanager
def s3_server() -> Iterator[S3Server]:
    """Raises NotThere."""
    missing = [name for name in ("boto3", "moto", "flask", "flask_cors") if importlib.util.find_spec(name) is None]
    if missing:
        raise NotThere(f"there is no S3 server: {missing[0]} is not installed (extra test)")
    port = _free_port()
    code = f"from moto.server import main; main(['-H', '127.0.0.1', '-p', '{port}'])"
    with tempfile.TemporaryDirectory() as folder, _process([sys.executable, "-c", code], port, folder):
        yield S3Server(f"http://127.0.0.1:{port}")


@dataclass
class SftpServer:
    """An SSH server that has files of one folder, for one user."""

    folder: Path
    port: int
    host_key: str

    @property
    def values(self) -> dict[str, str]:
        """Values of a connection to it."""
        return {"host": "127.0.0.1", "port": str(self.port), "username": "someone", "password": "right",
                "host_key": self.host_key}


@contextlib.contextmanager
def sftp_server(folder: Path) -> Iterator[SftpServer]:
    """Raises NotThere."""
    if importlib.util.find_spec("sshfs") is None:
        raise NotThere("there is no SFTP server: sshfs is not installed (extra sftp)")
    import asyncssh

    key = asyncssh.generate_private_key("ssh-ed25519")

    class OneUser(asyncssh.SSHServer):  # type: ignore[misc]
        def password_auth_supported(self) -> bool:
            return True

        def validate_password(self, username: str, password: str) -> bool:
            return (username, password) == ("someone", "right")

    ready: list[Any] = []
    started = threading.Event()

    async def serve() -> None:
        ended = asyncio.Event()

        def files(channel: Any) -> Any:
            return asyncssh.SFTPServer(channel, chroot=os.fsencode(folder))

        server = await asyncssh.listen("127.0.0.1", 0, server_factory=OneUser, server_host_keys=[key],
                                       sftp_factory=files)
        ready.extend((server.get_port(), asyncio.get_running_loop(), ended))
        started.set()
        await ended.wait()
        server.close()

    # `asyncio.run` ends what serves a connection, too: nothing of it is left to whichever test runs next.
    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    try:
        assert started.wait(PATIENCE)
        yield SftpServer(folder, ready[0], key.export_public_key().decode().strip())
    finally:
        _, loop, ended = ready
        loop.call_soon_threadsafe(ended.set)
        thread.join(PATIENCE)


@dataclass
class AzureServer:
    """Azurite's blobs."""

    connection_string: str


@contextlib.contextmanager
def azure_server() -> Iterator[AzureServer]:
    """Raises NotThere."""
    program = shutil.which("azurite-blob")
    if program is None or importlib.util.find_spec("adlfs") is None:
        raise NotThere("there is no Azure server: " + ("azurite-blob is not on PATH (npm install -g azurite)"
                                                       if program is None else "adlfs is not installed (extra azure)"))
    port = _free_port()
    with tempfile.TemporaryDirectory() as folder:
        command = [program, "--blobHost", "127.0.0.1", "--blobPort", str(port), "--silent", "--inMemoryPersistence",
                   "--skipApiVersionCheck"]
        with _process(command, port, folder):
            yield AzureServer(f"DefaultEndpointsProtocol=http;AccountName={AZURE_ACCOUNT};AccountKey={AZURE_KEY};"
                              f"BlobEndpoint=http://127.0.0.1:{port}/{AZURE_ACCOUNT};")
