"""The Python client: its methods are documented, typed and behave as their signatures state."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs

import pytest
from fake_server import TOKEN, FakeServer, exec_object

import dlicmd
from dlicmd.cli import main
from dlicmd.contract.exits import Exit
from dlicmd.sdk.errors import DlicmdError, NoSuchExec, UsageProblem, WaitTimeout
from dlicmd.sdk.submission import SUBMIT_OPTIONS

PAGE = Path(__file__).parent.parent.parent / "docs" / "client.md"
METHODS = {name: method for name, method in inspect.getmembers(dlicmd.Client, inspect.isfunction) if name[0] != "_"}


@pytest.fixture
def client(fake: FakeServer) -> dlicmd.Client:
    return dlicmd.Client("127.0.0.1", fake.port, http=True, token=TOKEN)


def test_every_method_is_documented_and_typed() -> None:
    section = PAGE.read_text(encoding="utf-8").split("\n## Methods\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", " ".join(rows))) == set(METHODS)
    for name, method in METHODS.items():
        described = inspect.signature(method)
        assert method.__doc__ and described.return_annotation is not inspect.Signature.empty, name
        assert not inspect.iscoroutinefunction(method)


def test_a_job_is_submitted_and_awaited(client: dlicmd.Client, fake: FakeServer, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "train.py").write_text("print(1)\n")
    options = {"model-dir": model, "model-main": "train.py", "numWorker": 2, "msd-env": ["A=1", "B=-2"],
               "exclusive": True, "user-cmd": False}
    run = client.submit("PyTorch", options, ["--lr", "0.1", "two words"])
    assert run["id"] == "wmla-1"
    [seen] = fake.requests("POST")
    assert seen.query["args"] == ["--exec-start PyTorch --model-dir model --model-main train.py --numWorker 2 "
                                  "--msd-env A=1 --msd-env B=-2 --exclusive -- --lr 0.1 'two words'"]
    with pytest.raises(WaitTimeout):
        client.wait("wmla-1", timeout=1)
    fake.execs["wmla-1"] = exec_object("wmla-1", state="FINISHED")
    assert client.wait("wmla-1")["state"] == "FINISHED"


def test_every_call_accepts_errors_as_text(client: dlicmd.Client, fake: FakeServer) -> None:
    client.execs()
    client.frameworks()
    fake.execs["wmla-1"] = exec_object("wmla-1")
    client.exec("wmla-1")
    client.logon("alice", "secret")
    assert {seen.headers["accept"] for seen in fake.seen} == {"application/json, text/plain;q=0.9"}


def test_words_for_the_program_must_be_a_list(client: dlicmd.Client, fake: FakeServer, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    with pytest.raises(UsageProblem, match="must be a list"):
        client.submit("PyTorch", {"model-dir": tmp_path}, "--epochs 2")
    with pytest.raises(UsageProblem, match="must be a mapping"):
        client.submit("PyTorch", ["--model-dir", str(tmp_path)])  # type: ignore[arg-type]
    assert not fake.seen
    client.submit("PyTorch", {"model-dir": tmp_path}, ["--epochs", 2])  # type: ignore[list-item]
    [seen] = fake.requests("POST")
    assert seen.query["args"][0].endswith(" -- --epochs 2")


def test_every_option_of_a_submission_has_a_type() -> None:
    assert set(dlicmd.SubmitOptions.__annotations__) == set(SUBMIT_OPTIONS)


def test_typed_values_become_words_of_the_submission(client: dlicmd.Client, fake: FakeServer, tmp_path: Path) -> None:
    source = {"type": "fs", "location": {"paths": "mnist"}}
    client.submit("PyTorch", {"user-cmd": True, "msd-env": {"A": 1, "B": "x y"}, "workerDeviceNum": 0.5,
                              "data-source": [source]}, ["true"])
    [seen] = fake.requests("POST")
    assert seen.query["args"] == [
        "--exec-start PyTorch --user-cmd --msd-env A=1 --msd-env 'B=x y' --workerDeviceNum 0.5 -- true"]
    assert json.loads(parse_qs(seen.body.decode())["data"][0]) == {"dataSource": [source]}


@pytest.mark.parametrize("options", [
    {"user-cmd": "yes"}, {"appName": True}, {"data-source": "[]"}, {"data-source": [{"type": 7}]}, {"wait": True},
    {"rest-host": "h"}, {"exec-get": "w-1"}])
def test_a_wrong_type_is_refused(client: dlicmd.Client, fake: FakeServer, options: dict[str, object]) -> None:
    with pytest.raises(UsageProblem):
        client.submit("PyTorch", {"model-main": "train.py", **options})  # type: ignore[typeddict-item]
    assert not fake.seen


def test_an_object_has_attributes_and_all_keys_of_the_server(client: dlicmd.Client, fake: FakeServer) -> None:
    fake.execs["w-1"] = exec_object("w-1", state="RUNNING", numWorker="3", elastic="true", loss="0.5", new=[1])
    run = client.exec("w-1")
    assert isinstance(run, dlicmd.Exec)
    assert (run.id, run.state, run.num_worker, run.elastic, run.loss) == ("w-1", "RUNNING", 3, True, 0.5)
    assert (run.exit_code, run.message, run.has_ended, run.is_over) == (None, "", False, False)
    assert run["numWorker"] == "3" and run["new"] == [1] and "nothing" not in run and dict(run) == run.json
    fake.execs["w-1"] = exec_object("w-1", state=None, reason="NEVER_SCHEDULABLE")
    assert client.exec("w-1").is_over and client.exec("w-1").state == ""


def test_nested_lists_skip_values_that_are_not_objects() -> None:
    view = dlicmd.SlotView({"slots": [{"id": "0", "holders": [{"id": "w-1", "share": 0.5}, 7]}, None], "queue": 3})
    [slot] = view.slots
    assert [holder.share for holder in slot.holders] == [0.5] and view.queue == [] and view.running == []


def test_a_pending_exec_needs_a_part_of_a_slot() -> None:
    [pending] = dlicmd.SlotView({"queue": [{"id": "w-2", "slots": 0.5, "queuePosition": 1}]}).queue
    assert isinstance(pending, dlicmd.PendingExec)
    assert (pending.id, pending.slots, pending.queue_position) == ("w-2", 0.5, 1)


@pytest.mark.parametrize(("sent", "path"), [
    ({"id": "a", "pid": "", "childTreeDto": [{"id": "b", "pid": "a", "childTreeDto": [{"id": "c", "pid": "b"}]}]}, ""),
    ({"path": "/local/a", "name": "a", "plans": [{"name": "b", "plans": [{"name": "c"}]}]}, "/local/a"),
], ids=["contract", "local backend"])
def test_a_plan_has_a_name_and_plans_below_it(sent: dict[str, object], path: str) -> None:
    plan = dlicmd.Plan(sent)
    [child] = plan.children
    [grandchild] = child.children
    assert (plan.id, plan.path, child.id, grandchild.id) == ("a", path, "b", "c") and grandchild.children == []


def test_watch_yields_news_until_the_end(client: dlicmd.Client, fake: FakeServer) -> None:
    fake.execs["w-1"] = exec_object("w-1", state="FINISHED")
    fake.logs["w-1"] = "one\ntwo\n"
    [news] = client.watch("w-1")
    assert news.exec.state == "FINISHED" and [line.text for line in news.lines] == ["one", "two"]


@pytest.mark.parametrize("options", [{"modeldir": "m"}, {"numWorker": "two"}, {"model-dir": "nowhere"}, {}])
def test_invalid_options_are_refused_before_the_submission(
    client: dlicmd.Client, fake: FakeServer, options: dict[str, str]
) -> None:
    with pytest.raises(UsageProblem):
        client.submit("PyTorch", options)
    assert not fake.seen


#: Wrong calls of a program, and the parameter, key or method that each error names.
MISTAKES: list[tuple[Callable[[dlicmd.Client], object], str]] = [
    (lambda _: dlicmd.Client("no host"), "host: "),
    (lambda _: dlicmd.Client("http://localhost"), "http=True"),
    (lambda _: dlicmd.Client("localhost", ca_cert="nowhere"), "ca_cert: "),
    (lambda _: dlicmd.Client("127.0.0.1", 1, http=True, retries=0).status(), "host and port"),
    (lambda client: client.exec("w-9"), "Client.jobs()"),
    (lambda client: client.application("w-9"), "Client.engine_applications()"),
    (lambda client: client.search("w-9"), "Client.searches()"),
    (lambda client: client.wait("w-1", timeout=0), "Client.wait('w-1')"),
    (lambda client: (client.use_token("wrong"), client.execs()), "Client.logon("),
    (lambda client: client.fetch_result("w-1", __file__), "folder: "),
    (lambda client: client.submit("PyTorch", {}), "model-main"),
    (lambda client: client.submit("PyTorch", {"model-main": "nowhere"}), "model-main: "),
    (lambda client: client.submit("PyTorch", {"model-dir": "nowhere"}), "model-dir: "),
    (lambda client: client.submit("PyTorch", {"model-dir": ""}), "model-dir: "),
    (lambda client: client.submit("PyTorch", {"user-cmd": True}), "user-cmd: "),
    (lambda client: client.submit("PyTorch", {"numWorker": True}), "numWorker "),  # type: ignore[typeddict-item]
    (lambda client: client.submit("PyTorch", {"numWorker": -1}), "numWorker: "),
]


@pytest.mark.parametrize(("mistake", "named"), MISTAKES)
def test_an_error_names_parameters_and_methods_instead_of_options(
    client: dlicmd.Client, fake: FakeServer, mistake: Callable[[dlicmd.Client], object], named: str
) -> None:
    fake.execs["w-1"] = exec_object("w-1", state="RUNNING")
    with pytest.raises(DlicmdError) as raised:
        mistake(client)
    assert named in str(raised.value) and "--" not in str(raised.value)


def test_a_program_may_also_run_commands(client: dlicmd.Client, capfd: pytest.CaptureFixture[str]) -> None:
    """The messages of a command name options, and later errors of the client name parameters again."""
    assert main(["--exec-get-all", "--rest-host", "no host"]) == Exit.USAGE
    assert "--rest-host: " in capfd.readouterr().err
    with pytest.raises(NoSuchExec, match=re.escape("Client.jobs()")):
        client.exec("w-9")


def test_a_submission_prints_nothing(
    client: dlicmd.Client, fake: FakeServer, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text("")
    client.submit("PyTorch", {"model-main": tmp_path / "train.py"})
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("given", [None, 7, b"w-1"])
def test_an_id_of_another_type_is_unknown(client: dlicmd.Client, given: object) -> None:
    with pytest.raises(NoSuchExec):
        client.exec(given)  # type: ignore[arg-type]


def test_metrics_and_code_are_read(client: dlicmd.Client, fake: FakeServer) -> None:
    fake.execs["w-1"] = exec_object("w-1")
    fake.metrics["w-1"] = '{"n": 1}\n{"n": 2}\n\nnoise\n[3]\n{"n": 4}'
    assert list(client.metrics("w-1")) == [(1, {"n": 1}), (1, {"n": 2}), (2, {"n": 4})]
    fake.code["w-1"] = {"files": [{"path": "a", "bytes": 1}], "complete": True}
    assert client.code("w-1") == fake.code["w-1"]
    for ask in (client.metrics, client.code):
        with pytest.raises(NoSuchExec):
            ask("w-2")
