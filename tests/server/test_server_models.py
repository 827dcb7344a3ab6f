"""Models over REST: deploy, list, change, share, permissions, revisions, runtimes, tokens."""

from __future__ import annotations

import base64
import http.client
import json
import socket
import tempfile
import threading
from collections.abc import Callable
from typing import Any

import pytest
from live_server import PASSWORD, TOKEN, Live, basic, tar
from modelling import KERNEL, Modelling, description, files, zipped

from dlicmd.contract import wire
from local_backend.services.model_views import GatewayAddress
from local_backend.services.models import KEPT


@pytest.fixture
def dlim(live: Live) -> Modelling:
    return Modelling(live)


def error(answer: Any) -> tuple[int, str]:
    """Return status and code of an error, whose body has the recorded form."""
    body = answer.json()
    assert body["msg"] == body["error"]["message"]
    assert answer.error == (answer.status, body["error"]["code"])
    return answer.status, body["error"]["code"]


@pytest.mark.parametrize("form", [True, False])
@pytest.mark.parametrize("pack", [tar, lambda content: tar(content, zipped=False), zipped])
def test_a_model_is_deployed_from_each_kind_of_archive(
    dlim: Modelling, pack: Callable[[dict[str, bytes]], bytes], form: bool
) -> None:
    answer = dlim.upload(pack(files()), form=form)
    assert answer.status == 200, answer.text
    made = answer.json()
    assert {key: made[key] for key in ("name", "tag", "weight_path", "creator", "runtime", "kernel_path", "service_uri",
                                       "stream_uri", "started_at", "schema_version", "state", "shared")} == {
        "name": "ping", "tag": "test", "weight_path": "N/A", "creator": "alice", "runtime": "dlipy3",
        "kernel_path": "kernel.py", "service_uri": "", "stream_uri": "", "started_at": 0, "schema_version": "1",
        "state": "Stopped", "shared": []}
    assert [(one["number"], one["state"], one["weight"]) for one in made["revisions"]] == [(1, "stored", 100)]
    assert made["size"] == sum(map(len, files().values()))
    assert dlim.get("/model/ping") == made
    assert dlim.get("/model") == [made]
    assert dlim.get("/modelextension") == {
        "model_list": [made], "extension_list": [{"name": "ping", "resource_plan": "local/inference"}]}


def test_a_folder_at_the_top_of_the_archive_is_the_folder_of_the_model(dlim: Modelling) -> None:
    assert dlim.upload({f"ping/{name}": content for name, content in files().items()}).status == 200


@pytest.mark.parametrize(("content", "code"), [
    ({"kernel.py": KERNEL, "README.md": b"x"}, "model.files"),
    (files() | {"model.json": b"{"}, "model.description"),
    (files(name="Bad Name"), "model.description"),
    (files(kernel_path="other.py"), "model.files"),
    (b"no archive", "submission.archive"),
])
def test_a_bad_submission_is_refused_and_leaves_nothing(
    live: Live, dlim: Modelling, content: dict[str, bytes] | bytes, code: str
) -> None:
    assert error(dlim.upload(content)) == (400, code)
    assert live.nothing_left()
    assert dlim.get("/model") == []


def test_an_unknown_runtime_is_refused(dlim: Modelling) -> None:
    assert error(dlim.upload(files(runtime="cobol"))) == (404, "runtime.not_found")


def test_a_name_exists_once_and_a_redeployment_adds_a_revision(live: Live, dlim: Modelling) -> None:
    dlim.deploy()
    assert error(dlim.upload(files())) == (409, "model.exists")
    assert error(dlim.upload(files(name="pong"), "/deployment/model/ping")) == (400, "model.name")
    assert error(dlim.upload(files(name="pong"), "/deployment/model/pong")) == (404, "model.not_found")
    again = dlim.upload(files(tag="two") | {"README.md": b"# second\n"}, "/deployment/model/ping").json()
    assert [(one["number"], one["weight"]) for one in again["revisions"]] == [(1, 0), (2, 100)]
    assert again["tag"] == "two"
    assert dlim.get("/model/ping/readme") == {"readme": "# second\n"}
    assert len(list(live.settings.paths.bundles.iterdir())) == 2


