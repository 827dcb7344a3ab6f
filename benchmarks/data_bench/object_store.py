"""Download one large object from a local S3 server: ours against boto3's transfer and against fsspec (s3fs) alone.

Each download is a process of its own. The three ways take turns, and each downloads to a folder that is removed
afterwards. Imports and the first request are not measured. Ours computes the checksum of the whole object and can
resume after a crash; the others do neither. Prints one table, or with --json one object. Target: at least 0.9 of the
throughput of the faster of the two others. The best round of each counts, because other processes of the machine
disturbed it the least.

The server is `s3rver` (`npm install -g s3rver`), or an existing server with --server.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
KEY, BUCKET, OBJECT, REGION = "S3RVER", "bench", "big", "us-east-1"
_PIECE = 1 << 20

_MEASURE = '''
import json, resource, sys, time
from pathlib import Path
folder = Path({folder!r})
{prepare}
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
began = time.perf_counter()
{run}
seconds = time.perf_counter() - began
used = resource.getrusage(resource.RUSAGE_SELF)
cpu = used.ru_utime + used.ru_stime
print(json.dumps({{"seconds": seconds, "cpu": cpu, "grown_mb": (used.ru_maxrss - peak) / 1024}}))
'''
_WAYS = {
    "ours": ('''
from local_backend.data import registry
from local_backend.data.cache import Cache
from local_backend.data.download import download
class Nobody:
    def expect(self, *_): pass
    def resume(self, *_): pass
    def advance(self, *_): pass
    def say(self, *_): pass
    def check(self): pass
import boto3, botocore.config
values = {{"endpoint_url": "{url}", "access_key_id": "{key}", "secret_access_key": "{key}"}}
family = registry.find("s3").open(values, loopback=True)
cache = Cache(folder / "cache", 1 << 50)
cache.entry("s3", {{}}, [], "")
list(family.entries({{"bucket": "{bucket}", "path": "{object}"}}))
''', 'download(family, {{"bucket": "{bucket}", "path": "{object}"}}, folder / "view", cache, Nobody())'),
    "boto3": ('''
import boto3
client = boto3.client("s3", endpoint_url="{url}", region_name="{region}", aws_access_key_id="{key}",
                      aws_secret_access_key="{key}")
client.head_object(Bucket="{bucket}", Key="{object}")
''', 'client.download_file("{bucket}", "{object}", str(folder / "big"))'),
    "fsspec": ('''
import s3fs
files = s3fs.S3FileSystem(key="{key}", secret="{key}",
                          client_kwargs={{"endpoint_url": "{url}", "region_name": "{region}"}})
files.info("{bucket}/{object}")
''', 'files.get_file("{bucket}/{object}", str(folder / "big"))'),
}


def measure(way: str, url: str, size: int) -> dict[str, float]:
    """Return the seconds, the CPU seconds and the growth of memory in MB of one download. Checks the size of the
    result."""
    with tempfile.TemporaryDirectory() as folder:
        words = {"url": url, "key": KEY, "bucket": BUCKET, "object": OBJECT, "region": REGION}
        prepare, run = (text.format(**words) for text in _WAYS[way])
        code = _MEASURE.format(folder=folder, prepare=prepare, run=run)
        found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True,
                               env=os.environ | {"PYTHONPATH": str(ROOT)})
        path = Path(folder) / ("view" if way == "ours" else "") / "big"
        assert path.stat().st_size == size, f"{way} brought {path.stat().st_size} bytes of {size}"
        return dict(json.loads(found.stdout))


@contextlib.contextmanager
def server(given: str) -> Iterator[str]:
    """Yield the URL of a server."""
    if given:
        yield given
        return
    program = shutil.which("s3rver")
    if program is None:
        sys.exit("there is no s3rver on PATH; npm install -g s3rver, or name a server with --server URL")
    with tempfile.TemporaryDirectory() as folder, socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
        found.close()
        process = subprocess.Popen([program, "-d", folder, "-p", str(port), "--silent"], stdout=subprocess.DEVNULL)
        try:
            _wait(port)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()
            process.wait()


def _wait(port: int) -> None:
    for _ in range(300):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    sys.exit("s3rver does not answer")


def upload(url: str, size: int) -> None:
    """Upload the object. Its bytes do not compress."""
    import boto3

    client = boto3.client("s3", endpoint_url=url, region_name=REGION, aws_access_key_id=KEY, aws_secret_access_key=KEY)
    with contextlib.suppress(client.exceptions.BucketAlreadyOwnedByYou, client.exceptions.BucketAlreadyExists):
        client.create_bucket(Bucket=BUCKET)
    with tempfile.NamedTemporaryFile() as file:
        for _ in range(0, size, _PIECE):
            file.write(os.urandom(_PIECE))
        file.flush()
        client.upload_file(file.name, BUCKET, OBJECT)


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mebibytes", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--server", default="", help="URL of an S3 server whose key and secret are both S3RVER")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    size = asked.mebibytes * _PIECE
    runs: dict[str, list[dict[str, float]]] = {way: [] for way in _WAYS}
    with server(asked.server) as url:
        upload(url, size)
        for _ in range(asked.rounds):
            for way in _WAYS:
                runs[way].append(measure(way, url, size))
    found: dict[str, Any] = {
        way: {"mb_per_s": size / 1e6 / min(one["seconds"] for one in measured)}
        | {name: min(one[name] for one in measured) for name in ("cpu", "grown_mb")}
        for way, measured in runs.items()
    }
    found["ratio"] = found["ours"]["mb_per_s"] / max(found["boto3"]["mb_per_s"], found["fsspec"]["mb_per_s"])
    if asked.json:
        print(json.dumps(found))
        return
    print("| way | MB/s | CPU s | memory grown, MB |\n|---|---|---|---|")
    for way in _WAYS:
        print(f"| {way} | {found[way]['mb_per_s']:.0f} | {found[way]['cpu']:.2f} | {found[way]['grown_mb']:.0f} |")
    print(f"\nratio {found['ratio']:.2f} (target 0.9)")


if __name__ == "__main__":
    main()
