"""IBM Cloud Object Storage: S3 with HMAC keys, or with the API keys that most of its connections have."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from local_backend.data.errors import DataError
from local_backend.data.kind import Field, Kind
from local_backend.data.kinds import iam
from local_backend.data.kinds.s3 import KEYS, NEEDS, SCHEMES, BucketFamily


class Cos(BucketFamily):
    """With an API key, requests are not signed: each carries an IAM token that IBM Cloud issues for the key."""

    def storage(self) -> tuple[str, dict[str, Any]]:
        if self._by_token():
            raise DataError(f"{self.kind.title}: programs cannot stream with an 'api_key'; remove 'access' to "
                            "download the files, or use HMAC keys (access_key_id and secret_access_key)")
        return super().storage()

    def _new_client(self) -> Any:
        client = super()._new_client()
        if self._by_token():
            for name in ("endpoint_url", "iam_url"):
                self._check_secrecy(name)
            address = self.values.get("iam_url") or iam.TOKENS
            self.reach(address)
            self._tokens = iam.Tokens(self.kind.title, self.values["api_key"], address)
            client.meta.events.register("before-send.s3", self._let_in)
        return client

    def _by_token(self) -> bool:
        return bool(self.values.get("api_key")) and not self.values.get("access_key_id")

    def _check_secrecy(self, name: str) -> None:
        """Raise DataError for an address that would receive the key or the token in clear."""
        if urlsplit(self.values.get(name, "")).scheme == "http" and not self.loopback:
            raise DataError(f"{self.kind.title}: '{name}' must be https, because http sends the key unencrypted")

    def _let_in(self, request: Any, **_: Any) -> None:
        request.headers["Authorization"] = f"Bearer {self._tokens.current()}"
        if self.values.get("resource_instance_id"):
            # The service instance whose buckets the server lists.
            request.headers["ibm-service-instance-id"] = self.values["resource_instance_id"]


COS = Kind("cos", "IBM Cloud Object Storage", Cos, fields=(
    Field("endpoint_url", "URL of the server, such as https://s3.eu-de.cloud-object-storage.appdomain.cloud",
          required=True, aliases=("url", "endpoint", "host"), schemes=SCHEMES, bare=True),
    Field("api_key", "API key of IBM Cloud, instead of access key and secret", secret=True,
          aliases=("apikey", "ibm_api_key_id")),
    Field("resource_instance_id", "id of the storage service, to test a connection with an API key and no bucket",
          aliases=("service_instance_id", "ibm_service_instance_id")),
    Field("iam_url", f"service that issues tokens for API keys (default {iam.TOKENS})",
          aliases=("ibm_auth_endpoint",), schemes=SCHEMES),
    *KEYS,
), aliases=("bluemixcloudobjectstorage", "cloudobjectstorage", "cloud-object-storage", "ibm-cos"),
    tested="moto; `api_key`: moto behind a stand-in for IBM Cloud, never the real service", **NEEDS)
