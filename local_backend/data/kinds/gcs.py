"""Google Cloud Storage, through gcsfs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dlicmd.contract.data_sources import BUCKET
from local_backend.data.errors import DataError
from local_backend.data.kind import Field, Kind
from local_backend.data.kinds.filesystem import FileSystem


class Google(FileSystem):
    """Buckets of a project."""

    protocol = "gs"
    tops = (BUCKET,)
    literal = True

    def storage_options(self) -> dict[str, Any]:
        # Without a token the library would look for credentials of the user that runs the server.
        found: dict[str, Any] = {"token": self._token() or "anon"}
        if self.values.get("project"):
            found["project"] = self.values["project"]
        if self.values.get("endpoint_url"):
            found["endpoint_url"] = self.values["endpoint_url"]
        return found

    def _new_filesystem(self, more: Mapping[str, Any]) -> Any:
        # fsspec's class asks for the type of a bucket over gRPC. network.guard does not see these connections, and they
        # take a minute if no server answers.
        from gcsfs.core import GCSFileSystem

        self._check(self._token())
        return GCSFileSystem(skip_instance_cache=True, **more, **self.options())

    def _check(self, key: dict[str, Any] | None) -> None:
        """Raise DataError for a key at which the library would fail only later."""
        from google.auth.exceptions import GoogleAuthError
        from google.oauth2.service_account import Credentials

        if key is None or "refresh_token" in key:
            return
        try:
            Credentials.from_service_account_info(key)
        except (ValueError, GoogleAuthError) as problem:
            raise DataError(f"{self.kind.title}: 'credentials' is not the key of a service account: "
                            f"{self.without_secrets(problem)}") from None

    def _token(self) -> dict[str, Any] | None:
        text = self.values.get("credentials")
        try:
            found = json.loads(text) if text else None
        except ValueError:
            found = text
        if found is not None and not isinstance(found, dict):
            raise DataError("'credentials' is not the JSON text of a service account's key")
        return found


GCS = Kind(
    "gcs", "Google Cloud Storage", Google, extra="gcs", modules=("gcsfs",), tested="gcp-storage-emulator",
    fields=(Field("credentials", "key of a service account, as JSON text; without a key, only public buckets "
                                 "can be read",
                  secret=True, aliases=("token", "service_account", "credentials_json")),
            Field("project", "project of the buckets", aliases=("project_id",)),
            Field("bucket", "default bucket, for locations that name none"),
            Field("endpoint_url", "URL of the server, if it is not a server of Google", aliases=("url",),
                  schemes=("https", "http"))),
    aliases=("gs", "googlecloudstorage", "google"),
)