def test_old_revisions_without_use_are_removed(live: Live, dlim: Modelling) -> None:
    dlim.deploy()
    for number in range(KEPT + 3):
        dlim.upload(files(tag=str(number)), "/deployment/model/ping")
    numbers = [one["number"] for one in dlim.get("/model/ping/revisions")]
    assert numbers == list(range(4, KEPT + 5))
    assert len(list(live.settings.paths.bundles.iterdir())) == len(numbers)


def test_start_and_stop_answer_200_with_an_empty_body(dlim: Modelling) -> None:
    dlim.deploy()
    for action, state in (("start", "not-available"), ("start", "not-available"), ("stop", "disabled")):
        answer = dlim.call("PUT", f"/model/ping/operation/{action}")
        assert (answer.status, answer.body) == (200, b"")
        assert dlim.get("/model/ping/instance") == {"name": "ping", "state": state}
    assert dlim.get("/model/ping/streaming") == {"streaming_service_uri": ""}
    assert dlim.get("/model/ping")["started_at"] > 0


def test_a_started_model_cannot_be_removed(live: Live, dlim: Modelling) -> None:
    dlim.deploy()
    dlim.call("PUT", "/model/ping/operation/start")
    assert error(dlim.call("DELETE", "/model/ping")) == (409, "model.started")
    dlim.call("PUT", "/model/ping/operation/stop")
    answer = dlim.call("DELETE", "/model/ping")
    assert (answer.status, answer.body) == (200, b"")
    assert error(dlim.call("GET", "/model/ping")) == (404, "model.not_found")
    assert live.nothing_left()


def test_the_profile_is_read_and_changed(dlim: Modelling) -> None:
    dlim.deploy()
    before = dlim.get("/model/ping/appprofile")
    assert before["policy"]["kernel_min"] == 1
    before["policy"]["kernel_max"] = 7
    after = dlim.call("PUT", "/model/ping/appprofile", before).json()
    assert after["policy"]["kernel_max"] == 7
    assert dlim.get("/model/ping/appprofile") == after
    assert error(dlim.call("PUT", "/model/ping/appprofile", {"policy": {"kernel_min": -1}})) == (400, "model.profile")
    assert error(dlim.call("PUT", "/model/ping/appprofile", b"{")) == (400, "body.json")


def test_a_profile_changes_in_flight_as_far_as_possible(dlim: Modelling) -> None:
    dlim.deploy()
    dlim.call("PUT", "/model/ping/operation/start")
    assert dlim.call("PUT", "/model/ping/appprofile", {"policy": {"kernel_max": 3, "task_batch_size": 4}}).status == 200
    refused = dlim.call("PUT", "/model/ping/appprofile", {"kernel": {"gpu": "exclusive"}})
    assert error(refused) == (409, "model.started")
    assert "kernel.gpu" in refused.json()["msg"]
    assert dlim.get("/model/ping/appprofile")["kernel"]["gpu"] == "no"


def test_readme_and_description_are_changed(dlim: Modelling) -> None:
    dlim.deploy()
    assert dlim.call("PUT", "/model/ping/readme", {"readme": "new"}).json() == {"readme": "new"}
    assert dlim.get("/model/ping/readme") == {"readme": "new"}
    changed = dlim.call("PUT", "/model/ping", dlim.get("/model/ping") | {
        "tag": "t2", "attributes": [{"key": "a", "value": "b"}]}).json()
    assert (changed["tag"], changed["attributes"]) == ("t2", [{"key": "a", "value": "b"}])
    assert error(dlim.call("PUT", "/model/ping", {"attributes": [1]})) == (400, "model.description")
    assert error(dlim.call("PUT", "/model/ping", [])) == (400, "body.value")


