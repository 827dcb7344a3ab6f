"""Download of a file that is much larger than the memory limit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from range_server import Site, serving

SIZE = 5 * 10**9
MEMORY = 200 * 2**20
_PATTERN = bytes(range(251)) * (2 * 2**20 // 251)
_FETCH = """
import json, resource, sys
from pathlib import Path
sys.path.insert(0, {here!r})
from fetching_desk import Desk
desk = Desk(Path({folder!r}))
found = desk.get("http", {{"url": {url!r}}}, {{"paths": "large"}})
print(json.dumps([found.size, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024]))
"""


class Large(bytes):
    """SIZE bytes of a repeated pattern, computed on access instead of stored."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, part: slice) -> bytes:  # type: ignore[override]
        start = part.start % 251
        return _PATTERN[start:start + part.stop - part.start]


class Steady(Site):
    def etag(self, path: str) -> str:
        return '"the one version"'


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_download_of_a_large_file_uses_little_memory(tmp_path: Path) -> None:
    with serving(Steady(files={"/large": Large()})) as site:
        code = _FETCH.format(here=str(Path(__file__).parent), folder=str(tmp_path), url=site.url)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    size, peak = json.loads(done.stdout)
    assert size == SIZE and peak < MEMORY, f"{peak / 2**20:.0f} MiB"
    with (tmp_path / "job-1" / "large").open("rb") as file:
        for at in (0, 8 * 2**20 - 5, SIZE // 2, SIZE - 999):
            file.seek(at)
            assert file.read(999) == _PATTERN[at % 251:at % 251 + 999]
