"""A small server that follows the recorded contract and records every request as bytes.

It stands in for another WMLA server: without `extensions` it offers nothing beyond the contract.
"""

from __future__ import annotations

import base64
import hashlib
import json
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

BASE = "/platform/rest/deeplearning/v1"
TOKEN = "fake-token-1"


@dataclass
class Seen:
    """A received request: `target` is undecoded, header names are in lower case."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def query(self) -> dict[str, list[str]]:
        return parse_qs(urlsplit(self.target).query, keep_blank_values=True)


@dataclass
class Reply:
    """An answer that a test sets."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    #: Called after the body is sent, before anything else happens on the connection.
    after: Callable[[], object] = lambda: None


def exec_object(exec_id: str, **more: Any) -> dict[str, Any]:
    """Return an exec object as recorded servers show it."""
    return {
        "id": exec_id, "args": "--exec-start PyTorch --model-main main.py ", "submissionId": exec_id,
        "creator": "alice", "state": "RUNNING", "appId": exec_id, "schedulerUrl": "https://wmla-mss:9080",
        "modelFileOwnerName": "wmla", "workDir": f"/gpfs/alice/batchworkdir/{exec_id}/_submitted_code",
        "appName": "SingleNodePytorchTrain", "createTime": "2023-10-27T16:27:29Z", "elastic": False,
        "nameSpace": "cpd", "numWorker": 1, "framework": "PyTorch",
    } | more


PARALLEL_JOB = {
    "metadata": {"uid": "u-1", "namespace": "cpd", "creationTimestamp": "2023-10-27T16:27:30Z", "labels": {}},
    "status": {"jobStatus": "Running", "jobStartTime": "2023-10-27T16:27:35Z"},
    "spec": {"taskGroups": [{
        "metadata": {"name": "task12n", "annotations": {"lsf.ibm.com/gpu": ""}},
        "spec": {"replica": 6, "template": {"spec": {"containers": [
            {"name": "msdtask", "resources": {"requests": {"memory": "8192.000000Mi", "cpu": "1"},
                                              "limits": {"memory": "8192.000000Mi"}}},
        ]}}},
    }]},
}


