"""Services in the console: the list, the page of one model, its load, profile and logs, trials, and saved models."""

from __future__ import annotations

import html
import io
import json
import pickle
import re
import shlex
import socket
import threading
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from live_server import TOKEN, Answer, Live, multipart
from modelling import KERNEL, Modelling, files
from page_desk import get, post, words
from serving_desk import Serving
from support import eventually
from visitor import Page

from dlicmd.contract.states import FINISHED, PENDING, RUNNING
from local_backend.api.guard import SESSION
from local_backend.console import places
from local_backend.console.sessions import csrf_of

LIST, ONE, SAVED = "/console/services", "/console/services/ping", "/console/services/-/saved"
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def dlim(live: Live) -> Modelling:
    return Modelling(live)


@pytest.fixture
def serving(live: Live) -> Iterator[Serving]:
    made = Serving(live)
    yield made
    made.close()


@pytest.fixture
def started(serving: Serving) -> Serving:
    """A server with a started model whose first kernel is ready."""
    serving.deploy()
    serving.call("PUT", "/model/ping/operation/start")
    serving.serve()
    serving.until((1, "serving", 100))
    return serving


def cells(text: str, row: str) -> list[str]:
    """Return the cells of a row without tags."""
    found = re.search(rf'<tr id="{row}">(.*?)</tr>', text, re.DOTALL)
    assert found is not None, text
    inside = re.findall(r"<td[^>]*>(.*?)</td>", found[1], re.DOTALL)
    return [html.unescape(" ".join(re.sub(r"<[^>]*>", " ", one).split())) for one in inside]


def test_empty_lists_say_how_to_begin(live: Live) -> None:
    assert "dlim run ./my-model" in words(get(live, LIST))
    assert "dlim model save RUN --name my-model" in words(get(live, SAVED))


def test_texts_of_a_model_are_shown_as_text(live: Live, dlim: Modelling) -> None:
    dlim.upload(files(tag=HOSTILE) | {"README.md": f"# {HOSTILE}\n{{{{7*7}}}}".encode()})
    page = get(live, ONE)
    assert HOSTILE in words(page).replace("< ", "<") or html.escape(HOSTILE) in page.text
    assert HOSTILE not in page.text
    readme = get(live, f"{ONE}?tab=readme")
    assert HOSTILE not in readme.text and html.escape(HOSTILE) in readme.text and "{{7*7}}" in readme.text
    assert post(live, f"{ONE}/readme", {"readme": f"new {HOSTILE}"}).status == 303
    assert html.escape(f"new {HOSTILE}") in get(live, f"{ONE}?tab=readme").text


def test_the_list_shows_what_models_do(live: Live, started: Serving) -> None:
    started.deploy("other")
    started.gateway.report(1, 2, queued=3, finished=10)
    eventually(lambda: "3" in cells(get(live, f"{LIST}").text, "service-1")[-1:], "the load is shown")
    shown = cells(get(live, "/console/parts/services", part=True).text, "service-1")
    assert (shown[:5], shown[6:]) == (["ping", "serving", "alice", "1", "2"], ["", "", "3"])
    assert cells(get(live, LIST).text, "service-2")[:4] == ["other", "stopped", "alice", "1"]
    assert get(live, f"{LIST}?page=2").status == 200


def test_other_users_see_only_what_is_shared(team: Live) -> None:
    dlim, bob = Modelling(team), team.add_user("bob")
    dlim.deploy()
    assert "ping" not in get(team, LIST, bob).text
    for path in ("", "/part", "/load/requests", "/log", "?tab=logs", "?tab=profile"):
        assert get(team, ONE + path, bob).error == (404, "model.not_found"), path
    assert post(team, f"{ONE}/share", {"users": " bob , "}).status == 303
    page = get(team, ONE, bob)
    assert page.status == 200 and "Undeploy" not in page.text and "tab=profile" not in page.text
    assert "weight-1" not in page.text and "/share" not in page.text
    assert get(team, f"{ONE}?tab=logs", bob).error == (403, "model.of_another_user")
    assert 'name="policy.kernel_min"' not in get(team, f"{ONE}?tab=profile", bob).text
    changes: dict[str, dict[str, str]] = {
        "start": {}, "stop": {}, "undeploy": {}, "rollback": {}, "promote": {"revision": "1"},
        "traffic": {"weight-1": "1"}, "share": {"everyone": "yes"}, "readme": {"readme": "x"},
        "profile": {"policy.kernel_min": "2"}}
    for change, fields in changes.items():
        assert post(team, f"{ONE}/{change}", fields, bob).error == (403, "model.of_another_user"), change
    assert post(team, f"{ONE}/share", {"everyone": "yes"}).status == 303
    assert dlim.get("/model/ping")["shared"] is True


