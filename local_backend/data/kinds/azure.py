"""Azure Blob Storage and Data Lake, through adlfs."""

from __future__ import annotations

from typing import Any

from dlicmd.contract import data_sources as wire
from local_backend.data.errors import DataError
from local_backend.data.kind import Field, Kind
from local_backend.data.kinds.filesystem import FileSystem
from local_backend.data.locations import plain_path

ACCOUNT = Field("account_name", "name of the storage account", aliases=("account", "storage_account", "username"))
KEY = Field("account_key", "access key of the account", secret=True, aliases=("access_key", "password", "key"))
STRING = Field("connection_string", "connection string of the account, instead of name and key", secret=True)
SAS = Field("sas_token", "shared access signature", secret=True, aliases=("sas",))

#: For an emulator: host and port, then a slash and the account.
HOST = Field("account_host", "host of the account, if it is not a host of Azure", aliases=("url", "host"),
             schemes=("https", "http"), bare=True)


class Blob(FileSystem):
    """Containers of a storage account."""

    protocol = "abfs"
    tops = (wire.CONTAINER_NAME, wire.BUCKET, wire.FILE_SYSTEM)
    literal = True

    def spellings(self, path: str) -> list[str]:
        # No blob has such a name: a dot segment disappears from the address on the way, and the signature fails.
        return [plain_path(path)] if "." in path.split("/") else super().spellings(path)

    def storage_options(self) -> dict[str, Any]:
        names = ("account_name", "account_key", "connection_string", "sas_token", "client_id", "client_secret",
                 "tenant_id", "account_host")
        found: dict[str, Any] = {name: self.values[name] for name in names if self.values.get(name)}
        if not found.keys() & {"account_name", "connection_string"}:
            raise DataError(f"{self.kind.title} needs 'account_name' or 'connection_string'")
        # Without `anon` the library looks for credentials of the user that runs the server.
        return found | {"anon": not found.keys() & {"account_key", "connection_string", "sas_token", "client_secret"}}


_FIELDS = (
    ACCOUNT, KEY, STRING, SAS,
    Field("client_id", "id of an application with read access"),
    Field("client_secret", "secret of the application", secret=True),
    Field("tenant_id", "tenant of the application", aliases=("tenant",)),
    HOST,
    Field("container", "default container, for locations that name none"),
)
_NEEDS: dict[str, Any] = {"family": Blob, "fields": _FIELDS, "extra": "azure", "modules": ("adlfs",)}

AZURE_BLOB = Kind("azure-blob", "Azure Blob Storage", aliases=("azureblobstorage", "azure"), tested="Azurite", **_NEEDS)
AZURE_DATA_LAKE = Kind(
    "azure-data-lake", "Azure Data Lake Storage", aliases=("azuredatalakestorage", "adls", "abfs"),
    tested="Azurite (Azure's blob interface; the backend uses no other interface)", **_NEEDS,
)
