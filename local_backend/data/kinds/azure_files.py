"""Azure Files, through Azure's own library: fsspec has no maintained file system for it."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from dlicmd.contract.data_sources import BUCKET, SHARE
from local_backend.data.errors import DataChanged, DataError, DataUnavailable, in_words
from local_backend.data.kind import Field, FileFamily, Kind, SourceFile
from local_backend.data.kinds.azure import ACCOUNT, HOST, KEY, SAS, STRING
from local_backend.data.locations import path_below, paths_of, plain_path


class Share(FileFamily):
    """File shares of a storage account."""

    tops = (SHARE, BUCKET)

    def __init__(self, kind: Kind, values: Mapping[str, str]) -> None:
        super().__init__(kind, values)
        self._made: Any = None
        self._lock = threading.Lock()

    def test(self) -> None:
        with self._told(self.values.get("share") or "the shares of the account"):
            if self.values.get("share"):
                self._service().get_share_client(self.values["share"]).get_share_properties()
            else:
                next(iter(self._service().list_shares()), None)

    def close(self) -> None:
        if self._made is not None:
            self._made.close()

    def files(self, location: Mapping[str, Any]) -> Iterator[SourceFile]:
        share, asked = self.top(location), paths_of(location)
        for path in (plain_path(one).strip("/") for one in asked or [""]):
            found = False
            with self._told(path or share):
                for name, info in self._below(self._service().get_share_client(share), path):
                    found = True
                    below = path_below(path, len(asked) > 1, name)
                    yield SourceFile(below, f"{share}/{name}", info.size, str(info.etag))
            if not found:
                raise DataError(f"there is no file in '{path or share}'")

    def read(self, file: SourceFile, start: int, end: int | None) -> Generator[bytes, None, None]:
        share, _, path = file.key.partition("/")
        client = self._service().get_share_client(share).get_file_client(path)
        with self._told(file.key):
            length = (file.size if end is None else end or 0) or 0
            if length > start:
                reading = client.download_file(offset=start, length=length - start)
                if str(reading.properties.etag) != file.version:
                    raise DataChanged(f"{file.key} changed before it was read")
                # Azure's library pins the pieces of one download to the ETag of the first piece.
                yield from reading.chunks()

    def confirm(self, file: SourceFile) -> None:
        # Other programs use a share as a disk: they may write to a file while a piece of it is being fetched.
        share, _, path = file.key.partition("/")
        with self._told(file.key):
            found = self._service().get_share_client(share).get_file_client(path).get_file_properties()
            if (str(found.etag), found.size) != (file.version, file.size):
                raise DataChanged(f"{file.key} changed while it was read")

    def storage(self) -> tuple[str, dict[str, Any]]:
        raise DataError("files of Azure Files cannot be streamed; download them ('access': 'download')")

    def _below(self, share: Any, path: str) -> Iterator[tuple[str, Any]]:
        """Yield path and properties of a file, or of all files below a folder."""
        from azure.core.exceptions import ResourceNotFoundError

        if path:
            try:
                yield path, share.get_file_client(path).get_file_properties()
                return
            except ResourceNotFoundError:
                pass
        folders = [path]
        while folders:
            folder = folders.pop()
            for one in share.get_directory_client(folder).list_directories_and_files():
                name = f"{folder}/{one.name}".lstrip("/")
                if one.is_directory:
                    folders.append(name)
                else:
                    yield name, share.get_file_client(name).get_file_properties()

    def _service(self) -> Any:
        from azure.storage.fileshare import ShareServiceClient

        values = self.values
        with self._lock:
            if self._made is None and values.get("connection_string"):
                self._made = ShareServiceClient.from_connection_string(values["connection_string"])
            elif self._made is None:
                if not values.get("account_name") or not (values.get("account_key") or values.get("sas_token")):
                    raise DataError("Azure Files needs 'account_name' with 'account_key' or 'sas_token', or a "
                                    "'connection_string'")
                host = values.get("account_host") or f"{values['account_name']}.file.core.windows.net"
                key = values.get("account_key")
                # With the key alone, the library looks for the account in the host, which may be of another domain.
                named = {"account_name": values["account_name"], "account_key": key} if key else values["sas_token"]
                self._made = ShareServiceClient(host if "://" in host else f"https://{host}", credential=named)
            return self._made

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        from azure.core.exceptions import (
            AzureError,
            ClientAuthenticationError,
            HttpResponseError,
            ResourceNotFoundError,
        )

        try:
            yield
        except ResourceNotFoundError:
            raise DataError(f"Azure Files: there is no {what}") from None
        except ValueError as problem:
            if isinstance(problem, DataError):
                raise
            raise DataError(f"Azure Files: {_short(problem)}") from None
        except AzureError as problem:
            refused = isinstance(problem, HttpResponseError) and problem.status_code in (401, 403)
            if refused or isinstance(problem, ClientAuthenticationError):
                raise DataError(f"Azure Files denies access to {what} with these credentials: "
                                f"{_short(problem)}") from None
            raise DataUnavailable(f"Azure Files: cannot read {what}: {_short(problem)}") from None


def _short(problem: BaseException) -> str:
    return " ".join(str(problem).split())[:200] or in_words(problem)


AZURE_FILES = Kind(
    "azure-files", "Azure Files", Share, extra="azure", modules=("azure.storage.fileshare",),
    fields=(ACCOUNT, KEY, STRING, SAS, HOST,
            Field("share", "default share, for locations that name none", aliases=("file_share",))),
    aliases=("azurefilestorage", "azure-file-storage", "azurefiles"),
)