def test_traffic_promotion_and_rollback_of_a_stopped_model(dlim: Modelling) -> None:
    dlim.deploy()
    dlim.upload(files(tag="two"), "/deployment/model/ping")

    def weights(answer: Any) -> dict[int, int]:
        assert answer.status == 200, answer.text
        return {one["number"]: one["weight"] for one in answer.json()["revisions"] if one["weight"]}

    assert weights(dlim.call("PUT", "/model/ping/operation/rollback")) == {1: 100}
    assert error(dlim.call("PUT", "/model/ping/operation/rollback")) == (409, "model.no_earlier_revision")
    assert weights(dlim.call("PUT", "/model/ping/operation/promote")) == {2: 100}
    assert weights(dlim.call("PUT", "/model/ping/operation/promote?revision=1")) == {1: 100}
    assert error(dlim.call("PUT", "/model/ping/operation/promote?revision=9")) == (404, "model.no_revision")
    assert weights(dlim.call("PUT", "/model/ping/traffic", {"1": 90, "2": 10})) == {1: 90, 2: 10}
    for bad in ({"3": 1}, {"1": -1}, {"1": "x"}, {"1": 0}, {}):
        assert error(dlim.call("PUT", "/model/ping/traffic", bad)) == (400, "model.traffic")
    assert weights(dlim.call("PUT", "/model/ping/operation/rollback")) == {1: 100}


def test_models_of_other_users_do_not_exist_unless_they_are_shared(start: Callable[..., Live]) -> None:
    live = start(embedded=False)
    dlim, bob, carol = Modelling(live), live.add_user("bob"), live.add_user("carol")
    dlim.deploy(token=bob)
    assert dlim.get("/model", carol) == []
    for method, path, body in (
        ("GET", "/model/ping", None), ("GET", "/model/ping/appprofile", None), ("GET", "/model/ping/instance", None),
        ("PUT", "/model/ping/operation/start", None), ("DELETE", "/model/ping", None), ("GET", "/model/ping/why", None),
        ("PUT", "/model/ping/traffic", {"1": 1}), ("GET", "/model/ping/logs", None), ("POST", "/inference/ping", {}),
        ("PUT", "/model/ping/shared", []), ("PUT", "/model/ping/readme", {"readme": ""}),
    ):
        assert error(dlim.call(method, path, body, carol)) == (404, "model.not_found"), path
    assert dlim.call("PUT", "/model/ping/shared", ["carol"], bob).status == 204
    assert [one["name"] for one in dlim.get("/model", carol)] == ["ping"]
    assert dlim.get("/model/ping", carol)["shared"] == ["carol"]
    for method, path, body in (
        ("PUT", "/model/ping/operation/start", None), ("DELETE", "/model/ping", None),
        ("PUT", "/model/ping/shared", True), ("GET", "/model/ping/logs", None),
        ("PUT", "/model/ping/appprofile", {}),
    ):
        assert error(dlim.call(method, path, body, carol)) == (403, "model.of_another_user"), path
    assert error(dlim.upload(files(), "/deployment/model/ping", token=carol)) == (403, "model.of_another_user")
    assert dlim.call("PUT", "/model/ping/operation/start").status == 200  # alice is the administrator
    for bad in ("bob", {"a": 1}, [1]):
        assert error(dlim.call("PUT", "/model/ping/shared", bad, bob)) == (400, "model.shared")


def test_users_that_a_model_is_shared_with_see_no_secrets_of_its_kernels(start: Callable[..., Live]) -> None:
    live = start(embedded=False)
    dlim, bob, carol = Modelling(live), live.add_user("bob"), live.add_user("carol")
    pairs = {"HF_TOKEN": "hush-1", "LAYERS": "3"}
    dlim.deploy(token=bob, mk_environments=[{"name": name, "value": value} for name, value in pairs.items()],
                attributes=[{"key": "api_key", "value": "hush-2"}])
    assert dlim.call("PUT", "/model/ping/appprofile", {"kernel": {"envs": [
        {"name": "DB_PASSWORD", "value": "hush-3"}]}}, bob).status == 200
    assert dlim.call("PUT", "/model/ping/shared", ["carol"], bob).status == 204
    for path in ("/model", "/model/ping", "/modelextension", "/model/ping/appprofile", "/model/ping/revisions"):
        answer = dlim.call("GET", path, token=carol)
        assert answer.status == 200 and "hush" not in answer.text, path
    assert dlim.get("/model/ping", carol)["mk_environments"] == [
        {"name": "HF_TOKEN", "value": "***"}, {"name": "LAYERS", "value": "3"}]
    for token in (bob, TOKEN):
        assert dlim.get("/model/ping", token)["mk_environments"][0]["value"] == "hush-1"
        assert dlim.get("/model/ping/appprofile", token)["kernel"]["envs"][0]["value"] == "hush-3"


