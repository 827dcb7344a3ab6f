"""Models with real gateway and kernels: the first answer, revisions under load, and killed processes."""

from __future__ import annotations

import io
import json
import os
import signal
import tarfile
import threading
import urllib.error
import urllib.request
from typing import Any

import pytest
from support import eventually
from user import User

pytestmark = pytest.mark.integration

KERNEL = """
import redhareapiversion
from redhareapi import Kernel


class Answer(Kernel):
    def on_task_invoke(self, task_context):
        while task_context is not None:
            task_context.set_output_data("{word}:" + task_context.get_input_data())
            task_context = task_context.next()


if __name__ == "__main__":
    Answer().run()
"""


class Site:
    """The server of a user, as a client of models uses it."""

    def __init__(self, user: User) -> None:
        self.user = user
        self.serve()

    def serve(self) -> None:
        """Start the server with an ordinary command."""
        assert self.user.run("--exec-get-all").code == 0
        found = json.loads((self.user.home / "backend.json").read_text())
        self.url, self.token = f"{found['url']}/dlim/v1", found["token"]

    def call(self, method: str, url: str, body: bytes | None = None) -> tuple[int, bytes]:
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/octet-stream"}
        request = urllib.request.Request(url if "://" in url else self.url + url, body, headers, method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=100) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as problem:
            return problem.code, problem.read()

    def deploy(self, word: str, path: str = "", kernel: str = KERNEL) -> None:
        """Deploy a model whose answers begin with a word."""
        value = {"name": "echo", "tag": word, "weight_path": "N/A", "runtime": "dlipy3", "kernel_path": "kernel.py",
                 "schema_version": "1"}
        content = {"model.json": json.dumps(value), "kernel.py": kernel.replace("{word}", word), "README.md": "# Echo"}
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
            for name, text in content.items():
                member = tarfile.TarInfo(name)
                member.size = len(text)
                archive.addfile(member, io.BytesIO(text.encode()))
        status, answer = self.call("POST", f"/deployment/model{path}", buffer.getvalue())
        assert status == 200, answer

    def model(self) -> dict[str, Any]:
        status, answer = self.call("GET", "/model/echo")
        assert status == 200, answer
        found: dict[str, Any] = json.loads(answer)
        return found

    def states(self) -> list[str]:
        return [one["state"] for one in self.model()["revisions"]]

    def ask(self, url: str = "/inference/echo", text: bytes = b"x") -> tuple[int, bytes]:
        return self.call("POST", url, text)

    def gateways(self) -> list[int]:
        """Return the process ids of the gateways."""
        return [one.pid for one in self.user.running("local_backend.inference.gateway")]

    def gateway(self) -> int:
        """Return the process id of the gateway."""
        (found,) = self.gateways()
        return found


@pytest.fixture
def site(warm: User) -> Site:
    """A server with a started model."""
    found = Site(warm)
    found.deploy("one")
    assert found.call("PUT", "/model/echo/operation/start") == (200, b"")
    assert found.ask() == (200, b"one:x")  # waits for gateway and kernel
    return found


def test_a_redeployment_under_load_loses_no_request(site: Site) -> None:
    uri = eventually(lambda: site.model()["service_uri"], "the model has a URL")
    answers: list[tuple[int, bytes]] = []
    done = threading.Event()

    def load() -> None:
        while not done.is_set():
            answers.append(site.ask(uri))

    threads = [threading.Thread(target=load) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        site.deploy("two", "/echo")
        eventually(lambda: site.states() == ["stored", "serving"], "the new revision serves")
        assert site.call("PUT", "/model/echo/operation/rollback")[0] == 200
        eventually(lambda: site.states() == ["serving", "stored"], "the old revision serves")
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert {status for status, _ in answers} == {200}
    assert {answer for _, answer in answers} == {b"one:x", b"two:x"}
    assert site.ask(uri) == (200, b"one:x")


def test_serving_survives_the_server_and_a_killed_gateway_is_replaced(site: Site) -> None:
    uri = eventually(lambda: site.model()["service_uri"], "the model has a URL")
    assert site.ask(uri) == (200, b"one:x")
    os.kill(site.user.server_pid, signal.SIGKILL)
    assert site.ask(uri) == (200, b"one:x")  # the gateway knows the token
    gateway = site.gateway()
    site.serve()
    assert site.ask() == (200, b"one:x")
    assert (site.gateway(), site.model()["service_uri"]) == (gateway, uri)
    os.kill(gateway, signal.SIGKILL)
    eventually(lambda: gateway not in site.gateways(), "the gateway ends")
    assert site.ask(uri) == (200, b"one:x")  # the connection waits for the next gateway
    assert site.gateway() != gateway
    assert site.model()["service_uri"] == uri


def test_an_answer_that_the_server_passes_on_has_each_header_once(site: Site) -> None:
    request = urllib.request.Request(site.url + "/inference/echo", b"x", {"Authorization": f"Bearer {site.token}"})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=100) as answer:
        names = [name.lower() for name in answer.headers]
    assert "date" in names
    assert len(names) == len(set(names))


def test_a_broken_revision_leaves_the_old_one_serving(site: Site) -> None:
    site.deploy("broken", "/echo", "raise SystemExit('broken on purpose')\n")
    eventually(lambda: site.states() == ["serving", "failed"], "the new revision fails")
    assert "broken on purpose" in site.model()["message"]
    assert site.ask() == (200, b"one:x")


def test_a_model_goes_to_zero_and_back_and_stops(site: Site) -> None:
    profile = {"policy": {"kernel_min": 0, "kernel_delay_release_time": 1, "schedule_interval": 1}}
    assert site.call("PUT", "/model/echo/appprofile", json.dumps(profile).encode())[0] == 200
    eventually(lambda: site.model()["revisions"][0]["kernels"] == 0, "it has no kernel")
    assert site.ask() == (200, b"one:x")
    assert site.call("PUT", "/model/echo/operation/stop") == (200, b"")
    eventually(lambda: site.states() == ["stored"], "it is stopped")
    assert site.ask()[0] == 503
    assert site.call("DELETE", "/model/echo") == (200, b"")


def test_stop_leaves_models_and_stop_with_jobs_ends_them(site: Site) -> None:
    uri = eventually(lambda: site.model()["service_uri"], "the model has a URL")
    stopped = site.user.backend("stop")
    assert stopped.code == 0 and "echo" in stopped.out
    assert site.ask(uri) == (200, b"one:x")
    site.serve()
    assert site.user.backend("stop", "--jobs").code == 0
    eventually(lambda: not site.user.processes(), "no process is left")
    site.serve()
    assert site.states() == ["stored"]
