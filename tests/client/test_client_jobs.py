"""Jobs as objects: handles that send calls, and show themselves in notebooks."""

from __future__ import annotations

import json
import pickle
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from types import SimpleNamespace

import pytest
from fake_server import BASE, TOKEN, FakeServer, Reply, Seen, exec_object

import dlicmd
from dlicmd.sdk import errors
from dlicmd.sdk.metrics import table
from dlicmd.sdk.objects import Curve

HOSTILE = "<script>alert(1)</script>\x1b[31m"


@pytest.fixture
def client(fake: FakeServer) -> dlicmd.Client:
    return dlicmd.Client("127.0.0.1", fake.port, http=True, token=TOKEN)


def test_a_job_is_a_handle_and_an_exec_is_data(client: dlicmd.Client, fake: FakeServer) -> None:
    fake.execs["w-1"] = exec_object("w-1", state="RUNNING", appName="digits")
    job = client.job("w-1")
    before = job.exec
    assert (job.id, job.name, job.state) == ("w-1", "digits", "RUNNING")
    fake.execs["w-1"] = exec_object("w-1", state="FINISHED")
    assert job.state == "RUNNING"
    assert job.refresh() is job and job.state == "FINISHED" and before.state == "RUNNING"
    assert job.wait() is job and job.check() is job
    assert repr(client) == f"<Client of 127.0.0.1:{fake.port}>"
    job.delete()
    with pytest.raises(dlicmd.NoSuchExec):
        job.refresh()


def test_jobs_are_listed_newest_first(client: dlicmd.Client, fake: FakeServer) -> None:
    for number in (9, 10, 8):
        fake.execs[f"w-{number}"] = exec_object(f"w-{number}")
    assert [job.id for job in client.jobs()] == ["w-10", "w-9", "w-8"]
    assert [job.id for job in client.jobs(limit=1, state="RUNNING")] == ["w-10"]
    client.jobs(state=["RUNNING", "FINISHED"])
    asked = fake.requests("GET", "/execs/")
    assert [seen.query for seen in asked] == [{}, {"state": ["RUNNING"]}, {"state": ["RUNNING,FINISHED"]}]
    assert client.job("last").id == "w-10"


def test_our_own_server_sorts_and_limits(client: dlicmd.Client, fake: FakeServer) -> None:
    fake.conf["DLICMD_EXTENSIONS"] = "follow"
    client.jobs(limit=3)
    assert fake.requests("GET", "/execs/")[-1].query == {"sort_by": ["id:desc"], "limit": ["3"]}


def test_last_without_a_job(client: dlicmd.Client) -> None:
    with pytest.raises(dlicmd.NoExecYet):
        client.job("last")


@pytest.mark.parametrize(("state", "more"), [
    ("ERROR", {"message": "ValueError: boom"}), ("KILLED", {}),
    ("PENDING_CRD_SCHEDULER", {"reason": "NEVER_SCHEDULABLE"})])
def test_check_raises_for_a_job_without_success(
    client: dlicmd.Client, fake: FakeServer, state: str, more: dict[str, str]
) -> None:
    fake.execs["w-1"] = exec_object("w-1", state=state, **more)
    fake.logs["w-1"] = "".join(f"line {number}\n" for number in range(30))
    job = client.job("w-1").wait()
    assert job.state == state
    with pytest.raises(dlicmd.JobFailed) as raised:
        job.check()
    assert (raised.value.exec_id, raised.value.state, raised.value.code) == ("w-1", state, "job.failed")
    assert raised.value.lines == [f"line {number}" for number in range(10, 30)]
    assert str(raised.value).endswith("line 29") and more.get("message", "") in str(raised.value)
    [asked] = fake.requests("GET", "/log")
    assert asked.query["logType"] == ["errlog"]


def test_a_stop_of_an_ended_job_changes_nothing(client: dlicmd.Client, fake: FakeServer) -> None:
    fake.execs["w-1"] = exec_object("w-1", state="RUNNING")
    job = client.job("w-1")
    assert job.stop().state == "KILLED" and job.stop().state == "KILLED"
    assert len(fake.requests("POST", "/stop")) == 1


def test_a_wait_ends_in_time(client: dlicmd.Client, fake: FakeServer) -> None:
    fake.execs["w-1"] = exec_object("w-1", state="RUNNING")
    with pytest.raises(dlicmd.WaitTimeout):
        client.job("w-1").wait(timeout=0.1)


