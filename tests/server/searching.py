"""A server that runs searches, whose execs end as a test says."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

from live_server import TOKEN, Answer, Live, multipart, tar
from support import eventually

from dlicmd.contract.states import ERROR, FINISHED, KILLED, PENDING, RUNNING
from local_backend.store import searches

RATE = {"name": "rate", "type": "Range", "dataType": "DOUBLE", "minDbVal": 0.001, "maxDbVal": 0.1, "minIntVal": 0,
        "maxIntVal": 0, "discreteDbVal": [], "discreteIntVal": [], "discreateStrVal": []}
ARGS = "--exec-start PyTorch --model-main main.py"


def definition(
    name: str | None = "s", args: str = ARGS, space: list[dict[str, Any]] | None = None, **algo: Any
) -> dict[str, Any]:
    """Return a search by Random."""
    named = {} if name is None else {"hpoName": name}
    return named | {
        "modelSpec": {"args": args},
        "algoDef": {"algorithm": "Random", "maxJobNum": 2, "maxParalleJobNum": 2, "objectiveMetric": "loss",
                    "objective": "minimize"} | algo,
        "hyperParams": [RATE] if space is None else space,
    }


class Searching:
    """Calls about searches, and the ends of their execs."""

    def __init__(self, live: Live) -> None:
        self.live = live

    def post(self, asked: Any, files: dict[str, bytes] | None = None, part: str = "file", **more: Any) -> Answer:
        text = asked if isinstance(asked, str) else json.dumps(asked)
        sent = {"main.py": b"print(1)\n"} if files is None else files
        body, kind = multipart([("data", None, text.encode()), *((part, name, data) for name, data in sent.items())])
        headers = {"Content-Type": kind, **more.pop("headers", {})}
        return self.live.call("POST", more.pop("path", "/hypersearch"), body, headers, **more)

    def begin(self, **asked: Any) -> str:
        """Start a search, and return its name."""
        answer = self.post(definition(**asked))
        assert answer.status == 200, answer.text
        return str(answer.json()["uid"])

    def get(self, name: str = "s", token: str = TOKEN) -> dict[str, Any]:
        answer = self.live.call("GET", f"/hypersearch/{name}", token=token)
        assert answer.status == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def until(self, probe: Callable[[dict[str, Any]], object], name: str = "s") -> dict[str, Any]:
        """Wait until a search is as `probe` says, and return it."""
        last: dict[str, Any] = {}

        def right() -> bool:
            last.clear()
            last.update(self.get(name))
            return bool(probe(last))

        eventually(right, f"{name} is as expected: {last}")
        return last

    def running(self, count: int, name: str = "s") -> list[str]:
        """Wait until this many experiments have an exec that is not over; return the execs."""
        def execs_of(shown: dict[str, Any]) -> list[str]:
            return [one["appId"] for one in shown["experiments"] if one["state"] in ("SUBMITTED", "RUNNING")]

        return execs_of(self.until(lambda one: one["running"] == count and not any(
            self.live.row(exec_id).terminal for exec_id in execs_of(one)), name))

    def over(self, name: str = "s") -> dict[str, Any]:
        return self.until(lambda one: one["state"] not in ("SUBMITTED", "RUNNING"), name)

    def finish(self, exec_id: str, content: object = None, raw: bytes | None = None) -> None:
        """End an exec well, with this content of val_dict_list.json."""
        path = self.live.paths(exec_id).objective
        if raw is not None or content is not None:
            path.write_bytes(json.dumps(content).encode() if raw is None else raw)
        self.live.move(exec_id, PENDING, RUNNING, FINISHED)

    def loss(self, exec_id: str, value: float) -> None:
        self.finish(exec_id, [{"step": 1, "loss": value + 1}, {"step": 2, "loss": value}])

    def fail(self, exec_id: str) -> None:
        self.live.move(exec_id, PENDING, RUNNING, ERROR, message="it broke")

    def kill(self, exec_id: str) -> None:
        self.live.move(exec_id, PENDING, KILLED)

    def stops(self, exec_ids: list[str]) -> None:
        """End the execs that are asked to stop, as the supervisor does."""
        for exec_id in exec_ids:
            eventually(lambda one=exec_id: self.live.row(one).stop_requested, f"{exec_id} is to stop")
            self.kill(exec_id)

    def rows(self, name: str = "s") -> list[searches.ExperimentRow]:
        def read(connection: Any) -> list[searches.ExperimentRow]:
            row = searches.named(connection, name, self.live.settings.user)
            assert row is not None
            return searches.experiments_of(connection, row.number)

        return self.live.database.read(read)


@contextlib.contextmanager
def searching(live: Live) -> Iterator[Searching]:
    """Run the loop of searches within the block."""
    live.services.controller.start()
    try:
        yield Searching(live)
    finally:
        live.services.controller.close()
        live.services.algorithms.close()


def model(folder: str = "pytorch_hpo", **files: str) -> bytes:
    """Return a packed model folder."""
    return tar({f"{folder}/{name}.py": text.encode() for name, text in files.items()})


def states_of(shown: dict[str, Any]) -> list[str]:
    """Return the states of the experiments of a search."""
    return [one["state"] for one in shown["experiments"]]
