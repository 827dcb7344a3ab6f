"""The server as a process, started by its command line: serve, status, stop, and refusals."""

from __future__ import annotations

import fcntl
import http.client
import json
import os
import shutil
import signal
import socket
import ssl
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import isolation
import pytest
import trustme
from commands import Started
from live_server import basic, multipart, quoted, tar
from support import PATIENCE, eventually

from dlicmd.contract import wire

Run = Callable[..., Started]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DLI", "DLICMD"))}
    return {**kept, "DLICMD_HOME": str(tmp_path / "home"), "DLI_SLOTS": "2", "DLI_NURSERY_IDLE": "0",
            **isolation.environment()}


@pytest.fixture
def run(environment: dict[str, str]) -> Iterator[Run]:
    """A function that starts `local-backend` with arguments. The fixture stops processes that still run."""
    started: list[Started] = []

    def begin(*args: str, **more: str) -> Started:
        started.append(Started("local_backend.cli", args, {**environment, **more}, Path.cwd()))
        return started[-1]

    yield begin
    for process in started:
        process.terminate()
        process.communicate(timeout=PATIENCE)


def serving(process: Started) -> str:
    """Wait for the line that says that the server is ready, and return its address."""
    line = process.stdout.readline()
    assert line.startswith("local-backend: serving at http"), line + process.communicate(timeout=PATIENCE)[1]
    return line.split()[3].rstrip(",")


def ended(process: Started) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err


def backend_file(environment: dict[str, str]) -> dict[str, Any]:
    return json.loads((Path(environment["DLICMD_HOME"]) / "backend.json").read_text())


def get(url: str, path: str, token: str, context: ssl.SSLContext | None = None) -> Any:
    request = urllib.request.Request(url + path, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=PATIENCE, context=context) as answer:
        return json.loads(answer.read())


