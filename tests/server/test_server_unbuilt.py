"""Frameworks and prebuilt models of the recorded catalog that this server cannot run yet."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from live_server import Live, tar

from dlicmd.contract import wire
from local_backend.settings import Quotas
from local_backend.store import execs

TENSORFLOW, ELASTIC = "--exec-start tensorflow --model-main main.py", "--exec-start edtTensorflow --model-main main.py"
PREBUILT = "--exec-start PyTorch --pbmodel-name VGG16 --pbmodel-cmd train"
STRICT = {wire.PREFER: wire.STRICT}
FILES = {"main.py": b"1"}
ALL = [(TENSORFLOW, FILES), (ELASTIC, FILES), (TENSORFLOW.replace("tensorflow", "disttensorflow"), FILES),
       (PREBUILT, {}), ("--exec-start edtPyTorch --pbmodel-name MNIST --numWorker 2", {}),
       (f"{PREBUILT} --model-dir d", {"x.modelDir.tar": tar({"d/note.txt": b"no program"})})]


def ended(live: Live, args: str = PREBUILT, files: dict[str, bytes] | None = None, **more: object) -> str:
    answer = live.submit(args, files or {}, **more)
    assert answer.status == 200, answer
    assert answer.json()["state"] == "ERROR" and answer.json()["appId"] == answer.json()["id"]
    return str(answer.json()["id"])


@pytest.mark.parametrize(("args", "files"), ALL)
def test_clients_of_the_recorded_server_get_an_exec_that_ended(live: Live, args: str, files: dict[str, bytes]) -> None:
    exec_id = ended(live, args, files)
    shown = live.call("GET", f"/execs/{exec_id}").json()
    assert (shown["state"], shown["reason"]) == ("ERROR", "UNSUPPORTED") and shown["endTime"] >= shown["createTime"]
    message = shown["message"]
    assert "local backend" in message
    process = "driver" if shown["elastic"] else "executor/1"
    for path in (f"/execs/{exec_id}/log", f"/execs/{exec_id}/log?logType=errlog",
                 f"/execs/{exec_id}/log?logType=outerrlog",
                 *(f"/scheduler/applications/{exec_id}/{process}/logs/{log}"
                   for log in ("stdout", "stderr", "launcherlog"))):
        assert message in live.call("GET", path).text, path
    (application,) = live.call("GET", f"/scheduler/engine/applications/{exec_id}").json()
    assert application["state"] == "ERROR"
    assert [one["id"] for one in live.call("GET", "/execs?state=ERROR").json()] == [exec_id]


@pytest.mark.parametrize(("args", "files"), ALL)
def test_clients_that_ask_for_it_get_a_refusal(shared: Live, args: str, files: dict[str, bytes]) -> None:
    code = "submission.option" if "pbmodel" in args else "submission.framework"
    assert shared.submit(args, files, headers=STRICT).error == (400, code) and shared.nothing_left()


@pytest.mark.parametrize(("preference", "strict"), [
    ("handling=strict", True), ("respond-async, Handling=\"strict\"; x=1", True), ("handling = strict", True),
    ("handling=lenient", False), ("strict", False), ("", False),
])
def test_the_preference_is_read_as_the_standard_says(live: Live, preference: str, strict: bool) -> None:
    assert live.submit(PREBUILT, headers={wire.PREFER: preference}).status == (400 if strict else 200)


@pytest.mark.parametrize("args", [
    "--exec-start PyTorch --pbmodel-name Mine", "--exec-start keras --model-main main.py",
    "--exec-start Nothing --pbmodel-name VGG16", f"{TENSORFLOW} --numWorker 2", f"{TENSORFLOW} --msd-env X",
    f"{PREBUILT} --cs-url-meta ftp://nowhere",
])
def test_other_mistakes_are_refused_to_every_client(shared: Live, args: str) -> None:
    for headers in ({}, STRICT):
        assert shared.submit(args, FILES, headers=headers).status == 400
    assert shared.nothing_left()


def test_it_can_be_deleted_and_nothing_else(live: Live) -> None:
    exec_id = ended(live, ELASTIC, FILES)
    assert live.database.read(execs.unfinished) == [], "the supervisor must not run it"
    assert live.call("POST", f"/execs/{exec_id}/stop").error == (400, "exec.ended")
    assert live.call("GET", f"/execs/{exec_id}/result").error[1] == "exec.no_result"
    assert live.call("POST", f"/execs/{exec_id}/verify").error == (400, "verify.unsupported")
    assert live.call("GET", f"/execs/{exec_id}/why").json()["state"] == "ERROR"
    assert live.call("DELETE", f"/execs/{exec_id}").status == 204
    assert live.call("GET", f"/execs/{exec_id}").error == (400, "exec.not_found")
    assert [row.id for row in live.database.read(execs.unfinished)] == [exec_id], "the supervisor removes its files"


def test_it_keeps_no_secret_and_forwards_nothing(live: Live) -> None:
    exec_id = ended(live, f"{PREBUILT} --cs-url-meta http://127.0.0.1:9/ --cs-url-bearer s3cr3t")
    assert not live.settings.paths.order(exec_id).exists()
    assert "s3cr3t" not in live.row(exec_id).args


def test_a_repeated_submission_returns_the_same_exec(live: Live) -> None:
    key = {wire.KEY_HEADER: '"once"'}
    assert ended(live, headers=key) == ended(live, headers=key) != ended(live)


def test_its_events_say_how_it_ended(live: Live) -> None:
    news = live.call("GET", f"/execs/{ended(live)}/follow?wait=0").json()
    assert [event["state"] for event in news["events"]] == ["SUBMITTED", "ERROR"]
    assert "VGG16" in news["events"][-1]["message"]


def test_it_counts_as_an_exec_that_is_stored(start: Callable[..., Live]) -> None:
    live = start(quotas=replace(Quotas(), active_execs=1, stored_execs=2))
    for _ in range(2):
        ended(live)
    assert live.submit(PREBUILT).error == (507, "quota.execs")
    assert live.nothing_left() is False


def test_the_audit_record_names_the_exec(live: Live) -> None:
    exec_id = ended(live)
    record = json.loads(live.settings.paths.audit.read_text().splitlines()[-1])
    assert (record["action"], record["about"], record["outcome"]) == ("exec.submit", [exec_id], "done")