def test_logs_as_a_text_and_as_lines(client: dlicmd.Client, fake: FakeServer) -> None:
    fake.execs["w-1"] = exec_object("w-1", state="FINISHED")
    fake.logs["w-1"] = "one\ntwo\nthree\n"
    job = client.job("w-1")
    assert job.logs() == "one\ntwo\nthree\n"
    assert job.logs(tail=2) == "two\nthree\n" and job.logs(tail=0) == "" and job.logs(tail=9) == job.logs()
    assert list(job.logs(follow=True)) == ["one", "two", "three"]
    assert list(job.logs(tail=1, follow=True)) == ["three"] and list(job.logs(tail=0, follow=True)) == []


def test_our_own_server_sends_the_last_lines_alone(client: dlicmd.Client, fake: FakeServer) -> None:
    fake.conf["DLICMD_EXTENSIONS"] = "log-lines"
    fake.execs["w-1"] = exec_object("w-1")
    fake.replies["GET", f"{BASE}/execs/w-1/lines"] = lambda seen: Reply(200, json.dumps(seen.query).encode())
    job = client.job("w-1")
    assert job.logs(tail=2) == '{"tail": ["2"]}' and job.logs() == "{}"


def test_a_hostile_name_is_text(client: dlicmd.Client, fake: FakeServer) -> None:
    fake.execs["w-1"] = exec_object("w-1", appName=HOSTILE, message="<b>&", state="<i>")
    fake.execs["w-2"] = exec_object("w-2", lastMetrics={"loss": {"value": 0.25, "step": 3}})
    jobs = client.jobs()
    shown = jobs._repr_html_()
    assert "<script>" not in shown and "<b>" not in shown and "<i>" not in shown and "\x1b" not in shown
    assert shown.count("<tr>") == 3 and "loss 0.25" in shown and "<th>message</th>" in shown
    assert client.job("w-2")._repr_html_().count("<tr>") == 2
    assert "\x1b" not in repr(client.job("w-1")) and len(repr(client.job("w-2"))) < 80
    assert repr(jobs).count("\n") == 1 and repr(dlicmd.Jobs()) == "no jobs" and "<table>" in dlicmd.Jobs()._repr_html_()


def every(kind: type[errors.DlicmdError]) -> list[type[errors.DlicmdError]]:
    return [kind, *(found for below in kind.__subclasses__() for found in every(below))]


#: Errors with arguments of their own → an example.
EXAMPLES: dict[type[errors.DlicmdError], Callable[[], errors.DlicmdError]] = {
    errors.JobFailed: lambda: errors.JobFailed("w-1", "ERROR", "why", ["line"]),
    errors.NoExecYet: errors.NoExecYet,
    errors.ModelFailed: lambda: errors.ModelFailed("digits", "Failed", "why"),
}


@pytest.mark.parametrize("kind", every(errors.DlicmdError), ids=lambda kind: kind.__name__)
def test_every_error_can_be_pickled(kind: type[errors.DlicmdError]) -> None:
    if kind in EXAMPLES:
        error = EXAMPLES[kind]()
    elif issubclass(kind, errors.ServerError):
        error = kind("w-1", 418)
        error.code = "a.b"
    else:
        error = kind("what")
    found = pickle.loads(pickle.dumps(error))
    assert type(found) is kind and str(found) == str(error) and vars(found) == vars(error)
    assert (found.code, found.exit_code) == (error.code, error.exit_code)


def test_an_expected_error_has_no_chain(fake: FakeServer) -> None:
    fake.replies["GET", f"{BASE}/conf"] = Reply(200, b"{", {"Content-Length": "9"}, after=lambda: 1 / 0)
    for call in (lambda: dlicmd.Client("127.0.0.1", 1, http=True, retries=0).status(),
                 lambda: dlicmd.Client("127.0.0.1", fake.port, http=True, token=TOKEN, retries=0).conf()):
        with pytest.raises(dlicmd.Unreachable) as raised:
            call()
        shown = traceback.format_exception(raised.value)
        assert not [line for line in shown if "another exception" in line or "direct cause" in line]


