"""Load by `wrk`, a generator that is not ours: https://github.com/wg/wrk."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0}


@dataclass(frozen=True)
class Measured:
    """What one run of the generator measured. Times are seconds."""

    rate: float
    p50: float
    p99: float
    #: Answers that were no success, and connections that failed.
    errors: int


def load(url: str, body: Any, headers: dict[str, str], connections: int, seconds: float) -> Measured:
    """Send the same request on so many connections for so long, each one as soon as the last one is answered."""
    fields = {"Content-Type": "application/json"} | headers
    lines = ['wrk.method = "POST"', f"wrk.body = {json.dumps(json.dumps(body))}",
             *(f"wrk.headers[{json.dumps(name)}] = {json.dumps(value)}" for name, value in fields.items())]
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "request.lua"
        script.write_text("\n".join(lines))
        command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds:g}s", "--timeout", "30s", "--latency", "-s",
                   str(script), url]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return _read(said)


def _read(said: str) -> Measured:
    rate = float(re.search(r"Requests/sec:\s+([\d.]+)", said)[1])
    found = {name: float(number) * _UNITS[unit] for name, number, unit in
             re.findall(r"^\s+(50|99)%\s+([\d.]+)(us|ms|s|m)$", said, re.MULTILINE)}
    errors = re.findall(r"(?:Non-2xx or 3xx responses: |connect |read |write |timeout )(\d+)", said)
    return Measured(rate, found.get("50", 0.0), found.get("99", 0.0), sum(map(int, errors)))
