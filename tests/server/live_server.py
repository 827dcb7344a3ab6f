"""A server in this process, on a real socket, with a stub supervisor; and HTTP as sent over the network."""

from __future__ import annotations

import base64
import gzip
import io
import json
import socket
import tarfile
import tempfile
import threading
import time
from dataclasses import dataclass, field, replace
from functools import cache
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import described
from fastapi.routing import APIRoute
from sqlalchemy import Connection
from starlette.routing import Route
from support import PATIENCE, eventually

from dlicmd.contract import wire
from dlicmd.contract.states import PENDING, RUNNING, TERMINAL
from local_backend.api.app import create_app
from local_backend.api.pages import Pages
from local_backend.forward.service import Forwarding
from local_backend.runtime import bundles, progress
from local_backend.runtime.active import LiveValues as Said
from local_backend.runtime.loop import Loop
from local_backend.runtime.occupancy import SlotPlace
from local_backend.runtime.paths import ExecPaths
from local_backend.runtime.resizing import Resized
from local_backend.scheduler.model import Machine, Reason, SchedulerJob
from local_backend.scheduler.slots import cpu_slots
from local_backend.services.services import make_services
from local_backend.serving.server import make_home, open_database
from local_backend.serving.web_server import Server, make_server
from local_backend.settings import Limits, Settings
from local_backend.store import execs, tokens, users
from local_backend.store.database import Database
from local_backend.store.execs import ExecRow
from local_backend.store.holdings import SlotPart
from local_backend.submit.folders import discard

TOKEN = "t0ken-of-this-test"
PASSWORD = "pass:wörd"


@dataclass
class QuietSupervisor:
    """Counts its wake-ups and moves no exec. Each resize returns or raises `resized`."""

    woken: int = 0
    rounds: bool = True
    resized: Resized | Exception | None = None
    asked: list[tuple[str, int | None]] = field(default_factory=list)
    reasons: dict[str, Reason] = field(default_factory=dict)
    loops: tuple[Loop, ...] = ()
    lives: dict[str, Said] = field(default_factory=dict)
    memory: int | None = None
    cpu: dict[str, float] = field(default_factory=dict)
    jobs: list[SchedulerJob] = field(default_factory=list)
    held: list[SlotPlace] = field(default_factory=lambda: [SlotPlace(slot) for slot in cpu_slots(2)])

    @property
    def machine(self) -> Machine:
        return Machine(tuple(place.slot for place in self.held), self.memory)

    def resize(self, exec_id: str, count: int | None) -> Resized:
        self.asked.append((exec_id, count))
        if isinstance(self.resized, Exception):
            raise self.resized
        assert self.resized is not None
        return self.resized

    def wake(self) -> None:
        self.woken += 1

    def reason(self, exec_id: str) -> Reason | None:
        return self.reasons.get(exec_id)

    def live(self, exec_id: str) -> Said | None:
        return self.lives.get(exec_id)

    def places(self) -> list[SlotPlace]:
        return self.held

    def cpu_seconds(self) -> dict[str, float]:
        return self.cpu

    def completes_turn(self, seconds: float) -> bool:
        return self.rounds

    def status(self) -> dict[str, object]:
        return {"slots": {"total": 2, "held": 0}, "nursery": "idle"}


