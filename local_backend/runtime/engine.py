"""What a runner does for an elastic program: allocation, workers on demand, their ends (docs/architecture.md)."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from typing import Any

from local_backend.runtime import tree
from local_backend.runtime.channel import Channel
from local_backend.runtime.launch import Launch
from local_backend.runtime.progress import Progress
from local_backend.runtime.tasks import Plan, Planner

_MOST_WORKERS = 100_000


class Engine:
    """The runner's side of the runner channel."""

    def __init__(
        self, launch: Launch, channel: Channel, planner: Planner, *, start: Callable[[Plan], int],
        progress: Progress, note: Callable[[str], None],
    ) -> None:
        self.channel = channel
        self._launch = launch
        self._planner = planner
        self._start = start
        self._progress = progress
        self._note = note
        self._workers: dict[int, int] = {}

    def on_ready(self) -> None:
        """Deal with what the driver has sent, and send what waits."""
        for message in self.channel.receive():
            self._handle(message)
        self.channel.flush()

    def worker_ended(self, number: int, pid: int, status: int, because: str | None) -> None:
        """Tell the driver that a worker is gone; `status` is negative for a signal."""
        if self._workers.get(number) == pid:
            del self._workers[number]
        self._exited(number, pid, status if status >= 0 else None, -status if status < 0 else None, because)

    def _handle(self, message: dict[str, Any]) -> None:
        """Do what a message asks; one that makes no sense is noted and ignored."""
        match message:
            case {"op": "hello"}:
                slots = [{"id": slot.id, "kind": slot.kind} for slot in self._launch.slots]
                self.channel.send(
                    {"event": "allocation", "slots": slots, "max_workers": self._launch.spec.num_worker}
                )
            case {"op": "spawn", "worker": int(worker), "slot": str(slot), "address": str(address), "key": str(key)}:
                self._spawn(worker, slot, address, key)
            case {"op": "kill", "worker": int(worker)}:
                if worker in self._workers:
                    tree.signal_group(self._workers[worker], signal.SIGKILL)
            case {"op": "progress"}:
                self._progress.update({name: value for name, value in message.items() if name != "op"})
            case {"op": "history", "text": str(text)}:
                self._note(text)
            case _:
                self._note(f"the program sent something that is not understood: {str(message)[:200]}")

    def _spawn(self, worker: int, slot: str, address: str, key: str) -> None:
        why = self._refusal(worker, slot, address, key)
        if why is None:
            hub = {"DLI_HUB_ADDRESS": address, "DLI_HUB_KEY": key}
            try:
                self._workers[worker] = self._start(self._planner.engine_worker(worker, slot, hub))
                return
            except OSError as problem:
                why = f"cannot be started: {problem}"
        self._note(f"worker {worker}: {why}")
        self._exited(worker, None, None, None, why)

    def _refusal(self, worker: int, slot: str, address: str, key: str) -> str | None:
        """Why a worker cannot be started as asked; None when it can."""
        if not 0 < worker <= _MOST_WORKERS:
            return "its number is out of range"
        if worker in self._workers:
            return "it is running already"
        if slot not in {held.id for held in self._launch.slots}:
            return f"slot {slot!r} is not in the allocation"
        if not re.fullmatch(r"[!-~]{1,200}", address) or not re.fullmatch(r"[!-~]{1,500}", key):
            return "address or key of the hub is malformed"
        return None

    def _exited(
        self, worker: int, pid: int | None, exit_code: int | None, number: int | None, reason: str | None
    ) -> None:
        self.channel.send({
            "event": "exited", "worker": worker, "pid": pid, "exit_code": exit_code, "signal": number,
            "reason": reason,
        })