def test_a_server_serves_shows_its_status_and_stops(run: Run, environment: dict[str, str]) -> None:
    server = run("serve")
    url = serving(server)
    found, home = backend_file(environment), Path(environment["DLICMD_HOME"])
    assert found["url"] == url and found["pid"] == server.pid and len(found["token"]) >= 40
    assert (home / "backend.json").stat().st_mode & 0o777 == 0o600 and home.stat().st_mode & 0o777 == 0o700
    assert (home / "backend.db").stat().st_mode & 0o777 == 0o600
    assert get(url, wire.CONF, found["token"])["MSD_ENABLED"] == "true"
    code, out, _ = ended(run("status"))
    assert code == 0 and json.loads(out)["url"] == url and found["token"] not in out
    assert ended(run("stop"))[:2] == (0, "the server is stopped\n")
    assert ended(server)[0] == 0 and not (home / "backend.json").exists()
    assert "Traceback" not in (home / "backend.log").read_text()
    assert found["token"] not in (home / "backend.log").read_text()
    assert ended(run("status"))[0] == 1
    assert str(home) in ended(run("stop"))[1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_server_cleanly(run: Run, environment: dict[str, str], number: signal.Signals) -> None:
    server = run("serve")
    serving(server)
    server.send_signal(number)
    code, _, err = ended(server)
    assert (code, err) == (0, "") and not (Path(environment["DLICMD_HOME"]) / "backend.json").exists()


@pytest.mark.integration
def test_a_second_server_on_the_same_home_refuses_to_start(run: Run, environment: dict[str, str]) -> None:
    first = run("serve")
    url = serving(first)
    for _ in range(5):
        code, out, err = ended(run("serve"))
        assert code == 1 and out == "" and err.count("\n") == 1 and environment["DLICMD_HOME"] in err
    assert backend_file(environment)["url"] == url
    first.kill()
    first.wait(PATIENCE)
    assert serving(run("serve")) and backend_file(environment)["pid"] != first.pid


@pytest.mark.integration
def test_exactly_one_of_several_simultaneous_servers_starts(run: Run) -> None:
    racers = [run("serve") for _ in range(4)]
    codes = eventually(
        lambda: (ready := [racer.poll() for racer in racers]).count(None) == 1 and ready, "only 1 server is left"
    )
    assert sorted(code for code in codes if code is not None) == [1, 1, 1]
    serving(racers[codes.index(None)])


def test_a_port_in_use_is_reported_in_one_line(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, out, err = ended(run("serve", "--port", port))
    assert code == 1 and out == "" and err.count("\n") == 1 and port in err


@pytest.mark.integration
@pytest.mark.parametrize(
    ("args", "word"),
    [
        (["--host", "0.0.0.0"], "TLS is required; add --tls-cert FILE --tls-key FILE"),
        (["--host", "192.0.2.1", "--embedded"], "--embedded listens only on the loopback address"),
        (["--tls-cert", "x.pem"], "must be given together"),
        (["--tls-cert", "absent.pem", "--tls-key", "absent.pem"], "absent.pem"),
        (["--tls-cert", __file__, "--tls-key", __file__], "not a certificate and its matching key in PEM form"),
        (["--host", "no such host", "--tls-cert", "a", "--tls-key", "b"], ""),
    ],
)
def test_invalid_network_settings_are_refused(run: Run, args: list[str], word: str) -> None:
    code, out, err = ended(run("serve", *args))
    assert code == 1 and out == "" and word in err and err.count("\n") == 1 and "Traceback" not in err


@pytest.mark.parametrize(("args", "more"), [
    (["--port", "x"], {}), (["--port", "65536"], {}), (["--slots", "0"], {}), (["--slots", "-1"], {}), (["extra"], {}),
    ([], {"DLI_SLOTS": "many"}), ([], {"DLI_MAX_UPLOAD_BYTES": "-1"}), ([], {"DLI_STOP_GRACE": "1.5"}),
])
def test_invalid_settings_are_refused(run: Run, args: list[str], more: dict[str, str]) -> None:
    code, out, err = ended(run("serve", *args, **more))
    assert code in {1, 2} and out == "" and err and "Traceback" not in err


def test_an_unusable_home_is_reported_in_one_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for home in (tmp_path / "file", tmp_path / "file" / "below"):
        code, _, err = ended(run("serve", DLICMD_HOME=str(home)))
        assert code == 1 and str(tmp_path / "file") in err and err.count("\n") == 1


def test_a_damaged_database_is_reported_in_one_line(run: Run, environment: dict[str, str]) -> None:
    home = Path(environment["DLICMD_HOME"])
    home.mkdir()
    (home / "backend.db").write_bytes(b"this is no database " * 1000)
    code, _, err = ended(run("serve"))
    assert code == 1 and str(home / "backend.db") in err and err.count("\n") == 1


@pytest.mark.integration
def test_a_server_runs_with_tls(run: Run, environment: dict[str, str], tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    for part in certificate.cert_chain_pems:
        part.write_to_path(tmp_path / "cert.pem", append=True)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    tls = ["--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem")]
    url = serving(run("serve", "--host", "0.0.0.0", *tls))
    assert url.startswith("https://127.0.0.1:")
    context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    conf = get(url, wire.CONF, backend_file(environment)["token"], context)
    offered = ("argv,follow,slots,why,slot-view,holdings,idempotency-key,connections,data-preview,data-upload,"
               "stop-many,metrics,curves,resources,code,files,log-lines,verify,again,create-data-path,searches,models,"
               "labels,views,experiments,allow-cpu,check")
    assert conf["DLICMD_EXTENSIONS"] == offered
    code, out, _ = ended(run("status"))
    assert code == 0 and json.loads(out)["embedded"] is False
    assert ended(run("stop"))[0] == 0


def test_the_password_of_the_environment_is_used_for_logon(run: Run, environment: dict[str, str]) -> None:
    import base64
    import getpass

    server = run("serve", DLI_PASSWORD="pa:ss")
    url = serving(server)
    credentials = base64.b64encode(f"{getpass.getuser()}:pa:ss".encode()).decode()
    request = urllib.request.Request(url + wire.LOGON, headers={"Authorization": f"Basic {credentials}"})
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        token = json.loads(answer.read())["accessToken"]
    assert get(url, wire.EXECS, token) == []


@pytest.mark.integration
def test_a_killed_server_loses_no_acknowledged_submission(run: Run, environment: dict[str, str]) -> None:
    acknowledged: list[str] = []
    body, kind = multipart([("file", "m.modelDir.tar", tar({"m/run.sh": b"true", "m/data": os.urandom(100_000)}))])
    path = f"{wire.EXECS}?args={quoted('--exec-start PyTorch --model-dir m --user-cmd -- true')}"

    def submit_until_it_dies(url: str, token: str) -> None:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": kind}
        while True:
            try:
                request = urllib.request.Request(url + path, data=body, headers=headers)
                with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                    acknowledged.append(json.loads(answer.read())[wire.ID])
            except (OSError, http.client.HTTPException):
                return

    for round_number in range(1, 4):
        server = run("serve")
        url, token = serving(server), backend_file(environment)["token"]
        clients = [threading.Thread(target=submit_until_it_dies, args=(url, token)) for _ in range(3)]
        for client in clients:
            client.start()
        enough = len(acknowledged) + 3 * round_number
        eventually(lambda n=enough: len(acknowledged) >= n, "some submissions are acknowledged")
        server.kill()
        for client in clients:
            client.join(PATIENCE)
        server.wait(PATIENCE)
    server = run("serve")
    listed = get(serving(server), wire.EXECS, backend_file(environment)["token"])
    ids = {item[wire.ID] for item in listed}
    assert len(acknowledged) == len(set(acknowledged)) and set(acknowledged) <= ids
    home = Path(environment["DLICMD_HOME"])
    assert {path.name for path in (home / "jobs").iterdir()} == ids
    assert list((home / "incoming").iterdir()) == []
    for item in listed:
        assert (Path(item["workDir"]) / "data").stat().st_size == 100_000
    assert ended(run("stop", "--jobs"))[0] == 0


@pytest.mark.integration
def test_a_stale_backend_file_is_not_a_running_server(run: Run, environment: dict[str, str]) -> None:
    home = Path(environment["DLICMD_HOME"])
    home.mkdir()
    (home / "backend.json").write_text(json.dumps({"url": "http://127.0.0.1:1", "pid": os.getpid(), "token": "x"}))
    assert ended(run("status"))[0] == 1
    assert str(home) in ended(run("stop"))[1]
    with (home / "backend.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert ended(run("status"))[0] == 1, "the file names another process than the holder of the lock"
        lock.write(str(os.getpid()))
        lock.flush()
        code, _, err = ended(run("status"))
        assert code == 1 and "does not answer" in err and err.count("\n") == 1


@pytest.mark.integration
def test_the_next_server_replaces_the_file_of_a_killed_server(run: Run, environment: dict[str, str]) -> None:
    server = run("serve")
    serving(server)
    server.kill()
    server.wait(PATIENCE)
    assert backend_file(environment)["pid"] == server.pid
    assert ended(run("status"))[0] == 1
    following = run("serve")
    serving(following)
    assert backend_file(environment)["pid"] == following.pid


@pytest.mark.integration
def test_the_next_server_has_the_port_of_the_last_one_unless_it_is_taken(run: Run) -> None:
    first = run("serve")
    url = serving(first)
    first.kill()
    first.wait(PATIENCE)
    second = run("serve")
    assert serving(second) == url
    assert ended(run("stop"))[0] == 0
    ended(second)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", urlsplit(url).port))
        other.listen()
        assert serving(run("serve")) != url


@pytest.mark.integration
def test_a_server_without_its_home_ends_and_keeps_the_next_server(
    run: Run, environment: dict[str, str]
) -> None:
    first, home = run("serve"), Path(environment["DLICMD_HOME"])
    serving(first)
    shutil.rmtree(home)
    second = run("serve")
    address = serving(second)
    code, _, err = ended(first)
    assert code == 1 and str(home) in err and "Traceback" not in err
    assert backend_file(environment)["url"] == address
    assert second.poll() is None


def test_an_unreadable_backend_file_is_reported_in_one_line(run: Run, environment: dict[str, str]) -> None:
    (Path(environment["DLICMD_HOME"]) / "backend.json").mkdir(parents=True)
    for command in ("status", "stop", "serve"):
        code, _, err = ended(run(command))
        assert code == 1 and "backend.json" in err and len(err.splitlines()) == 1


@pytest.mark.integration
def test_a_server_that_stops_with_its_jobs_stops_those_of_all_users(run: Run) -> None:
    password = "a long password"
    assert ended(run("user", "add", "bob", DLI_USER_PASSWORD=password))[0] == 0
    url = serving(run("serve", "--host", "127.0.0.1"))
    asked = quoted("--exec-start PyTorch --user-cmd -- sleep 3600")
    request = urllib.request.Request(f"{url}{wire.EXECS}?args={asked}", method="POST", headers=basic("bob", password))
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        job = json.loads(answer.read())["id"]
    code, out, _ = ended(run("stop", "--jobs"))
    assert code == 0 and f"stopped {job}" in out