@dataclass
class Answer:
    """One answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def error(self) -> tuple[int, str]:
        """The status and the stable code of the error, which is empty in an answer without one."""
        return self.status, self.headers.get(wire.ERROR_CODE.lower(), "")

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Live:
    """The running server."""

    settings: Settings
    token: str = TOKEN
    supervisor: QuietSupervisor = field(default_factory=QuietSupervisor)
    #: The pages for browsers; None for a server without them.
    pages: Pages | None = None

    def __post_init__(self) -> None:
        make_home(self.settings)
        if not self.settings.paths.database.exists():
            self.settings.paths.database.write_bytes(_empty_database())
        self.database = open_database(self.settings)
        self.services = make_services(self.settings, self.database, self.supervisor, self.token, PASSWORD)
        self.guard = create_app(self.services, self.pages)
        self.server: Server = make_server(self.guard, self.settings)
        self.sock = socket.create_server(("127.0.0.1", 0))
        # Set TCP_NODELAY, as on the sockets of the real server; else each answer on a kept connection takes 40 ms.
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.port = self.sock.getsockname()[1]
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.sock]}, daemon=True)
        self.thread.start()
        eventually(lambda: self.server.started, "the server starts")

    def forward_by(self, forwarding: Forwarding) -> None:
        """Forward metrics through `forwarding` from now on."""
        submissions = replace(self.services.submissions, forwarding=forwarding)
        self.services = replace(self.services, forwarding=forwarding, submissions=submissions)
        self.guard.services = self.guard.app.state.services = self.services
        forwarding.start()

    def close(self) -> None:
        self.services.machine.closing = True
        self.server.should_exit = True
        self.thread.join(PATIENCE)
        self.sock.close()
        self.database.close()

    def call(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: dict[str, str] | None = None,
        *,
        token: str | None = TOKEN,
        base: str = wire.BASE,
    ) -> Answer:
        """Make one call and check the answer against the description. `path` is below the base path of the contract."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        sent = {"Authorization": f"Bearer {token}"} if token else {}
        sent |= headers or {}
        try:
            connection.putrequest(method, base + path, skip_host="Host" in sent, skip_accept_encoding=True)
            for name, value in sent.items():
                connection.putheader(name, value)
            if body or method in {"POST", "PUT"}:
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body or None)
            found = connection.getresponse()
            answer = Answer(found.status, {k.lower(): v for k, v in found.getheaders()}, found.read())
        finally:
            connection.close()
        described.of_this_version().check(method, base + path, answer.status, answer.headers, answer.body)
        return answer

    def add_user(self, name: str, role: str = "user") -> str:
        """Add a user without a password; return a token."""
        ends = time.time() + 3600
        token = self.services.logons.keys.sign({"sub": name, "iat": int(ends) - 3600, "exp": int(ends)})

        def add(connection: Connection) -> None:
            users.add(connection, name, "none", role)
            tokens.keep(connection, token, name, ends)

        self.database.write(add)
        return token

    def submit(
        self, args: str = "", files: dict[str, bytes] | None = None, data: str | None = None, token: str = TOKEN,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """POST /execs with a multipart body, or with no body if there is nothing to send."""
        parts = [("file", name, content) for name, content in (files or {}).items()]
        body, kind = multipart([*parts, *([("data", None, data.encode())] if data is not None else [])])
        if not parts and data is None:
            body, kind = b"", ""
        query = f"/?args={quoted(args)}" if args else "/"
        sent = {"Content-Type": kind} if kind else {}
        return self.call("POST", "/execs" + query, body, sent | (headers or {}), token=token)

    def submitted(self, args: str = "--exec-start PyTorch --model-main main.py", **more: Any) -> str:
        """Submit an exec that the server must accept; return the id."""
        answer = self.submit(args, **{"files": {"main.py": b"print(1)\n"}, **more})
        assert answer.status == 200, answer.text
        return str(answer.json()["id"])

    def row(self, exec_id: str) -> ExecRow:
        row = self.database.read(lambda c: execs.get(c, exec_id, deleted=True))
        assert row is not None
        return row

    def paths(self, exec_id: str) -> ExecPaths:
        return self.settings.paths.job(exec_id, self.settings.user)

    def move(self, exec_id: str, *states: str, **values: Any) -> None:
        """Move an exec through the states in order; set `values` with the last state."""
        for state in states:
            more = values if state == states[-1] else {}
            if state in TERMINAL and (said := self.supervisor.lives.pop(exec_id, None)) is not None:
                more = {"progress": json.dumps(said.progress)} | more
            assert self.database.write(lambda c, s=state, m=more: execs.transition(c, exec_id, s, **m))

    def say(self, exec_id: str, values: object, workers: tuple[int, ...] = ()) -> None:
        """Have the runner of an exec report this progress and these workers."""
        self.supervisor.lives[exec_id] = Said(progress.valid(values), workers)

    def run_on(self, exec_id: str, *slots: str, consumer: str = "/local/training") -> None:
        """Move a newly submitted exec to RUNNING on these slots."""
        parts = [SlotPart(slot, slot.partition("-")[0]) for slot in slots]
        self.move(exec_id, PENDING)
        self.database.write(lambda c: execs.begin_attempt(c, exec_id, parts, consumer))
        self.move(exec_id, RUNNING)

    def forget(self, exec_id: str) -> None:
        """Remove every trace of an exec."""
        named = self.database.write(lambda c: execs.remove(c, exec_id))
        bundles.drop(self.settings.paths, self.database, named)
        discard(self.paths(exec_id))

    def nothing_left(self) -> bool:
        """Return True if the server keeps no upload, no folder of an exec, no code and no row."""
        jobs = self.settings.result_fs / self.settings.user / "batchworkdir"
        paths = self.settings.paths
        left = [one for folder in (paths.incoming, paths.jobs, paths.bundles) for one in folder.iterdir()]
        left += list(jobs.iterdir()) if jobs.exists() else []
        return not left and not self.database.read(execs.all_ids)


def route_table(live: Live) -> dict[str, set[str]]:
    """Return the methods of every path of the application."""
    found: dict[str, set[str]] = {}

    def walk(routes: Any) -> None:
        for route in routes:
            if isinstance(route, APIRoute | Route):
                found.setdefault(route.path, set()).update(route.methods or ())
            else:
                inner = getattr(route, "original_router", None) or getattr(route, "routes", None)
                walk(getattr(inner, "routes", inner) or [])

    walk(live.guard.app.routes)
    return found


@cache
def _empty_database() -> bytes:
    """Return an empty database made by the migrations. All tests share the result."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.db"
        database = Database(path)
        database.open()
        database.close()
        return path.read_bytes()


def settings_for(home: Path, **more: Any) -> Settings:
    limits = replace(Limits(), **more.pop("limits", {}))
    return Settings(home=home, data_fs=home / "data", result_fs=home / "results", user="alice", limits=limits, **more)


def quoted(text: str) -> str:
    from urllib.parse import quote

    return quote(text, safe="")


def multipart(parts: list[tuple[str, str | None, bytes]]) -> tuple[bytes, str]:
    """Return body and content type of a form with these parts: (name, file name or None, content)."""
    body = b""
    for name, file_name, content in parts:
        disposition = f'form-data; name="{name}"' + (f'; filename="{file_name}"' if file_name is not None else "")
        body += b"--XbX\r\nContent-Disposition: " + disposition.encode() + b"\r\n\r\n" + content + b"\r\n"
    return body + b"--XbX--\r\n", "multipart/form-data; boundary=XbX"


def tar(files: dict[str, bytes], zipped: bool = True) -> bytes:
    """Return a model folder packed as clients pack it; a name that ends with / is a folder."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            if name.endswith("/"):
                member.type, member.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(member, io.BytesIO(content))
    return gzip.compress(buffer.getvalue()) if zipped else buffer.getvalue()


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}