def test_quotas_of_models(start: Callable[..., Live]) -> None:
    from local_backend.settings import Quotas

    live = start(quotas=Quotas(models=2, started_models=1))
    dlim = Modelling(live)
    dlim.deploy("one")
    dlim.deploy("two")
    assert error(dlim.upload(files("three"))) == (507, "quota.models")
    assert dlim.call("PUT", "/model/one/operation/start").status == 200
    assert error(dlim.call("PUT", "/model/two/operation/start")) == (507, "quota.models")


def test_a_user_decides_for_no_other_which_program_serves_a_model(start: Callable[..., Live]) -> None:
    live = start(embedded=False)
    dlim, bob, carol = Modelling(live), live.add_user("bob"), live.add_user("carol")
    for name in ("condaenv", "dlipy36-wmlce170", "mine"):
        assert dlim.call("POST", "/deployment/runtime", {"type": name, "command": "evil"}, bob).status == 200
    dlim.deploy("a", bob, runtime="mine")
    dlim.deploy("b", carol, runtime="condaenv")
    assert live.services.runtimes.resolved("carol", "condaenv").command is None
    assert live.services.runtimes.resolved("bob", "condaenv").command == ("evil",)
    assert error(dlim.upload(files("c", runtime="mine"), token=carol)) == (404, "runtime.not_found")
    assert error(dlim.upload(files("c", runtime="mine"))) == (404, "runtime.not_found"), "also of an administrator"
    assert error(dlim.call("GET", "/deployment/runtime/mine", token=carol)) == (404, "runtime.not_found")
    assert "evil" not in dlim.call("GET", "/deployment/runtime", token=carol).text
    assert dlim.call("GET", "/deployment/runtime").text.count("evil") == 3, "an administrator sees all"
    assert dlim.call("POST", "/deployment/runtime", {"type": "ours", "command": "serve"}).status == 200
    assert dlim.deploy("d", carol, runtime="ours")["runtime"] == "ours"
    refused = dlim.call("DELETE", "/deployment/runtime/mine", token=bob)
    assert error(refused) == (409, "runtime.in_use")


def test_the_number_of_runtimes_is_bounded(dlim: Modelling, monkeypatch: pytest.MonkeyPatch) -> None:
    from local_backend.services import runtimes

    monkeypatch.setattr(runtimes, "_MOST", 2)
    for name in ("a", "b"):
        assert dlim.call("POST", "/deployment/runtime", {"type": name}).status == 200
    assert error(dlim.call("POST", "/deployment/runtime", {"type": "c"})) == (507, "quota.models")


def test_runtimes(dlim: Modelling) -> None:
    assert [one["type"] for one in dlim.get("/deployment/runtime")["runtimes"]] == ["python", "dlipy3"]
    made = dlim.call("POST", "/deployment/runtime", {"type": "cpp", "command": "./serve --fast", "schema_version": "1"})
    assert made.status == 200 and made.json()["creator"] == "alice"
    assert error(dlim.call("POST", "/deployment/runtime", {"type": "cpp"})) == (409, "runtime.exists")
    changed = dlim.call("PUT", "/deployment/runtime/cpp", {"type": "cpp", "command": ["./other"]})
    assert changed.json()["command"] == ["./other"]
    for bad in ({}, {"type": "a b"}, {"type": "x", "command": "'"}, {"type": "x", "docker_img": "i"}, [],
                {"type": "x", "envs": [{"n": 1}]}, {"type": "x", "launchr": ""}):
        assert error(dlim.call("POST", "/deployment/runtime", bad)) == (400, "runtime.invalid"), bad
    dlim.deploy(runtime="cpp")
    assert error(dlim.call("DELETE", "/deployment/runtime/cpp")) == (409, "runtime.in_use")
    dlim.call("DELETE", "/model/ping")
    assert dlim.call("DELETE", "/deployment/runtime/cpp").json() == {"status": "OK"}
    assert error(dlim.call("DELETE", "/deployment/runtime/cpp")) == (404, "runtime.not_found")
    assert "does not exist" in dlim.call("GET", "/deployment/runtime/cpp").json()["msg"]


