"""A user of dlim whose commands run as processes, and a server that follows the recorded contract of inference."""

from __future__ import annotations

import base64
import io
import json
import ssl
import tarfile
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from client_desk import Desk
from fake_server import TOKEN, FakeServer, Reply, Seen

BASE = "/dlim/v1"
SERVICE_TOKEN = "service-token-1"
USER, PASSWORD = "ada", "s3cret-password"
#: A profile as recorded, shortened.
PROFILE = {
    "schema_version": "1.2", "type": "inference", "replica": 1,
    "policy": {"name": "capacity", "kernel_min": 1, "kernel_max": 100, "task_batch_size": 1},
    "resource_allocation": {"kernel": {"type": "msd", "resources": "ncpus=0.5,ncpus_limit=2,mem=1024,mem_limit=4096"}},
    "kernel": {"gpu": "no", "envs": [{"name": "DLIM_MK_LOG_LEVEL", "value": "INFO"}]},
}
MODEL_JSON = {
    "name": "pingpong", "tag": "test", "weight_path": "N/A", "runtime": "dlipy3", "kernel_path": "kernel.py",
    "schema_version": "1",
}


class DlimDesk(Desk):
    """Runs dlim as a process."""

    program = "dlicmd.dlim"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.environment["DLICMD_RETRIES"] = "0"

    def pingpong(self, **changed: Any) -> Path:
        """Create a folder with a model and return its path."""
        folder = self.folder / "pingpong"
        folder.mkdir()
        described = {key: value for key, value in {**MODEL_JSON, **changed}.items() if value is not None}
        (folder / "model.json").write_text(json.dumps(described))
        (folder / "README.md").write_text("# Ping\n")
        (folder / "kernel.py").write_text("pass\n")
        return folder


def model_object(name: str, **more: Any) -> dict[str, Any]:
    """Return a model as recorded servers show it."""
    return {
        "name": name, "uid": "u-1", "tag": "test", "size": 1024, "weight_path": "N/A",
        "model_path": f"/opt/wml-edi/repo/{name}/{name}-20220810-081746", "create_time": 1660119466,
        "last_updated_time": 1660119466, "started_at": 0, "creator": USER, "runtime": "dlipy3",
        "kernel_path": "kernel.py", "service_uri": "", "stream_uri": "", "attributes": [{"key": "a", "value": "b"}],
        "mk_environments": [{"name": "SECRET", "value": "hidden-value"}], "schema_version": "1",
    } | more


def kernel_object(number: int, status: str = "IDLE") -> dict[str, Any]:
    """Return a kernel as recorded servers show it."""
    return {"container_uid": f"c-{number}", "container_host": "node1", "container_status": status, "total_task": 3,
            "running_task": 0, "finished_task": 2, "failed_task": 1}