@pytest.mark.parametrize("change", ["start", "stop", "undeploy", "rollback", "promote", "traffic", "share", "readme",
                                    "profile", "try"])
def test_changes_need_the_token_of_the_session(live: Live, dlim: Modelling, change: str) -> None:
    dlim.deploy()
    assert post(live, f"{ONE}/{change}", csrf="wrong").error == (403, "console.csrf")
    assert dlim.get("/model/ping")["state"] == "Stopped"


def test_a_model_is_started_stopped_and_undeployed(live: Live, serving: Serving) -> None:
    serving.deploy()
    assert post(live, f"{ONE}/start").headers["location"] == ONE
    exec_id = serving.serve()
    serving.until((1, "serving", 100))
    assert post(live, f"{ONE}/undeploy").error == (409, "model.started")
    assert post(live, f"{ONE}/stop").status == 303
    serving.gateway.report(1, 0)
    serving.stops(exec_id)
    serving.until((1, "stored", 100))
    assert post(live, f"{ONE}/undeploy").headers["location"] == LIST
    assert get(live, ONE).error == (404, "model.not_found")


def test_a_failed_model_says_why_and_is_started_again(live: Live, serving: Serving) -> None:
    serving.deploy()
    serving.call("PUT", "/model/ping/operation/start")
    serving.serve(ready=0)
    serving.fail(1, "The class is unknown")
    serving.until((1, "failed", 100))
    assert cells(get(live, LIST).text, "message-1") == ["The class is unknown"]
    assert "message-1" not in get(live, ONE).text and words(get(live, ONE)).count("The class is unknown") == 1
    assert f'action="{ONE}/start"' in get(live, ONE).text
    assert post(live, f"{ONE}/start").status == 303
    assert "The class is unknown" not in words(get(live, LIST))


def test_requests_move_between_revisions(live: Live, dlim: Modelling) -> None:
    dlim.deploy()
    dlim.upload(files(tag="two"), "/deployment/model/ping")
    assert "weight-2" in get(live, ONE).text
    assert post(live, f"{ONE}/traffic", {"weight-1": "90", "weight-2": "10"}).status == 303
    assert [one["weight"] for one in dlim.get("/model/ping/revisions")] == [90, 10]
    refused = post(live, f"{ONE}/traffic", {"weight-1": "-5", "weight-2": "x"})
    assert refused.error == (400, "model.traffic") and "whole number" in words(refused)
    assert post(live, f"{ONE}/promote", {"revision": "2"}).status == 303
    assert [one["weight"] for one in dlim.get("/model/ping/revisions")] == [0, 100]
    assert post(live, f"{ONE}/promote", {"revision": "x"}).error == (400, "query.number")
    assert post(live, f"{ONE}/promote", {"revision": "7"}).error == (404, "model.no_revision")
    assert post(live, f"{ONE}/rollback").status == 303
    assert [one["weight"] for one in dlim.get("/model/ping/revisions")] == [100, 0]
    assert post(live, f"{ONE}/rollback").error == (409, "model.no_earlier_revision")


def test_kernels_and_the_load_of_the_last_minutes_are_shown(live: Live, started: Serving) -> None:
    started.gateway.report(1, 2, running=1, finished=7)
    eventually(lambda: "kernel-1-2" in get(live, f"{ONE}/part", part=True).text, "the kernels are shown")
    assert cells(get(live, f"{ONE}/part").text, "kernel-1-1")[:3] == ["1", "1", "idle"]
    for chart in ("requests", "latency", "queue"):
        assert json.loads(get(live, f"{ONE}/load/{chart}").body)["x"]["kind"] == "time"
    assert get(live, f"{ONE}/load/other").error == (404, "http.no_such_path")


