"""Real servers for tests, installed as packages: S3, SFTP, Azure and Google storage.

The packages are moto (S3), asyncssh (SFTP), Azurite (Azure storage) and gcp-storage-emulator (Google).
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server_process import NotThere, free_port, listens, running
from support import PATIENCE

#: The well-known account and key of every Azurite installation.
AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@dataclass
class S3Server:
    """A server of the S3 protocol, in its own process."""

    url: str

    @property
    def values(self) -> dict[str, str]:
        """Return the values of a connection to the server."""
        return {"url": self.url, "access_key": "testing", "secret_key": "testing"}

    def client(self) -> Any:
        """Return a client with write access."""
        import boto3

        return boto3.client("s3", endpoint_url=self.url, region_name="us-east-1", aws_access_key_id="testing",
                            aws_secret_access_key="testing")


@contextlib.contextmanager
def s3_server() -> Iterator[S3Server]:
    """Run an S3 server. Raises NotThere."""
    missing = [name for name in ("boto3", "moto", "flask", "flask_cors") if importlib.util.find_spec(name) is None]
    if missing:
        raise NotThere(f"{missing[0]} is not installed (extra test)")
    port = free_port()
    code = f"from moto.server import main; main(['-H', '127.0.0.1', '-p', '{port}'])"
    with _listening([sys.executable, "-c", code], port):
        yield S3Server(f"http://127.0.0.1:{port}")


@dataclass
class SftpServer:
    """An SSH server that serves the files of one folder to one user."""

    folder: Path
    port: int
    host_key: str

    @property
    def values(self) -> dict[str, str]:
        """Return the values of a connection to the server."""
        return {"host": "127.0.0.1", "port": str(self.port), "username": "someone", "password": "right",
                "host_key": self.host_key}


@contextlib.contextmanager
def sftp_server(folder: Path) -> Iterator[SftpServer]:
    """Run an SFTP server. Raises NotThere."""
    if importlib.util.find_spec("sshfs") is None:
        raise NotThere("sshfs is not installed (extra sftp)")
    import asyncssh

    key = asyncssh.generate_private_key("ssh-ed25519")

    class Files(asyncssh.SFTPServer):  # type: ignore[misc]
        """Serves folders; denies the content of a folder `closed` with "no such file", as cautious servers do."""

        async def scandir(self, path: bytes) -> AsyncIterator[Any]:
            if path.endswith(b"/closed"):
                raise asyncssh.SFTPNoSuchFile("there is none")
            async for one in super().scandir(path):
                yield one

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
            return Files(channel, chroot=os.fsencode(folder))

        server = await asyncssh.listen("127.0.0.1", 0, server_factory=OneUser, server_host_keys=[key],
                                       sftp_factory=files)
        ready.extend((server.get_port(), asyncio.get_running_loop(), ended))
        started.set()
        await ended.wait()
        server.close()

    # `asyncio.run` also ends the tasks of open connections, so they do not run into the next test.
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
    """The blob service of Azurite."""

    connection_string: str


@contextlib.contextmanager
def azure_server() -> Iterator[AzureServer]:
    """Run an Azure server. Raises NotThere."""
    program = shutil.which("azurite-blob")
    if program is None or importlib.util.find_spec("adlfs") is None:
        raise NotThere("azurite-blob is not on PATH (npm install -g azurite)" if program is None
                       else "adlfs is not installed (extra azure)")
    port = free_port()
    command = [program, "--blobHost", "127.0.0.1", "--blobPort", str(port), "--silent", "--inMemoryPersistence",
               "--skipApiVersionCheck"]
    with _listening(command, port):
        yield AzureServer(f"DefaultEndpointsProtocol=http;AccountName={AZURE_ACCOUNT};AccountKey={AZURE_KEY};"
                          f"BlobEndpoint=http://127.0.0.1:{port}/{AZURE_ACCOUNT};")


@dataclass
class GoogleServer:
    """A server of the Google storage protocol, in its own process."""

    url: str

    def put(self, bucket: str, **files: bytes) -> None:
        """Create a bucket with objects; `__` in a name stands for a slash."""
        import requests

        bucket_answer = requests.post(f"{self.url}/storage/v1/b", params={"project": "p"}, json={"name": bucket},
                                      timeout=PATIENCE)
        bucket_answer.raise_for_status()
        for name, data in files.items():
            requests.post(f"{self.url}/upload/storage/v1/b/{bucket}/o", data=data, timeout=PATIENCE,
                          params={"uploadType": "media", "name": name.replace("__", "/")}).raise_for_status()


@contextlib.contextmanager
def google_server() -> Iterator[GoogleServer]:
    """Run a Google storage server. Raises NotThere."""
    for module, extra in (("gcsfs", "gcs"), ("gcp_storage_emulator", "test")):
        if importlib.util.find_spec(module) is None:
            raise NotThere(f"{module} is not installed (extra {extra})")
    port = free_port()
    command = [sys.executable, "-m", "gcp_storage_emulator", "start", "--host", "127.0.0.1", "--port", str(port),
               "--in-memory"]
    with _listening(command, port):
        yield GoogleServer(f"http://127.0.0.1:{port}")


@contextlib.contextmanager
def _listening(command: list[str], port: int) -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder, running(command, lambda: listens(port), Path(folder)):
        yield
