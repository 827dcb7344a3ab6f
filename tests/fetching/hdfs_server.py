"""A real HDFS: the name node and a data node of Apache Hadoop 2.7.

The jars come from the package pyspark 2.4, which contains all of Hadoop. Debian's libjersey1-servlet-java and
libjersey1-server-java add the missing ones.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import requests
from server_process import NotThere, free_port, jars, java, running
from support import PATIENCE

#: Prefixes of the needed jars. The folder has more than 200 jars, and its newer Jersey must not be loaded.
_NEEDED = (
    "activation", "commons-", "guava-", "hadoop-", "htrace-", "httpc", "jackson-core-asl", "jackson-jaxrs",
    "jackson-mapper-asl", "jackson-xc", "javax.servlet-api", "jaxb-api", "jetty-", "leveldbjni", "log4j-1", "netty-",
    "protobuf-java", "slf4j", "xbean", "xercesImpl", "xmlenc",
)
_JERSEY = ("jersey1-core", "jersey1-server", "jersey1-servlet", "jsr311-api")


@dataclass
class HdfsServer:
    """An HDFS cluster on one machine, with full access for this process."""

    url: str

    def put(self, path: str, data: bytes, **more: str) -> None:
        """Write a file with these bytes."""
        asked = requests.put(self._at(path), params=self._as_root(op="CREATE", **more), allow_redirects=False,
                             timeout=PATIENCE)
        assert asked.status_code == 307, asked.text
        requests.put(asked.headers["Location"], data=data, timeout=PATIENCE).raise_for_status()

    def close(self, path: str) -> None:
        """Restrict a folder to its owner."""
        asked = self._as_root(op="SETPERMISSION", permission="700")
        requests.put(self._at(path), params=asked, timeout=PATIENCE).raise_for_status()

    def ready(self) -> bool:
        """Return whether the cluster accepts writes."""
        try:
            self.put("/ready", b"", overwrite="true")
        except (AssertionError, requests.RequestException):
            return False
        return True

    def _at(self, path: str) -> str:
        return f"{self.url}/webhdfs/v1{quote(path)}"

    def _as_root(self, **asked: str) -> dict[str, str]:
        # The user that started HDFS is its superuser.
        return asked | {"user.name": os.environ.get("USER") or subprocess.getoutput("id -un")}


@contextlib.contextmanager
def hdfs_server() -> Iterator[HdfsServer]:
    """Run an HDFS cluster. Raises NotThere."""
    found = jars("TEST_HADOOP_JARS", "hadoop-hdfs-2.*.jar")
    path = [*(jar for name in _NEEDED for jar in sorted(found.glob(f"{name}*.jar"))),
            *(Path(f"/usr/share/java/{name}.jar") for name in _JERSEY)]
    if not all(jar.exists() for jar in path):
        raise NotThere("/usr/share/java lacks Jersey 1 (on Debian: libjersey1-servlet-java and "
                       "libjersey1-server-java)")
    with tempfile.TemporaryDirectory(prefix="hdfs-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        server = HdfsServer(f"http://127.0.0.1:{free_port()}")
        _settings(folder, server.url.removeprefix("http://"))
        begun = [*java([folder / "conf", *path], f"-Dhadoop.home.dir={folder}")]
        made = subprocess.run([*begun, "org.apache.hadoop.hdfs.server.namenode.NameNode", "-format", "-nonInteractive"],
                              capture_output=True, text=True, check=False)
        if made.returncode != 0:
            raise NotThere(f"the HDFS in {found} does not run: {made.stderr[-1000:]}")
        node = "org.apache.hadoop.hdfs.server.{}Node"
        stack.enter_context(running([*begun, node.format("namenode.Name")], lambda: _answers(server.url), folder))
        stack.enter_context(running([*begun, node.format("datanode.Data")], server.ready, folder))
        yield server


def _answers(url: str) -> bool:
    with contextlib.suppress(requests.RequestException):
        return requests.get(f"{url}/webhdfs/v1/", params={"op": "LISTSTATUS"}, timeout=5).ok
    return False


def _settings(folder: Path, web: str) -> None:
    """Write the settings of both nodes, and the web applications that they require and no jar contains."""
    own = "127.0.0.1:0"
    settings = {
        "fs.defaultFS": f"hdfs://127.0.0.1:{free_port()}", "dfs.namenode.name.dir": f"file://{folder}/name",
        "dfs.datanode.data.dir": f"file://{folder}/data", "dfs.namenode.http-address": web,
        "dfs.datanode.address": own, "dfs.datanode.http.address": own, "dfs.datanode.ipc.address": own,
        "dfs.datanode.hostname": "127.0.0.1", "dfs.replication": 1, "dfs.blocksize": 2**20}
    text = "".join(f"<property><name>{key}</name><value>{value}</value></property>" for key, value in settings.items())
    for app in ("hdfs", "datanode", "static"):
        (folder / "conf" / "webapps" / app / "WEB-INF").mkdir(parents=True)
        (folder / "conf" / "webapps" / app / "WEB-INF" / "web.xml").write_text("<web-app/>")
    (folder / "conf" / "log4j.properties").write_text(
        "log4j.rootLogger=WARN,out\nlog4j.appender.out=org.apache.log4j.ConsoleAppender\n"
        "log4j.appender.out.layout=org.apache.log4j.SimpleLayout\n")
    for name in ("core-site.xml", "hdfs-site.xml"):
        (folder / "conf" / name).write_text(f"<configuration>{text}</configuration>")