def test_a_refused_profile_keeps_the_values_and_says_why_beside_the_field(live: Live, dlim: Modelling) -> None:
    dlim.deploy()
    fields = {"policy.kernel_min": "0", "policy.kernel_max": "many", "kernel.envs": "A=1\r\nB=2"}
    refused = post(live, f"{ONE}/profile", fields)
    assert refused.status == 400
    label = refused.text.partition("Maximum kernels")[2].partition("</label>")[0]
    assert 'value="many"' in label and "aria-invalid" in label and "kernel_max must be" in html.unescape(label)
    assert "aria-invalid" not in refused.text.partition("Minimum kernels")[2].partition("</label>")[0]
    assert dlim.get("/model/ping/appprofile")["policy"]["kernel_max"] == 100
    assert post(live, f"{ONE}/profile", fields | {"policy.kernel_max": "-1"}).status == 303
    profile = dlim.get("/model/ping/appprofile")
    assert (profile["policy"]["kernel_min"], profile["policy"]["kernel_max"]) == (0, -1)
    assert profile["kernel"]["envs"] == [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]
    whole = post(live, f"{ONE}/profile", {"profile": "{"})
    assert whole.status == 400 and "not valid JSON" in words(whole) and ">{</textarea>" in whole.text
    assert post(live, f"{ONE}/profile", {"profile": '{"policy": {"queue_size": 5}}'}).status == 303
    assert dlim.get("/model/ping/appprofile")["policy"]["queue_size"] == 5


def test_a_profile_of_a_started_model_keeps_what_kernels_got(live: Live, started: Serving) -> None:
    refused = post(live, f"{ONE}/profile", {"kernel.gpu": "exclusive"})
    assert refused.status == 409 and "stopped" in words(refused)


def test_the_end_of_a_log_is_shown_and_loaded_again_only_if_it_grew(live: Live, started: Serving) -> None:
    log = live.paths(started.job(1).id).capture("task12n-1", "stderr", True)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(b"old " * 100_000 + f"{HOSTILE}\n".encode())
    page = get(live, f"{ONE}?tab=logs")
    assert HOSTILE not in page.text and html.escape(HOSTILE) in page.text and len(page.body) < 200_000
    again = re.search(r'hx-get="(/console/services/ping/log[^"]*)"', page.text)
    assert again is not None
    path = html.unescape(again[1])
    assert get(live, path, part=True).status == 204
    with log.open("ab") as file:
        file.write(b"later\n")
    assert "later" in get(live, path, part=True).text
    assert "No output yet" in words(get(live, f"{ONE}?tab=logs&stream=stdout"))


# --- trials


class PlayedModel:
    """The gateway's socket for the server. It answers each request with the bytes of a test."""

    def __init__(self, live: Live, answer: Callable[[bytes], bytes]) -> None:
        self.requests: list[bytes] = []
        self._answer = answer
        path = live.settings.paths.gateway_sockets / "http.sock"
        # The folder of sockets is outside of the home: an earlier run with the same home may have left a socket.
        path.unlink(missing_ok=True)
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(path))
        self._listening.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                link, _ = self._listening.accept()
            except OSError:
                return
            with link:
                request = b""
                while b"\r\n\r\n" not in request:
                    request += link.recv(65536)
                head, _, body = request.partition(b"\r\n\r\n")
                length = int(re.search(rb"content-length: (\d+)", head)[1])  # type: ignore[index]
                while len(body) < length:
                    body += link.recv(65536)
                self.requests.append(head + b"\r\n\r\n" + body)
                with suppress(BrokenPipeError):  # the reader has enough
                    link.sendall(self._answer(body))

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


