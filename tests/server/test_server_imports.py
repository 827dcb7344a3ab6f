"""The server process imports no library for data: it checks data sources, and other processes fetch the data."""

from __future__ import annotations

import subprocess
import sys

LIBRARIES = {
    "pyarrow", "fsspec", "pandas", "boto3", "botocore", "s3fs", "adlfs", "azure", "gcsfs", "asyncssh", "pymysql",
    "psycopg", "adbc_driver_postgresql", "pymongo", "cassandra", "aiohttp", "numpy", "torch",
}
PROBE = """
import sys
import local_backend.serving.server, local_backend.runtime.supervisor, local_backend.api.app
from local_backend.data import registry
for kind in registry.every().values():
    assert registry.find(kind.name) is kind and all(registry.find(alias) is kind for alias in kind.aliases), kind.name
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


def test_the_server_imports_no_data_library() -> None:
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=90, check=True)
    assert not LIBRARIES & set(done.stdout.split())