class ModelServer(FakeServer):
    """A server with models. `replies` replaces answers, as in FakeServer."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(tls=tls)
        self.models: dict[str, dict[str, Any]] = {}
        self.kernels: dict[str, list[dict[str, Any]]] = {}
        self.profiles: dict[str, dict[str, Any]] = {}
        self.runtimes: dict[str, dict[str, Any]] = {"dlipy3": {"type": "dlipy3", "description": "Python 3"}}
        self.logs: dict[str, str] = {}
        #: The files of each upload.
        self.uploads: list[dict[str, bytes]] = []

    @property
    def address(self) -> str:
        """The URL for `--rest-server`."""
        return f"{self.url}{BASE}/"

    def add(self, name: str, *, started: bool = False, **more: Any) -> dict[str, Any]:
        """Add a model; a started one has 1 kernel."""
        self.models[name] = model_object(name, **more)
        self.profiles[name] = json.loads(json.dumps(PROFILE))
        self.kernels[name] = []
        if started:
            self._start(name)
        return self.models[name]

    def _start(self, name: str) -> None:
        self.models[name] |= {"service_uri": f"{self.url}{BASE}/inference/{name}", "started_at": 1660119500}
        self.kernels[name] = [kernel_object(1)]

    def answer(self, seen: Seen) -> Reply:
        if not seen.path.startswith(BASE) or (seen.method, seen.path) in self.replies:
            return super().answer(seen)
        path = [unquote(part) for part in seen.path.removeprefix(f"{BASE}/").split("/")]
        if path == ["auth", "token"]:
            return self._logged_on(seen)
        token = seen.headers.get("authorization", "").removeprefix("Bearer ")
        if token not in self.tokens:
            return failed(401, "auth.denied", "Authentication failed.")
        found = self._dlim(seen, path)
        return found if isinstance(found, Reply) else as_json(found)

    def _logged_on(self, seen: Seen) -> Reply:
        basic = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        if seen.headers.get("authorization") != f"Basic {basic}":
            return failed(401, "auth.denied", "Wrong user or password.")
        return as_json({"user_token": TOKEN, "access_token": TOKEN, "service_token": SERVICE_TOKEN})

    def _dlim(self, seen: Seen, path: list[str]) -> Any:
        found: Any = failed(404, "model.not_found", "No such model.")
        match seen.method, *path:
            case "POST", "auth", "token", "inference":
                found = {"service_token": SERVICE_TOKEN}
            case "GET", "model":
                found = {"model_list": list(self.models.values())}
            case "POST", "deployment", "model", *rest:
                found = self._deployed(seen, rest)
            case _, "deployment", "runtime", *rest:
                found = self._runtime(seen, rest)
            case _, "modelstore", *rest:
                found = self._store(seen, rest)
            case "POST", "inference", name if name in self.models:
                found = Reply(200, b"<" + seen.body + b">", {"Content-Type": "text/html"})
            case _, "model", name, *rest if name in self.models:
                found = self._model(seen, name, "/".join(rest))
        return found

    def _store(self, seen: Seen, rest: list[str]) -> Any:
        if seen.method == "GET":
            return [{"name": "digits", "version": 2, "exec": "local-7", "space": "", "creator": USER}]
        return {"name": rest[0] if rest else json.loads(seen.body)["name"], "version": 3}

    def _deployed(self, seen: Seen, rest: list[str]) -> Any:
        if rest and rest[0] not in self.models:
            return failed(404, "model.not_found", "No such model.")
        body = seen.body.partition(b"\r\n\r\n")[2]
        with tarfile.open(fileobj=io.BytesIO(body), mode="r:*") as archive:
            files = {member.name.partition("/")[2]: archive.extractfile(member) for member in archive
                     if member.isfile()}
            self.uploads.append({name: file.read() for name, file in files.items() if file is not None})
        name = (rest or seen.query.get("name") or [""])[0]
        name = name or json.loads(self.uploads[-1]["model.json"])["name"]
        return self.models[name] if name in self.models else self.add(name)

    def _runtime(self, seen: Seen, rest: list[str]) -> Any:
        if not rest and seen.method == "GET":
            return {"runtimes": list(self.runtimes.values())}
        name = rest[0] if rest else json.loads(seen.body)["type"]
        if rest and name not in self.runtimes:
            return failed(404, "runtime.not_found", f"Runtime {name} does not exist")
        if seen.method == "DELETE":
            del self.runtimes[name]
            return {"status": "OK"}
        if seen.method != "GET":
            self.runtimes[name] = json.loads(seen.body)
        return self.runtimes[name]

    def _model(self, seen: Seen, name: str, action: str) -> Any:
        if seen.method == "GET":
            return self._shown(seen, name, action)
        if seen.method == "DELETE":
            del self.models[name]
        elif action == "operation/start":
            self._start(name)
        elif action == "operation/stop":
            self.models[name] |= {"service_uri": ""}
        elif action == "appprofile":
            self.profiles[name] = json.loads(seen.body)
        return Reply(200)

    def _shown(self, seen: Seen, name: str, action: str) -> Any:
        if action == "logs":
            start = int(seen.query["from"][0])
            text = self.logs.get(name, "").encode()
            return Reply(200, text[start:], {"X-Next-Offset": str(len(text)), "Content-Type": "text/plain"})
        return {
            "": self.models[name], "instance": self._instance(name), "appprofile": self.profiles[name],
            "readme": {"readme": "# Ping\n"},
            "why": {"state": "Starting", "message": "0 of 1 slots are free", "advice": "wait"},
        }[action]

    def _instance(self, name: str) -> dict[str, Any]:
        if not self.models[name]["service_uri"]:
            return {"name": name, "state": "disabled"}
        return {"name": name, "state": "enabled", "instances": [{
            "isd_uid": "5b2c0f2e-0001", "pj_jobid": f"edi-{name}-7", "gpu_mode": "exclusive", "gpu_packid": "",
            "client_number": 2, "pending_tasks": 4, "request_per_sec": 1.5, "data_size_per_sec": 0.0,
            "isd_container": self.kernels[name]}]}


def as_json(value: Any, status: int = 200) -> Reply:
    """Return an answer in JSON."""
    return Reply(status, json.dumps(value).encode(), {"Content-Type": "application/json"})


def failed(status: int, code: str, message: str) -> Reply:
    """Return an error as the server sends it."""
    found = as_json({"error": {"code": code, "message": message}, "msg": message}, status)
    found.headers["X-DLI-Error-Code"] = code
    return found
