"""Submissions and previews of data sources, as clients send them."""

from __future__ import annotations

import json
from typing import Any

from live_server import Answer, Live, quoted

from local_backend.workload import Workload

START = "--exec-start PyTorch --model-main main.py"
FS = {"type": "fs", "location": {"paths": "mnist"}}


def form(live: Live, data: dict[str, Any] | str) -> Answer:
    """POST /execs with a urlencoded field `data`, as clients do if they upload nothing."""
    body = f"data={quoted(data if isinstance(data, str) else json.dumps(data))}".encode()
    return live.call("POST", "/execs", body, {"Content-Type": "application/x-www-form-urlencoded"})


def job(live: Live, answer: Answer) -> Workload:
    assert answer.status == 200, answer.text
    return live.row(answer.json()["id"]).workload


def submit(live: Live, *sources: Any) -> Answer:
    return live.submit(START, {"main.py": b""}, json.dumps({"dataSource": list(sources)}))


def look(live: Live, *sources: Any, **more: str) -> Answer:
    return live.call("POST", "/data/preview", json.dumps({"dataSource": list(sources)}).encode(),
                     {"Content-Type": "application/json"}, **more)
