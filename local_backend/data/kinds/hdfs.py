"""HDFS over its REST interface (WebHDFS), through fsspec, without Java on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from local_backend.data.errors import DataError
from local_backend.data.kind import Field, Kind
from local_backend.data.kinds.filesystem import Folders


class Hdfs(Folders):
    """Folders of a Hadoop cluster."""

    protocol = "webhdfs"

    def storage_options(self) -> dict[str, Any]:
        address = self.values["url"]
        parts = urlsplit(address if "://" in address else f"http://{address}")
        secure = parts.scheme in ("https", "swebhdfs")
        try:
            port = parts.port or (9871 if secure else 9870)
        except ValueError:
            raise DataError("the port in the 'url' is not a number") from None
        if not parts.hostname:
            raise DataError("the 'url' names no host; write http://NAMENODE:9870")
        found: dict[str, Any] = {"host": parts.hostname, "port": port, "use_https": secure}
        for ours, theirs in (("username", "user"), ("password", "password"), ("token", "token")):
            if self.values.get(ours):
                found[theirs] = self.values[ours]
        return found

    def options(self) -> dict[str, Any]:
        found = self.storage_options()
        self.reach(f"{'https' if found['use_https'] else 'http'}://{found['host']}:{found['port']}")
        return found

    def top(self, location: Mapping[str, Any]) -> str:
        return "/" + self.values.get("folder", "").strip("/") if self.values.get("folder", "").strip("/") else ""


HDFS = Kind(
    "hdfs", "HDFS", Hdfs, extra="hdfs", modules=("fsspec", "requests"), tested="Hadoop 2.7, by hand",
    fields=(Field("url", "address of the name node's web server: http://NAMENODE:9870", required=True,
                  aliases=("host", "webhdfs_url"), schemes=("http", "https", "webhdfs", "swebhdfs"), bare=True),
            Field("username", "user of HDFS", aliases=("user",)),
            Field("password", "password of the user, if a gateway requires one", secret=True),
            Field("token", "delegation token", secret=True),
            Field("folder", "folder that paths are relative to", aliases=("root", "path"))),
    aliases=("webhdfs", "hadoop", "apache-hdfs"),
)
