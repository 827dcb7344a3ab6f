"""MLflow and Aim with the same runs, fewer steps (a full import takes too long), and their pages that match ours."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

#: Number of runs with all steps, which pages open; steps of each other run, which only the table shows.
LONG, FEW = 21, 100
#: Maximum seconds of an import, and of the start of a server.
_FILLING, _STARTING = 300.0, 240.0
_HERE = Path(__file__).parent

#: Name of a page → its address, and a function of JavaScript that returns whether the page shows everything.
Pages = dict[str, tuple[str, str]]


@dataclass(frozen=True)
class Peer:
    """A product with its environment. `pages` asks its server, which has an address."""

    name: str
    python: Path
    fill: str
    store: Callable[[Path], str]
    serve: Callable[[Path, Path, int], list[str]]
    pages: Callable[[str], Pages]

    def filled(self, folder: Path, runs: int, steps: int) -> None:
        """Fill a store in a folder, unless it has been filled. Raises subprocess.SubprocessError."""
        if (folder / "filled").exists():
            return
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run([self.python, _HERE / self.fill, self.store(folder), *map(str, (runs, steps, LONG, FEW))],
                       check=True, timeout=_FILLING, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder)
        (folder / "filled").touch()

    @contextmanager
    def served(self, folder: Path) -> Iterator[str]:
        """Return a context with the address of the server. Raises OSError."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        process = subprocess.Popen(self.serve(self.python.parent, folder, port), cwd=folder, start_new_session=True,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            _wait_for(f"http://127.0.0.1:{port}/")
            yield f"http://127.0.0.1:{port}"
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_for(url: str) -> None:
    end = time.monotonic() + _STARTING
    while True:
        try:
            return urllib.request.urlopen(url, timeout=5).close()
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


def _asked(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def _mlflow_pages(base: str) -> Pages:
    found = _asked(f"{base}/api/2.0/mlflow/runs/search", {"experiment_ids": ["1"], "max_results": LONG})
    ids = [one["info"]["run_id"] for one in found["runs"]]
    table = f"{base}/#/experiments/1/runs"
    query = "&".join(f"{name}={quote(json.dumps(value))}" for name, value in (
        ("runs", ids[:20]), ("metric", "loss"), ("experiments", ["1"]), ("plot_metric_keys", ["loss"])))

    def curves(count: int) -> str:
        return f"() => document.querySelectorAll('.js-plotly-plot .scatterlayer .trace').length >= {count}"

    return {
        "runs table": (table, "() => document.querySelectorAll('[role=row] a').length >= 10"),
        "run": (f"{table}/{ids[0]}/model-metrics", curves(1)),
        "compare 10 runs (chart view)": (f"{table}?compareRunsMode=CHART", curves(10)),
        "compare 20 runs": (f"{base}/#/metric?{query}", curves(20)),
    }


def _aim_pages(base: str) -> Pages:
    with urllib.request.urlopen(f"{base}/api/experiments/", timeout=60) as answer:
        experiment = next(one["id"] for one in json.load(answer) if one["name"] == "bench")
    with urllib.request.urlopen(f"{base}/api/experiments/{experiment}/runs?limit={LONG}", timeout=60) as answer:
        ids = [one["run_id"] for one in json.load(answer)["runs"]][:LONG]
    wanted = f"metric.name == \"loss\" and run.hash in {json.dumps(ids[:20])}"
    select = {"options": [], "query": "", "advancedMode": True, "advancedQuery": wanted}
    text = base64.b64encode(quote(json.dumps(select), safe=";,/?:@&=+$-_.!~*'()#").encode()).decode()
    coded = "O-" + text.replace("=", "").replace("+", "-").replace("/", "_")
    return {
        "runs table": (f"{base}/runs", "() => document.querySelectorAll('a[href*=\"/runs/\"]').length >= 10"),
        "run": (f"{base}/runs/{ids[0]}/metrics", "() => document.querySelectorAll('svg path.Line').length >= 1"),
        "compare 20 runs": (f"{base}/metrics?select={coded}",
                            "() => document.querySelectorAll('svg path.Line').length >= 20"),
    }


def mlflow(python: Path) -> Peer:
    """Return MLflow with its server and a store in SQLite."""
    def store(folder: Path) -> str:
        return f"sqlite:///{folder}/mlflow.db"

    return Peer("MLflow", python, "fill_mlflow.py", store, lambda binaries, folder, port: [
        str(binaries / "mlflow"), "server", "--backend-store-uri", store(folder), "--host", "127.0.0.1", "--port",
        str(port), "--workers", "1", "--default-artifact-root", str(folder)], _mlflow_pages)


def aim(python: Path) -> Peer:
    """Return Aim with its server."""
    return Peer("Aim", python, "fill_aim.py", str, lambda binaries, folder, port: [
        str(binaries / "aim"), "up", "--repo", str(folder), "--host", "127.0.0.1", "--port", str(port)], _aim_pages)