def answer(body: bytes, kind: str = "application/json", status: str = "200 OK") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def try_it(live: Live, text: str = "{}", kind: str = "application/json", file: bytes | None = None,
           token: str = TOKEN) -> Answer:
    parts: list[tuple[str, str | None, bytes]] = [("csrf", None, csrf_of(token).encode())]
    parts += [("text", None, text.encode()), ("type", None, kind.encode())]
    if file is not None:
        parts.append(("file", "x.bin", file))
    body, media = multipart(parts)
    return live.call("POST", f"{ONE}/try", body, {"Cookie": f"{SESSION}={token}", "Content-Type": media,
                                                  "HX-Request": "true"}, token=None, base="")


@pytest.fixture
def played(live: Live, started: Serving) -> Iterator[list[bytes]]:
    """The answers that the model gives, the last one again and again."""
    answers: list[bytes] = [b""]
    model = PlayedModel(live, lambda _: answers[-1])
    started.requests = model.requests  # type: ignore[attr-defined]
    yield answers
    model.close()


def test_a_trial_reaches_the_model_as_the_user(live: Live, started: Any, played: list[bytes]) -> None:
    played.append(answer(json.dumps({"said": HOSTILE}).encode()))
    shown = try_it(live, '{"seq": 1}')
    assert shown.status == 200 and HOSTILE not in shown.text
    assert "200" in words(shown) and "application/json" in words(shown) and html.escape(HOSTILE) in shown.text
    (request,) = started.requests
    assert request.endswith(b'\r\n\r\n{"seq": 1}') and b"POST /dlim/v1/inference/ping " in request
    assert re.search(rb"x-dlicmd-user: alice\r\n", request, re.IGNORECASE), request
    assert TOKEN.encode() not in request
    try_it(live, file=b"\x00\xff")
    assert started.requests[-1].endswith(b"\r\n\r\n\x00\xff")
    try_it(live, "plain", "text/plain")
    assert b"text/plain" in started.requests[-1]


