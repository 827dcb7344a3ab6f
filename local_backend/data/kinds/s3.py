"""S3 and servers with its protocol, through boto3: boto3 pins range reads to an ETag, fsspec does not."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from dlicmd.contract.data_sources import BUCKET
from local_backend.data.errors import DataChanged, DataError, DataUnavailable, in_words
from local_backend.data.kind import Field, FileFamily, Kind, SourceFile
from local_backend.data.locations import path_below, paths_of

#: Bytes of a piece. If the connection breaks, the received bytes of a piece are lost.
_PIECE = 1 << 20
#: Connections of a client: at least one for each thread that reads at once.
_CONNECTIONS = 32
_WRONG_KEY = {"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "ExpiredToken", "403", "AccessDenied"}
_MISSING = {"404", "NoSuchKey", "NoSuchBucket", "NotFound"}
_CHANGED = {"412", "PreconditionFailed"}
_PASSING = {"SlowDown", "InternalError", "RequestTimeout", "ServiceUnavailable", "Throttling", "500", "502", "503",
            "504"}


class BucketFamily(FileFamily):
    """Buckets of S3, IBM Cloud Object Storage and similar servers."""

    tops = (BUCKET,)
    literal = True

    def __init__(self, kind: Kind, values: Mapping[str, str]) -> None:
        super().__init__(kind, values)
        self._made: Any = None
        self._lock = threading.Lock()

    def test(self) -> None:
        with self._told(self.values.get("bucket", "")):
            if self.values.get("bucket"):
                self._client().head_bucket(Bucket=self.values["bucket"])
            else:
                self._client().list_buckets()

    def close(self) -> None:
        if self._made is not None:
            self._made.close()

    def files(self, location: Mapping[str, Any]) -> Iterator[SourceFile]:
        bucket, asked = self.top(location), paths_of(location)
        for path in asked or [""]:
            found = False
            for name in self.spellings(path):
                for key, size, version in self._below(bucket, name):
                    found = True
                    yield SourceFile(path_below(name, len(asked) > 1, key), f"{bucket}/{key}", size, version)
                if found:
                    break
            if not found:
                raise DataError(f"there is no '{path}' in the bucket {bucket}" if path
                                else f"the bucket {bucket} is empty")

    def read(self, file: SourceFile, start: int, end: int | None) -> Generator[bytes, None, None]:
        bucket, _, key = file.key.partition("/")
        wanted = {"Range": f"bytes={start}-{'' if end is None else end - 1}"} if file.size else {}
        with self._told(file.key):
            body = self._client().get_object(Bucket=bucket, Key=key, IfMatch=file.version, **wanted)["Body"]
            try:
                while piece := body.read(_PIECE):
                    yield piece
            finally:
                body.close()

    def storage(self) -> tuple[str, dict[str, Any]]:
        client = {"endpoint_url": self.values.get("endpoint_url"), "region_name": self.values.get("region")}
        key = {"key": self.values.get("access_key_id"), "secret": self.values.get("secret_access_key"),
               "token": self.values.get("session_token")}
        options: dict[str, Any] = {name: value for name, value in key.items() if value} or {"anon": True}
        return "s3", options | {"client_kwargs": {name: value for name, value in client.items() if value}}

    def _below(self, bucket: str, path: str) -> Iterator[tuple[str, int, str]]:
        """Yield key, size and ETag of the object `path`, or of all objects below it."""
        from botocore.exceptions import ClientError

        with self._told(f"{bucket}/{path}".rstrip("/")):
            if path and not path.endswith("/"):
                try:
                    head = self._client().head_object(Bucket=bucket, Key=path)
                except ClientError as problem:
                    if _code(problem) not in _MISSING:
                        raise
                else:
                    yield path, head["ContentLength"], head["ETag"]
                    return
            prefix = f"{path.rstrip('/')}/" if path else ""
            for page in self._client().get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
                for item in page.get("Contents", ()):
                    # Consoles represent a folder by an empty object with a trailing slash.
                    if not item["Key"].endswith("/"):
                        yield item["Key"], item["Size"], item["ETag"]

    def _client(self) -> Any:
        with self._lock:
            if self._made is None:
                self._made = self._new_client()
            return self._made

    def _new_client(self) -> Any:
        import boto3
        from botocore import UNSIGNED
        from botocore.config import Config

        values, endpoint = self.values, self.values.get("endpoint_url")
        if endpoint and "://" not in endpoint:
            endpoint = f"https://{endpoint}"
        if endpoint:
            self.reach(endpoint)
        known = bool(values.get("access_key_id"))
        config = Config(
            max_pool_connections=_CONNECTIONS, connect_timeout=10, read_timeout=30, retries={"total_max_attempts": 2},
            # Only Amazon is certain to accept bucket names in the host name.
            s3={"addressing_style": "path" if endpoint else "auto"},
            **({} if known else {"signature_version": UNSIGNED}),
        )
        try:
            return boto3.session.Session().client(
                "s3", endpoint_url=endpoint, region_name=values.get("region") or "us-east-1", config=config,
                aws_access_key_id=values.get("access_key_id"), aws_session_token=values.get("session_token"),
                aws_secret_access_key=values.get("secret_access_key"),
            )
        except ValueError as problem:
            raise DataError(f"{self.kind.title}: {problem}") from None

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        """Translate errors of the library."""
        from botocore.exceptions import (
            BotoCoreError,
            ClientError,
            ConnectionError,
            HTTPClientError,
            ParamValidationError,
        )
        from urllib3.exceptions import HTTPError

        where = self.values.get("endpoint_url") or "S3"
        try:
            yield
        except ClientError as problem:
            raise self._refused(problem, what, where) from None
        except ParamValidationError as problem:
            raise DataError(f"{where}: {' '.join(str(problem).split())}") from None
        except (ConnectionError, HTTPClientError, HTTPError, OSError) as problem:
            # Reading a body raises one of the last two when the connection breaks.
            raise DataUnavailable(f"{where} does not answer: {in_words(problem)}") from None
        except BotoCoreError as problem:
            raise DataUnavailable(f"the request to {where} failed: {' '.join(str(problem).split())[:200]}") from None

    def _refused(self, problem: Any, what: str, where: str) -> DataError:
        code = _code(problem)
        if code in _CHANGED:
            return DataChanged(f"{what} changed while it was read")
        if code in _MISSING:
            return DataError(f"there is no {what} at {where}")
        if code in _WRONG_KEY:
            return DataError(f"{where} denies access to {what or 'it'} with this access key ({code})")
        kind = DataUnavailable if code in _PASSING else DataError
        return kind(f"{where} answers {code} for {what}: {problem.response.get('Error', {}).get('Message', '')[:200]}")


def _code(problem: Any) -> str:
    return str(problem.response.get("Error", {}).get("Code", ""))


KEYS = (
    Field("access_key_id", "access key; without a key, only public buckets can be read", aliases=("access_key", "key")),
    Field("secret_access_key", "secret of the access key", secret=True, aliases=("secret_key", "secret")),
    Field("session_token", "token of a temporary access key", secret=True, aliases=("token",)),
    Field("region", "region of the buckets", aliases=("region_name",)),
    Field("bucket", "default bucket, for locations that name none"),
)
NEEDS: dict[str, Any] = {"extra": "s3", "modules": ("boto3",)}
SCHEMES = ("https", "http")

S3 = Kind(
    "s3", "Amazon S3", BucketFamily, fields=(Field("endpoint_url", "URL of the server, if it is not a server of Amazon",
                                     aliases=("url", "endpoint", "host"), schemes=SCHEMES, bare=True), *KEYS),
    aliases=("amazon-s3", "amazons3", "generic-s3", "minio"), tested="moto", **NEEDS,
)