def test_threads_share_a_client(client: dlicmd.Client, fake: FakeServer) -> None:
    """All threads send at the same time, and each gets the answer to its own request."""
    names = [f"w-{number}" for number in range(8)]
    together = threading.Barrier(len(names))

    def answer(seen: Seen) -> Reply:
        together.wait(60)
        return Reply(200, b'{"id": "%s"}' % seen.path.rpartition("/")[2].encode())

    fake.replies |= {("GET", f"{BASE}/execs/{name}"): answer for name in names}
    with ThreadPoolExecutor(len(names)) as threads:
        for _ in range(20):
            assert [found.id for found in threads.map(client.exec, names)] == names


CURVES = [
    {"name": "loss", "source": "printed", "stepUnit": "step", "points": [[1, 0.5, 10.0], [3, 0.25, 30.0]]},
    {"name": "loss", "source": "tensorboard", "stepUnit": "step", "points": [[1, 0.75, None]]},
    {"name": "accuracy", "source": "printed", "stepUnit": "epoch", "points": [[1, 0.9, None]]},
    {"name": HOSTILE, "source": "printed", "stepUnit": "step", "points": []},
]


def curves(fake: FakeServer) -> Callable[[Seen], Reply]:
    def answer(seen: Seen) -> Reply:
        names = seen.query.get("metric")
        return Reply(200, json.dumps({"curves": [
            curve for curve in CURVES if names is None or curve["name"] in names], "cursor": ""}).encode())

    fake.conf["DLICMD_EXTENSIONS"] = "curves"
    fake.execs["w-1"] = exec_object("w-1")
    fake.replies["GET", f"{BASE}/execs/w-1/curves"] = answer
    return answer


def test_metrics_are_a_table_of_steps(
    client: dlicmd.Client, fake: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without pandas, the table is a list; a metric of several sources has a column for each."""
    curves(fake)
    monkeypatch.setitem(sys.modules, "pandas", None)
    job = client.job("w-1")
    loss = {"step_unit": "step", "loss (printed)": None, "loss (tensorboard)": None}
    assert job.metrics("loss") == [
        {"step": 1, "time": 10.0, **loss, "loss (printed)": 0.5, "loss (tensorboard)": 0.75},
        {"step": 3, "time": 30.0, **loss, "loss (printed)": 0.25}]
    assert job.metrics("accuracy") == [{"step": 1, "step_unit": "epoch", "time": None, "accuracy": 0.9}]
    assert [row["step_unit"] for row in job.metrics()] == ["epoch", "step", "step"] and job.metrics("nothing") == []


def test_metrics_are_a_data_frame_if_pandas_is_installed(
    client: dlicmd.Client, fake: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    curves(fake)
    pandas = SimpleNamespace(DataFrame=lambda rows, columns: (columns, [row["time"] for row in rows]))
    monkeypatch.setitem(sys.modules, "pandas", pandas)
    columns = ["step", "step_unit", "time"]
    assert client.job("w-1").metrics("accuracy") == ([*columns, "accuracy"], [None])
    times = [datetime.fromtimestamp(seconds, timezone.utc) for seconds in (10, 30)]
    assert client.job("w-1").metrics("loss") == ([*columns, "loss (printed)", "loss (tensorboard)"], times)


def test_a_metric_with_the_name_of_a_column_keeps_its_values() -> None:
    curve = Curve({"name": "time", "source": "printed", "stepUnit": "step", "points": [[1, 7.0, 10.0]]})
    columns, rows = table([curve])
    assert columns == ["step", "step_unit", "time", "time (printed)"]
    assert rows == [{"step": 1, "step_unit": "step", "time": 10.0, "time (printed)": 7.0}]


def test_a_notebook_draws_curves(client: dlicmd.Client, fake: FakeServer) -> None:
    curves(fake)
    found = client.job("w-1").curves()
    shown = found._repr_html_()
    assert shown.count("<tr>") == 5 and shown.count("<polyline") == 1 and "0.25" in shown
    assert "<script>" not in shown and "\x1b" not in shown + repr(found)
    assert [curve.name for curve in client.job("w-1").curves("accuracy")] == ["accuracy"]
    assert repr(found).count("\n") == 3 and repr(client.job("w-1").curves("nothing")) == "no curves"


def test_a_server_without_curves_has_no_metrics(client: dlicmd.Client, fake: FakeServer) -> None:
    fake.execs["w-1"] = exec_object("w-1")
    assert client.job("w-1").curves() == [] and len(client.job("w-1").metrics()) == 0
