"""A real server of the HiveServer2 protocol: that of Spark, from the jars of the package pyspark 3.5."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from server_process import NotThere, free_port, jars, java, listens, running

PASSWORD = "5 apples"
#: An authentication provider that accepts any user with the right password.
_KEEPER = """
public class Keeper implements org.apache.hive.service.auth.PasswdAuthenticationProvider {
    public void Authenticate(String user, String password) throws javax.security.sasl.AuthenticationException {
        if (!"5 apples".equals(password)) throw new javax.security.sasl.AuthenticationException("wrong");
    }
}
"""


@dataclass
class HiveServer:
    """A server that listens on loopback and requires the password."""

    port: int

    def ask(self, *statements: str) -> None:
        """Execute statements as a user."""
        from pyhive import hive

        with hive.connect("127.0.0.1", self.port, username="ada", password=PASSWORD, auth="CUSTOM") as connection:
            cursor = connection.cursor()
            for statement in statements:
                cursor.execute(statement)


@contextmanager
def serving() -> Iterator[HiveServer]:
    """Run a server without tables. Raises NotThere."""
    found = jars("TEST_SPARK_JARS", "spark-hive-thriftserver_*.jar")
    if shutil.which("javac") is None:
        raise NotThere("javac is not on PATH")
    with tempfile.TemporaryDirectory(prefix="hive-") as name:
        folder = Path(name)
        (folder / "Keeper.java").write_text(_KEEPER)
        subprocess.run(["javac", "-cp", f"{found}/*", "Keeper.java"], cwd=folder, check=True)
        port = free_port()
        settings = {"hive.server2.thrift.port": port, "hive.server2.thrift.bind.host": "127.0.0.1",
                    "hive.server2.authentication": "CUSTOM",
                    "hive.server2.custom.authentication.class": "Keeper"}
        command = [
            *java([folder, f"{found}/*"]), "org.apache.spark.deploy.SparkSubmit", "--master", "local[1]",
            "--class", "org.apache.spark.sql.hive.thriftserver.HiveThriftServer2",
            *(f"--conf=spark.{setting}" for setting in ("ui.enabled=false", "driver.host=127.0.0.1",
                                                         "driver.bindAddress=127.0.0.1", "sql.shuffle.partitions=1")),
            "spark-internal", *(part for key, value in settings.items() for part in ("--hiveconf", f"{key}={value}"))]
        with running(command, lambda: listens(port), folder):
            yield HiveServer(port)