@pytest.mark.parametrize("as_json", [True, False])
def test_tokens_of_users_and_services(live: Live, dlim: Modelling, as_json: bool) -> None:
    pair = base64.b64encode(f"alice:{PASSWORD}".encode()).decode()
    body = {"method": "password", "userpasswd": pair} if as_json else None
    answer = dlim.call("POST", "/auth/token", body, None, **({} if as_json else basic("alice", PASSWORD)))
    assert answer.status == 200
    found = answer.json()
    assert found["user_token"] == found["access_token"] != found["service_token"]
    assert dlim.get("/model", found["user_token"]) == []
    service = found["service_token"]
    assert error(dlim.call("GET", "/model", token=service)) == (403, "auth.scope")
    assert live.call("GET", "/execs", token=service).error == (403, "auth.scope")
    assert error(dlim.call("POST", "/inference/none", {}, service)) == (404, "model.not_found")
    again = dlim.call("POST", "/auth/token/inference", token=found["user_token"]).json()
    assert set(again) == {"service_token"}
    renewed = dlim.call("POST", "/auth/token/inference", token=service).json()
    assert renewed == {"service_token": service}, "a service token does not renew itself"
    for header in ("X-Auth-Token", "X-User-Token"):
        assert error(dlim.call("POST", "/inference/none", {}, None, **{header: again["service_token"]}))[0] == 404
    assert dlim.get("/model") == [] and live.call("GET", "/tokens", token=TOKEN).json() == []


def test_wrong_logons(dlim: Modelling) -> None:
    wrong = base64.b64encode(b"alice:no").decode()
    assert error(dlim.call("POST", "/auth/token", {"userpasswd": wrong}, None)) == (401, "auth.wrong_password")
    assert error(dlim.call("POST", "/auth/token", {"userpasswd": "%"}, None)) == (400, "body.value")
    assert error(dlim.call("POST", "/auth/token", None, None)) == (401, "auth.required")


@pytest.mark.parametrize(("method", "path"), [
    ("POST", "/deployment/model"), ("POST", "/deployment/model/ping"), ("POST", "/modelstore")])
def test_a_deployment_that_the_scope_refuses_is_recorded(
    start: Callable[..., Live], method: str, path: str
) -> None:
    live = start(embedded=False)
    bob = live.add_user("bob")
    made = json.dumps({"name": "ci", "scope": "read", "expiresIn": 600}).encode()
    token = live.call("POST", "/tokens", made, {"Content-Type": "application/json"}, token=bob).json()["token"]
    assert error(Modelling(live).call(method, path, token=token)) == (403, "auth.scope")
    (record,) = [one for one in map(json.loads, (live.settings.home / "audit.log").read_text().splitlines())
                 if one["outcome"] == "refused"]
    assert (record["user"], record["token"], record["code"]) == ("bob", "ci", "auth.scope")
    assert record["action"].startswith("model.")


class StreamingGateway:
    """A gateway that sends the second part of its answer when the test has the first one."""

    def __init__(self, path: str) -> None:
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen()
        self.go_on = threading.Event()
        threading.Thread(target=self._answer, daemon=True).start()

    def _answer(self) -> None:
        link, _ = self.listener.accept()
        with link:
            asked = b""
            # The whole request is read: Linux resets a socket that is closed with something left to read.
            while not asked.endswith(b"\r\n\r\n{}"):
                asked += link.recv(65536)
            link.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
                         b"9\r\ndata: a\n\n\r\n")
            self.go_on.wait(60)
            link.sendall(b"9\r\ndata: b\n\n\r\n0\r\n\r\n")