def test_the_answer_of_a_trial_is_shown_as_what_it_is(live: Live, played: list[bytes]) -> None:
    played.append(answer(b"bad input", "text/plain", "400 Bad Request"))
    assert "400" in words(try_it(live)) and "bad input" in words(try_it(live))
    played.append(answer(b"\x89PNG", "image/png"))
    assert 'src="data:image/png;base64,' in try_it(live).text
    played.append(answer(b"<svg/>", "image/svg+xml"))
    assert "&lt;svg/&gt;" in try_it(live).text
    played.append(answer(b"\xff\xfe", "application/octet-stream"))
    assert "not text" in words(try_it(live))
    played.append(answer(b"x" * 1_000_000, "text/plain"))
    assert len(try_it(live).body) < 300_000
    played.append(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nab")
    assert try_it(live).error == (503, "gateway.lost")


@pytest.mark.parametrize(("text", "kind", "code"), [
    ("{", "application/json", "body.json"), ("[" * 5000, "application/json", "body.json"),
    ("x", "text/html", "body.value")])
def test_a_wrong_input_is_refused_before_it_reaches_the_model(
    live: Live, dlim: Modelling, text: str, kind: str, code: str
) -> None:
    dlim.deploy()
    refused = try_it(live, text, kind)
    assert refused.error == (400, code) and "<" not in refused.text


def test_a_trial_of_a_stopped_model_says_so(live: Live, dlim: Modelling) -> None:
    dlim.deploy()
    refused = try_it(live)
    assert refused.error == (503, "model.stopped") and "dlim model start ping" in refused.text


def test_a_trial_has_a_limit_of_its_own(team: Live) -> None:
    Modelling(team).deploy()
    bob = team.add_user("bob")
    big = "x" * (1 << 19)
    assert try_it(team, file=big.encode(), token=bob).error == (404, "model.not_found")  # it is within the limit
    assert try_it(team, file=b"x" * (places.LARGEST_TRIAL + 1), token=bob).error == (413, "http.too_large")
    assert try_it(team, token=bob).error == (404, "model.not_found")


# --- saved models


def trained(live: Live, files: dict[str, bytes] | None = None, result: dict[str, bytes] | None = None) -> str:
    """Return a finished exec with a result; without `files`, with a kernel."""
    exec_id = live.submitted(files=files or {"main.py": b"print(1)\n", "kernel.py": KERNEL})
    folder = live.settings.paths.job(exec_id, "alice").model
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (result or {"weights.pt": b"w"}).items():
        (folder / name).write_bytes(content)
    live.move(exec_id, PENDING, RUNNING, FINISHED)
    return exec_id


def test_saved_models_are_promoted_deployed_and_deleted(team: Live) -> None:
    dlim, bob = Modelling(team), team.add_user("bob")
    exec_id = trained(team)
    assert dlim.call("POST", "/modelstore", {"name": "digits", "exec": exec_id}).status == 201
    page = get(team, SAVED)
    assert f'href="/console/runs/{exec_id}"' in page.text and f"{SAVED}/deploy?name=digits" in page.text
    form = get(team, f"{SAVED}/deploy?name=digits&version=1")
    assert "dlim model deploy --saved digits:1" in words(form) and "Uses the kernel kernel.py" in words(form)
    assert get(team, f"{SAVED}/deploy?name=digits&version=1", bob).error == (404, "model.not_saved")
    assert "digits" not in get(team, SAVED, bob).text
    named = {"name": "digits", "version": "1"}
    assert post(team, f"{SAVED}/promote", named | {"space": "all"}, bob).status in (403, 404)
    assert post(team, f"{SAVED}/promote", named | {"space": " "}).error == (400, "model.space")
    assert post(team, f"{SAVED}/promote", named | {"space": f"all {HOSTILE}"}).status == 303
    seen = get(team, SAVED, bob)
    assert html.escape(HOSTILE) in seen.text and HOSTILE not in seen.text and "/delete" not in seen.text
    assert post(team, f"{SAVED}/delete", named, bob).error == (403, "model.of_another_user")
    refused = post(team, f"{SAVED}/deploy", named | {"model": "mine", "kernel": "none.py"}, bob)
    assert refused.error == (400, "model.files")
    made = post(team, f"{SAVED}/deploy", named | {"model": "mine", "kernel": "kernel.py"}, bob)
    assert made.headers["location"] == f"{LIST}/mine"
    lineage = words(get(team, f"{LIST}/mine", bob))
    assert "Saved model digits, version 1" in lineage and f"Run {exec_id} of alice" in lineage
    assert f'href="/console/runs/{exec_id}"' not in get(team, f"{LIST}/mine", bob).text  # it belongs to alice
    found = post(team, f"{SAVED}/deploy", named | {"model": "found", "start": "1"})
    assert found.headers["location"] == f"{LIST}/found", "the kernel is found from the files"
    assert "kernel.py" in words(get(team, f"{LIST}/found")) and "Stop" in words(get(team, f"{LIST}/found"))
    assert post(team, f"{SAVED}/delete", named | {"version": "x"}).error == (400, "query.number")
    assert post(team, f"{SAVED}/delete", named, csrf="wrong").error == (403, "console.csrf")
    assert post(team, f"{SAVED}/delete", named).status == 303
    assert dlim.get("/modelstore") == []


def test_the_form_of_a_deployment_shows_what_it_uses(team: Live) -> None:
    """What cannot work has a sentence and its code, and no button."""
    state = io.BytesIO()
    with zipfile.ZipFile(state, "w") as archive:
        archive.writestr("net/data.pkl", pickle.dumps(OrderedDict(), 2))
    network = b"from torch import nn\n\n\nclass Net(nn.Module):\n    def __init__(self, size):\n        pass\n"
    exec_id = trained(team, files={"main.py": b"print(1)\n", "network.py": network},
                      result={"a.pth": state.getvalue(), "b.pth": state.getvalue()})
    assert Modelling(team).call("POST", "/modelstore", {"name": "net", "exec": exec_id}).status == 201
    form, at = get(team, f"{SAVED}/deploy?name=net&version=1"), f"{SAVED}/deploy?name=net&version=1&weight=model/b.pth"
    assert "(model.description)" in words(form) and '<button class="main" disabled>' in form.text
    assert 'value="model/a.pth"' in form.text and 'value="network:Net"' in form.text
    form = get(team, at)
    assert "network:Net" in words(form) and "(model.class)" in words(form)
    form = get(team, at + "&class_args=%7B%22size%22%3A+3%7D")
    assert "the weights model/b.pth , the class network:Net" in words(form) and "disabled" not in form.text
    assert "--attribute 'class_args={\"size\": 3}'" in words(form)
    given = {"name": "net", "version": "1", "weight": "model/b.pth"}
    assert post(team, f"{SAVED}/deploy", given).error == (400, "model.class")
    assert post(team, f"{SAVED}/deploy", given | {"class_args": '{"size": 3}'}).headers["location"] == f"{LIST}/net"


def textarea(live: Live) -> str:
    found = re.search(r'<textarea name="text"[^>]*>\n(.*?)</textarea>', get(live, ONE).text, re.DOTALL)
    assert found is not None
    return html.unescape(found[1])


def test_the_form_has_the_example_of_the_model(live: Live, dlim: Modelling) -> None:
    example = '{"seq": 1, "text": "</textarea><script>"}'
    dlim.upload(files() | {"example.json": example.encode(), "input.json": b"{}"})
    assert textarea(live) == example and "<script>alert" not in get(live, ONE).text
    assert "example.json of the model" in words(get(live, ONE))


def test_the_commands_send_the_example_of_the_model(live: Live, dlim: Modelling) -> None:
    dlim.upload(files() | {"example.json": b'{\n "seq": "it\'s"}'})
    [line] = [one for one in commands(live) if one.startswith("dlim invoke")]
    assert shlex.split(line) == ["dlim", "invoke", "ping", "-d", '{"seq": "it\'s"}']
    dlim.upload(files() | {"example.json": json.dumps({"x": [0.5] * 500}).encode()}, "/deployment/model/ping")
    assert "dlim invoke ping input.json" in commands(live)


def commands(live: Live) -> list[str]:
    """Return the commands that the page of the model offers to copy."""
    return [one["data-copy"] for one in Page(get(live, ONE).text).all("button") if "data-copy" in one]


@pytest.mark.parametrize("content", [b"no JSON", b"\xff", b'"' + b"x" * 100_000 + b'"'])
def test_a_file_that_is_no_example_is_not_shown(live: Live, dlim: Modelling, content: bytes) -> None:
    dlim.upload(files() | {"example.json": content})
    assert textarea(live) == "{}" and "Only the kernel knows its inputs" in words(get(live, ONE))


def test_the_form_has_an_example_made_of_the_description(live: Live, dlim: Modelling) -> None:
    inputs = [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}, {"name": "t", "datatype": "BYTES", "shape": [-1]}]
    dlim.upload(files(inputs=inputs))
    assert json.loads(textarea(live)) == {"inputs": [
        {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [0.0, 0.0]},
        {"name": "t", "datatype": "BYTES", "shape": [1], "data": ["text"]}]}
    assert "The kernel takes x: FP32, any × 2; t: BYTES, any." in words(get(live, ONE))
    dlim.upload(files(inputs=[{"name": "x", "datatype": "FP32", "shape": [-1, 3, 224, 224]}]), "/deployment/model/ping")
    assert textarea(live) == "{}" and "any × 3 × 224 × 224" in words(get(live, ONE)), "too long to be useful"


def test_a_refused_input_is_shown_as_its_sentence_and_code(live: Live, played: list[bytes]) -> None:
    about = {"error": {"code": "inference.input", "message": f"It takes 2 numbers {HOSTILE}"}, "msg": "m"}
    played.append(answer(json.dumps(about).encode(), status="400 Bad Request"))
    shown = try_it(live, "[[1]]")
    assert "400 application/json" in words(shown) and "inference.input" in words(shown)
    assert html.escape(f"It takes 2 numbers {HOSTILE}") in shown.text and "<pre" not in shown.text
    played.append(answer(b'{"error": "of the kernel"}', status="400 Bad Request"))
    assert "<pre" in try_it(live).text