class FakeServer:
    """A context manager that serves the contract. `execs`, `logs`, `metrics`, `curves`, `code`, `results`, `files`,
    `conf` may change at any time; `replies` maps `(method, path)` to an answer, or to a function of the request, that
    replaces the usual answer."""

    def __init__(self, extensions: str = "", tls: ssl.SSLContext | None = None, port: int = 0) -> None:
        self.seen: list[Seen] = []
        self.execs: dict[str, dict[str, Any]] = {}
        self.logs: dict[str, str] = {}
        self.metrics: dict[str, str] = {}
        self.code: dict[str, dict[str, Any]] = {}
        #: The curves of an exec.
        self.curves: dict[str, list[dict[str, Any]]] = {}
        #: The CPU cores and the memory in use of an exec.
        self.resources: dict[str, list[dict[str, Any]]] = {}
        self.results: dict[str, Reply] = {}
        #: The files of each exec: path → content. A range is answered with the rest.
        self.files: dict[str, dict[str, bytes]] = {}
        self.conf: dict[str, str] = {"MSD_ENABLED": "true", "DLI_DATA_FS": "/gpfs/mydatafs"}
        if extensions:
            self.conf["DLICMD_EXTENSIONS"] = extensions
        self.replies: dict[tuple[str, str], Reply | Callable[[Seen], Reply]] = {}
        #: The answers to follow calls, in order; the last answer repeats.
        self.news: list[dict[str, Any]] = []
        #: The accepted tokens; an empty set accepts every request.
        self.tokens = {TOKEN}
        #: Called while the server receives a body, after the first byte.
        self.receiving: Callable[[], object] = lambda: None
        self._http = ThreadingHTTPServer(("127.0.0.1", port), _handler(self))
        self._http.daemon_threads = True
        # Clients that close the connection early are part of the tests.
        self._http.handle_error = lambda *_: None  # type: ignore[method-assign]
        if tls is not None:
            self._http.socket = tls.wrap_socket(self._http.socket, server_side=True)
        self._scheme = "http" if tls is None else "https"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def __enter__(self) -> FakeServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    @property
    def port(self) -> int:
        return int(self._http.server_address[1])

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self.port}"

    def requests(self, method: str, path: str = "") -> list[Seen]:
        """Return the requests with this method and a path that ends in `path`."""
        return [seen for seen in list(self.seen) if seen.method == method and seen.path.endswith(path)]

    def answer(self, seen: Seen) -> Reply:
        """Return the reply to a request."""
        chosen = self.replies.get((seen.method, seen.path))
        if chosen is not None:
            return chosen(seen) if callable(chosen) else chosen
        if seen.path == "/auth/v1/logon":
            return _json({"accessToken": TOKEN, "username": "alice"})
        token = seen.headers.get("authorization", "").removeprefix("Bearer ")
        if self.tokens and token not in self.tokens:
            return Reply(401, b"Error 401: Authentication failed.\n")
        return self._authorised(seen)

    def _authorised(self, seen: Seen) -> Reply:
        if seen.path == "/auth/v1/logoff":
            return Reply(200, b"bye")
        path = seen.path.removeprefix(BASE).rstrip("/")
        simple: dict[tuple[str, str], Any] = {
            ("GET", "/conf"): self.conf, ("GET", "/status"): {"status": "OK"},
            ("GET", "/execs"): list(self.execs.values()),
            ("GET", "/execs/frameworks"): [
                {"name": "PyTorch", "desc": ["first line", "second line"], "frameworkVersion": "2.1"}],
        }
        if (seen.method, path) in simple:
            return _json(simple[seen.method, path])
        if (seen.method, path) == ("POST", "/execs"):
            exec_id = f"wmla-{len(self.execs) + 1}"
            self.execs[exec_id] = exec_object(exec_id, state="SUBMITTED")
            return _json(self.execs[exec_id])
        if (seen.method, path) == ("DELETE", "/execs"):
            self.execs.clear()
            return Reply(204)
        if path.startswith("/execs/"):
            return self._one(seen, *path.removeprefix("/execs/").split("/", 1))
        return self._scheduler(seen, path)

    def _one(self, seen: Seen, raw_id: str, action: str = "") -> Reply:
        exec_id = unquote(raw_id)
        if exec_id not in self.execs:
            return Reply(400, f"Error 400: Exec {exec_id} is not found.\n".encode())
        told = self._told(seen, exec_id, action)
        if told is not None:
            return told
        if action != "stop" and seen.method != "DELETE":
            return _json(self.execs[exec_id])
        if action == "stop":
            self.execs[exec_id]["state"] = "KILLED"
        else:
            del self.execs[exec_id]
        return Reply(204)

    def _told(self, seen: Seen, exec_id: str, action: str) -> Reply | None:
        """Return the reply to a request for a part of an exec, such as its log, or None."""
        texts = {"log": self.logs, "metrics": self.metrics}
        if action in texts:
            return Reply(200, texts[action].get(exec_id, "").encode(), {"Content-Type": "text/plain"})
        names = seen.query.get("metric", [])
        curves = [curve for curve in self.curves.get(exec_id, []) if not names or curve.get("name") in names]
        values = {"code": self.code.get(exec_id, {"files": [], "complete": True}),
                  "curves": {"curves": curves, "cursor": "1"},
                  "resources": {"curves": self.resources.get(exec_id, []), "cursor": "1"}}
        if action in values:
            return _json(values[action])
        if action == "result":
            return self.results.get(exec_id, Reply(400, b"Error 400: No result.\n"))
        if action.startswith("files"):
            return self._file(seen, exec_id)
        if action == "follow":
            return _json(self.news.pop(0) if len(self.news) > 1 else self.news[0])
        return None

    def _file(self, seen: Seen, exec_id: str) -> Reply:
        """Return the list of files, or one file."""
        files = self.files.get(exec_id, {})
        if "path" not in seen.query:
            return _json({"complete": True, "files": [
                {"path": path, "bytes": len(content), "modified": "2026-01-02T03:04:05.678901Z", "where": "result"}
                for path, content in sorted(files.items())]})
        content = files.get(seen.query["path"][0])
        if content is None:
            return Reply(400, b"Error 400: No such file.\n", {"X-DLI-Error-Code": "exec.no_file"})
        digest = hashlib.sha256(content)
        told = {"ETag": f'"{digest.hexdigest()}"',
                "Repr-Digest": f"sha-256=:{base64.b64encode(digest.digest()).decode()}:"}
        asked = seen.headers.get("range")
        if asked is None or seen.headers.get("if-range") != told["ETag"]:
            return Reply(200, content, told)
        start = int(asked.removeprefix("bytes=").removesuffix("-"))
        return Reply(206, content[start:], told | {
            "Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"})

    def _scheduler(self, seen: Seen, path: str) -> Reply:
        if path == "/scheduler/kubernetesobjects":
            return _json(PARALLEL_JOB)
        if path == "/scheduler/applications":
            return _json([{"task0": {"name": "task0"}, "task12n": [{}, {}]}])
        if "/logs/" in path:
            return Reply(200, ("/".join(path.split("/")[3:]) + "\n").encode(), {"Content-Type": "text/plain"})
        return Reply(404, b"Error 404: No such path.\n")


def _json(value: Any) -> Reply:
    return Reply(200, json.dumps(value).encode(), {"Content-Type": "application/json"})


def _handler(server: FakeServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _serve(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            body = self.rfile.read(1) if length else b""
            if length:
                server.receiving()
                body += self.rfile.read(length - 1)
            if len(body) < length:
                return
            headers = {name.lower(): value for name, value in self.headers.items()}
            seen = Seen(self.command, self.path, headers, body)
            server.seen.append(seen)
            reply = server.answer(seen)
            self.send_response(reply.status)
            announced = {"Content-Length": str(len(reply.body))} | reply.headers
            for name, value in announced.items() if reply.status != 204 else ():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(reply.body)
            reply.after()

        do_GET = do_POST = do_DELETE = do_PUT = _serve

        def log_message(self, *_: object) -> None:
            pass

    return Handler