def test_a_streamed_answer_passes_the_server_as_it_arrives(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(prefix="g") as folder:
        gateway = StreamingGateway(f"{folder}/s")
        address = GatewayAddress("http", "127.0.0.1", 1, None, f"{folder}/s")
        monkeypatch.setattr(type(live.services.models.facts), "address", lambda facts: address)
        client = http.client.HTTPConnection("127.0.0.1", live.port, timeout=60)
        client.request("POST", "/dlim/v1/inference/ping", b"{}", {
            "Authorization": f"Bearer {TOKEN}", "Accept": "text/event-stream"})
        answer = client.getresponse()
        assert (answer.status, answer.getheader("content-type")) == (200, "text/event-stream")
        assert answer.readline() + answer.readline() == b"data: a\n\n"
        gateway.go_on.set()
        assert answer.read() == b"data: b\n\n"
        client.close()
        gateway.listener.close()


def test_requests_without_gateway_get_a_reason(dlim: Modelling) -> None:
    dlim.deploy()
    assert error(dlim.call("POST", "/inference/ping", {})) == (503, "model.stopped")
    dlim.call("PUT", "/model/ping/operation/start")
    assert error(dlim.call("POST", "/inference/ping", {})) == (503, "gateway.absent")
    assert dlim.get("/model/ping/why")["state"] == "Starting"


def test_the_paths_of_the_console(live: Live, dlim: Modelling) -> None:
    folder = live.settings.data_fs / "ping"
    folder.mkdir(parents=True)
    (folder / "kernel.py").write_bytes(KERNEL)
    asked = {"name": "ping", "edi_py": "kernel.py", "modelPath": "ping", "weightPath": "N/A", "runtime": "dlipy3",
             "attribute": "a=1", "mcenv": '{"B": "2"}'}
    answer = live.call("POST", "/edimodels/new", json.dumps(asked).encode())
    assert answer.status == 201, answer.text
    assert answer.json()["attributes"] == [{"key": "a", "value": "1"}]
    assert [one["name"] for one in live.call("GET", "/edimodels").json()] == ["ping"]
    assert live.call("POST", "/edimodels/ping").status == 201
    assert live.call("POST", "/edimodels/ping", b"{}", {"Content-Type": "application/json"}).status == 201
    assert live.call("PUT", "/edimodels/ping/operation/start").status == 200
    assert live.call("DELETE", "/edimodels/ping").error == (409, "model.started")
    assert live.call("POST", "/edimodels/ping/inference", b"{}").error == (503, "gateway.absent")
    assert live.call("GET", "/edimodels/ping/instance").json()["state"] == "not-available"
    assert live.call("GET", "/edimodels/none").error == (404, "model.not_found")
    assert live.call("POST", "/edimodels/new", json.dumps(asked | {"modelPath": "/etc/../nowhere"}).encode()).error == (
        400, "data.invalid")
    whole = {"edi_py": f"{folder}/kernel.py", "modelPath": str(folder), "weightPath": f"{folder}/"}
    answer = live.call("POST", "/edimodels/new", json.dumps(asked | whole | {"name": "pong"}).encode())
    assert (answer.status, answer.json()["kernel_path"], answer.json()["weight_path"]) == (201, "kernel.py", ".")


@pytest.mark.parametrize("runtime", ["dlipy36-wmlce170", "dlipy37", "python3.11", "condaenv"])
def test_a_name_of_the_original_means_the_python_of_the_server(dlim: Modelling, runtime: str) -> None:
    assert dlim.deploy(runtime=runtime)["runtime"] == runtime


def test_the_server_says_that_it_keeps_models(live: Live) -> None:
    assert wire.EXT_MODELS in live.call("GET", "/conf").json()["DLICMD_EXTENSIONS"].split(",")
    assert description()["name"] == "ping"
