"""A server with an exec in every state that clients see."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from described import Described
from live_server import PASSWORD, TOKEN, Live, settings_for
from raw_http import Wire

SINGLE = "--exec-start%20PyTorch%20--model-main%20main.py"
ELASTIC = "--exec-start%20edtPyTorch%20--model-main%20main.py%20--numWorker%202%20--workerMemory%208g"
DISTRIBUTED = "--exec-start%20distPyTorch%20--model-main%20main.py%20--numWorker%202"


@dataclass
class World:
    """Ids of execs, by their state. `wire` sends requests to the server, `live` is the server itself."""

    wire: Wire
    live: Live
    user: str
    password: str
    waiting: str
    running: str
    elastic: str
    finished: str
    killed: str
    failed: str

    @property
    def ids(self) -> dict[str, str]:
        """Map the name of each exec to its id."""
        names = ("waiting", "running", "elastic", "finished", "killed", "failed")
        return {name: getattr(self, name) for name in names}

    def states(self) -> dict[str, str]:
        """Map each state that the server must show to the id of an exec."""
        return {"SUBMITTED": self.waiting, "RUNNING": self.running, "FINISHED": self.finished,
                "KILLED": self.killed, "ERROR": self.failed}


def make_world(home: Path) -> World:
    """Start the server. The caller ends it with `close` of `live`."""
    live = Live(settings_for(home))
    wire = Wire(live.port, TOKEN)
    wire.described = Described(wire.ask("GET", "/openapi.json").json())
    kinds = [SINGLE, DISTRIBUTED, ELASTIC, SINGLE, SINGLE, SINGLE]
    ids = [wire.upload(f"{args}%20--epochs%201").json()["id"] for args in kinds]
    _waiting, running, elastic, finished, killed, failed = ids
    live.run_on(running, "cpu-0", "cpu-1")
    live.run_on(elastic, "cpu-0", "cpu-1")
    for exec_id, state in ((finished, "FINISHED"), (killed, "KILLED"), (failed, "ERROR")):
        live.run_on(exec_id, "cpu-0")
        live.move(exec_id, state)
    _write_logs(live, running, ("task12n-1", "task12n-2"), False)
    _write_logs(live, finished, ("task12n-1",), False)
    _write_logs(live, elastic, ("task0", "task12n-1", "task12n-2"), True)
    (live.paths(finished).model / "final.pth").write_bytes(b"weights")
    return World(wire, live, "alice", PASSWORD, *ids)


def _write_logs(live: Live, exec_id: str, tasks: tuple[str, ...], elastic: bool) -> None:
    paths = live.paths(exec_id)
    paths.launcher_log.write_text("".join(f"launcher line {n}\n" for n in range(1, 13)))
    for task in tasks:
        for stream in ("stdout", "stderr"):
            file = paths.capture(task, stream, elastic)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("".join(f"{task} {stream} {n}\n" for n in range(1, 13)))
