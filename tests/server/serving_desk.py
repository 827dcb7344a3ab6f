"""A server that serves models, with a gateway that a test plays, and execs that move as a test says."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from contextlib import suppress
from typing import Any

from live_server import PASSWORD, TOKEN, Live
from modelling import Modelling
from support import eventually

from dlicmd import __version__
from dlicmd.contract.states import ERROR, KILLED, PENDING, RUNNING
from local_backend.inference.control import GatewayLoad, KernelLoad, RevisionLoad, to_line
from local_backend.services.services import Services, make_services
from local_backend.store.execs import ExecRow


class PlayedGateway:
    """The gateway's side of the control socket. It never forgets the last state."""

    def __init__(self, live: Live, version: str = __version__) -> None:
        folder = live.settings.paths.gateway_sockets
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.version = version
        self.states: list[dict[str, Any]] = []
        self.messages: list[dict[str, Any]] = []
        self.loads: dict[str, dict[int, RevisionLoad]] = {}
        self._links: list[socket.socket] = []
        #: A report goes to a new connection in any case: with its first lines, or after them.
        self._lock = threading.Lock()
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(folder / "control.sock"))
        self._listening.listen()
        self._path = folder / "control.sock"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                link, _ = self._listening.accept()
            except OSError:
                return
            ready = {"op": "ready", "pid": os.getpid(), "port": 4321, "grpc_port": None, "version": self.version}
            with self._lock:
                with suppress(OSError):  # the server may be gone already
                    link.sendall(json.dumps(ready).encode() + b"\n" + self._line())
                self._links.append(link)
            threading.Thread(target=self._read, args=(link,), daemon=True).start()

    def _read(self, link: socket.socket) -> None:
        with suppress(OSError), link.makefile("rb") as lines:  # a killed server resets its connection
            for line in lines:
                message = json.loads(line)
                (self.states if message["op"] == "state" else self.messages).append(message)

    def _line(self) -> bytes:
        return to_line(GatewayLoad(time.time(), self.loads))

    def report(self, number: int, ready: int = 0, name: str = "ping", **counts: Any) -> None:
        """Report the load of a revision with this many kernels."""
        kernels = tuple(KernelLoad(one, 100 + one, True) for one in range(1, ready + 1))
        self.loads.setdefault(name, {})[number] = RevisionLoad(kernels=kernels, **counts)
        self.say(self._line())

    def say(self, line: bytes | dict[str, Any]) -> None:
        with self._lock:
            links = self._links[-1:]
        for link in links:
            link.sendall(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n")

    def lose(self) -> None:
        """Close the connections, as a gateway that ends; a new one listens at once."""
        links, self._links = self._links, []
        self.states.clear()
        self.loads.clear()
        for link in links:
            link.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._path.unlink()
        for link in self._links:
            link.close()

    def revisions(self, name: str = "ping") -> dict[int, tuple[str, int]]:
        """Return state and weight of the revisions in the last state."""
        if not self.states or name not in self.states[-1]["models"]:
            return {}
        return {one["number"]: (one["state"], one["weight"]) for one in self.states[-1]["models"][name]["revisions"]}


class Serving(Modelling):
    """A server with its loop of models."""

    def __init__(self, live: Live, gateway: PlayedGateway | None = None) -> None:
        super().__init__(live)
        self.gateway = gateway or PlayedGateway(live)
        self.services: Services = live.services
        self.services.model_controller.start()

    def restart(self) -> None:
        """End the loop as a killed server does, and begin with other services on the same home."""
        self.services.model_controller.close()
        self.services = make_services(self.live.settings, self.live.database, self.live.supervisor, TOKEN, PASSWORD)
        self.live.services = self.services
        self.live.guard.services = self.live.guard.app.state.services = self.services
        self.services.model_controller.start()

    def close(self) -> None:
        self.services.model_controller.close()
        self.gateway.close()

    def states(self, name: str = "ping") -> list[tuple[int, str, int]]:
        """Return number, state and weight of the revisions."""
        return [(one["number"], one["state"], one["weight"]) for one in self.get(f"/model/{name}")["revisions"]]

    def until(self, *states: tuple[int, str, int], name: str = "ping") -> None:
        eventually(lambda: self.states(name) == list(states), f"{name} is {states}, not {self.states(name)}")

    def job(self, number: int, name: str = "ping") -> ExecRow:
        """Wait until a revision has an exec, and return it."""
        def found() -> str:
            return str(self.get(f"/model/{name}/revisions")[number - 1].get("execId", ""))

        return self.live.row(eventually(found, f"revision {number} has an exec"))

    def serve(self, number: int = 1, ready: int = 1) -> str:
        """Run the exec of a revision, let its kernels be ready, and return its id."""
        row = self.job(number)
        self.live.move(row.id, PENDING, RUNNING)
        self.gateway.report(number, ready)
        return row.id

    def fail(self, number: int, message: str) -> None:
        self.live.move(self.job(number).id, PENDING, RUNNING, ERROR, message=message)

    def stops(self, exec_id: str) -> None:
        """End an exec that is asked to stop, as the supervisor does."""
        eventually(lambda: self.live.row(exec_id).stop_requested, f"{exec_id} is to stop")
        self.live.move(exec_id, KILLED)


