"""The server's side of the processes that suggest experiments (suggester.py): starts, asks, and ends them."""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from local_backend import interpreter
from local_backend.hypersearch import rungs
from local_backend.hypersearch.definition import Definition, Known, Value
from local_backend.hypersearch.questions import Hold, Question, Questions, SuggesterFailed, SuggesterLost

#: Seconds that an answer may take.
PATIENCE = 600.0
#: Most processes. Each answers one request at a time. They are more than one user may use at once.
_PROCESSES = 3
#: Sums of floating-point numbers depend on the number of threads, and the order of sets of texts on the hash seed.
_REPEATABLE = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}


class Process:
    """A process that answers one line of JSON with another one."""

    def __init__(self, command: Sequence[str], environment: dict[str, str]) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                command, stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=subprocess.DEVNULL, env=environment,
                cwd="/", start_new_session=True)
        self._socket = ours
        self.pid = self._process.pid

    def ask(self, line: bytes, seconds: float) -> Any:
        """Return the answer. Raises SuggesterLost."""
        until = time.monotonic() + seconds
        pieces: list[bytes] = []
        try:
            self._socket.settimeout(seconds)
            self._socket.sendall(line)
            while not pieces or not pieces[-1].endswith(b"\n"):
                self._socket.settimeout(max(0.001, until - time.monotonic()))
                piece = self._socket.recv(1 << 20)
                if not piece:
                    raise SuggesterLost("the process ended")
                pieces.append(piece)
            return json.loads(b"".join(pieces))
        except TimeoutError:
            raise SuggesterLost(f"the process took longer than {seconds:g} s") from None
        except (OSError, ValueError) as problem:
            raise SuggesterLost(f"the process cannot be reached: {problem}") from None

    @property
    def lives(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """Kill the process, without waiting. A thread that asks it gets SuggesterLost."""
        self._process.kill()

    def end(self) -> None:
        """Kill the process and wait for its end."""
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(OSError):
            self._socket.close()


class Suggester:
    """Suggestions and importances, from processes that start when they are needed."""

    def __init__(self, patience: float = PATIENCE) -> None:
        self._patience = patience
        self._questions = Questions(_PROCESSES, "suggester")
        self._lock = threading.Lock()
        self._idle: list[Process] = []
        self._all: set[Process] = set()
        self._closed = False

    @property
    def processes(self) -> tuple[int, ...]:
        """The ids of the processes that live."""
        with self._lock:
            return tuple(one.pid for one in self._all if one.lives)

    def ask(self, definition: Definition, seed: int, known: Sequence[Known], count: int,
            earlier: Sequence[Known] = ()) -> Question[list[dict[str, Value]]]:
        """Return `count` suggestions, a function of the arguments: of the told results in their order, and of the
        experiments without a result. `earlier` are those of the search that `warm_start` names.

        The future raises SuggesterLost, or SuggesterFailed.
        """
        open_ones = [dict(one.parameters) for one in known if one.told is None and one.state != "failed"]
        return self._submit({"do": "ask", "number": len(known), "count": count, "running": open_ones,
                             **_question(definition, seed, [*_told(earlier), *_told(known)])})

    def importances(self, definition: Definition, known: Sequence[Known]) -> Question[dict[str, float]]:
        """Return the importance of each parameter for the first objective, by PED-ANOVA. Of experiments with different
        resources, those with the most common one count. Empty while too few results are there."""
        told = _told(known)
        common = Counter(one.resource for one in told).most_common(1)
        same = [one for one in told if one.resource == common[0][0]]
        return self._submit({"do": "importances", **_question(definition, 0, same)})

    def close(self) -> None:
        """End all processes. Requests in progress fail with SuggesterLost."""
        with self._lock:
            self._closed = True
        self._questions.close()
        with self._lock:
            for one in self._all:
                one.end()

    def _submit(self, request: dict[str, Any]) -> Question[Any]:
        line = f"{json.dumps(request)}\n".encode()
        return self._questions.ask(lambda hold: self._answer(hold, line))

    def _answer(self, hold: Hold, line: bytes) -> Any:
        process = self._take()
        try:
            with hold.of(process.kill):
                answer = process.ask(line, self._patience)
        except SuggesterLost:
            self._drop(process)
            raise
        with self._lock:
            self._idle.append(process)
        if "problem" in answer:
            raise SuggesterFailed(answer["problem"])
        return answer["ok"]

    def _take(self) -> Process:
        """Return a process that has no question: the latest one, so that others become idle and end."""
        with self._lock:
            if self._closed:
                raise SuggesterLost("the server ends")
            while self._idle:
                process = self._idle.pop()
                if process.lives:
                    return process
                self._all.discard(process)
                process.end()
            process = Process(interpreter.command("local_backend.hypersearch.suggester"), {**os.environ, **_REPEATABLE})
            self._all.add(process)
            return process

    def _drop(self, process: Process) -> None:
        process.end()
        with self._lock:
            self._all.discard(process)


def _told(known: Sequence[Known]) -> list[Known]:
    """Return the experiments with a result, in the order in which the algorithm learned of them."""
    return sorted((one for one in known if one.told is not None and rungs.finite(one.value) is not None),
                  key=lambda one: (one.told, one.id))


def _question(definition: Definition, seed: int, told: Sequence[Known]) -> dict[str, Any]:
    wanted = definition.wanted
    complete = [one for one in told if len(wanted) == 1 or all(math.isfinite(one.metrics.get(name, math.nan))
                                                               for name in wanted)]
    return {"definition": definition.to_json(), "seed": seed,
            "told": [[dict(one.parameters), _objectives(definition, one), _violations(definition, one)]
                     for one in complete]}


def _objectives(definition: Definition, one: Known) -> list[float]:
    if len(definition.objectives) == 1:
        assert one.value is not None
        return [one.value]
    return [one.metrics[metric] for metric, _ in definition.objectives]


def _violations(definition: Definition, one: Known) -> list[float]:
    """Return by how much each bound is exceeded: 0 or less if it is kept."""
    found = []
    for bound in definition.constraints:
        value = one.metrics[bound.metric]
        found += [] if bound.least is None else [bound.least - value]
        found += [] if bound.most is None else [value - bound.most]
    return found
