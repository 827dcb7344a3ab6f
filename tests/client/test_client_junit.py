"""The report for CI systems: every outcome of a command makes 1 test case."""

from __future__ import annotations

import signal
from xml.etree import ElementTree as ET

import pytest
from client_desk import Desk
from fake_server import BASE, FakeServer, Reply, exec_object
from support import eventually

ENDED = {"startTime": "2023-10-27T16:27:40Z", "endTime": "2023-10-27T16:29:45.500Z"}


def report(desk: Desk) -> tuple[ET.Element, ET.Element]:
    """Return the suite and its only case; no other file may remain beside the report."""
    assert [path.name for path in desk.folder.glob("out*")] == ["out.xml"]
    root = ET.parse(desk.folder / "out.xml").getroot()
    [suite] = root
    [case] = suite
    assert (root.tag, suite.tag, case.tag) == ("testsuites", "testsuite", "testcase")
    assert (root.get("tests"), suite.get("tests"), suite.get("skipped")) == ("1", "1", "0")
    return suite, case


def test_a_finished_job_is_a_passed_case(desk: Desk, fake: FakeServer, remote: list[str]) -> None:
    fake.execs["w-1"] = exec_object("w-1", state="FINISHED", **ENDED)
    assert desk.run("--wait", "w-1", "--junit", "out.xml", *remote).code == 0
    suite, case = report(desk)
    assert (suite.get("failures"), suite.get("errors"), case.get("time")) == ("0", "0", "125.500")
    assert (case.get("classname"), case.get("name")) == ("dlicmd.PyTorch", "SingleNodePytorchTrain w-1")
    assert not list(case)


@pytest.mark.parametrize(("found", "code"), [({"state": "ERROR", "message": "no <GPU> \x00\x1b[31m& more"}, 3),
                                             ({"state": "KILLED"}, 4)])
def test_a_failed_job_is_a_failed_case(
    desk: Desk, fake: FakeServer, remote: list[str], found: dict[str, str], code: int
) -> None:
    fake.execs["w-1"] = exec_object("w-1", **found)
    fake.logs["w-1"] = "early\n" * 300 + "Traceback \x0b]]> last\n"
    (desk.folder / "out.xml").write_text("an older report")
    assert desk.run("--follow", "w-1", "--junit", "out.xml", "-o", "json", *remote).code == code
    suite, case = report(desk)
    assert (suite.get("failures"), suite.get("errors")) == ("1", "0")
    failure, output = case
    assert failure.tag == "failure" and failure.get("type") == found["state"] and failure.text == failure.get("message")
    assert failure.text == ("no <GPU> & more" if "message" in found else "the job ended KILLED")
    assert output.tag == "system-out" and output.text.endswith("Traceback ]]> last") and output.text.count("\n") == 199


def test_a_refused_submission_is_an_error(desk: Desk, fake: FakeServer, remote: list[str]) -> None:
    fake.replies["POST", f"{BASE}/execs/"] = Reply(400, b"Error 400: no such framework.\n")
    done = desk.run("--exec-start", "Nothing", "--user-cmd", "--wait", "--junit", "out.xml", *remote, "--", "x")
    assert done.code == 2
    suite, case = report(desk)
    assert (suite.get("failures"), suite.get("errors")) == ("0", "1") and case.get("classname") == "dlicmd.Nothing"
    assert case[0].tag == "error" and "no such framework" in case[0].get("message")
    assert "--junit" not in fake.requests("POST")[0].target


def test_an_interrupted_wait_is_an_error(desk: Desk, fake: FakeServer, remote: list[str]) -> None:
    fake.execs["w-1"] = exec_object("w-1")
    with desk.start("--wait", "w-1", "--junit", "out.xml", *remote) as process:
        eventually(lambda: len(fake.requests("GET", "/w-1")) > 2, "dlicmd asks for the job several times")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    assert report(desk)[1][0].get("type") == "INTERRUPTED"


def test_wait_and_follow_use_the_name_of_the_submission(desk: Desk, fake: FakeServer, remote: list[str]) -> None:
    fake.execs["w-1"] = exec_object("w-1")
    for words, code in ((["--wait", "w-1", "--wait-timeout", "1"], 7), (["--follow", "w-1", "--wait-timeout", "1"], 7)):
        assert desk.run(*words, "--junit", "out.xml", *remote).code == code
        case = report(desk)[1]
        assert (case.get("classname"), case.get("name")) == ("dlicmd.PyTorch", "SingleNodePytorchTrain w-1")
        assert case[0].get("type") == "WaitTimeout"
    assert desk.run("--wait", "w-9", "--junit", "out.xml", *remote).code == 6
    case = report(desk)[1]
    assert (case.get("classname"), case.get("name")) == ("dlicmd.exec", "w-9"), "an unknown exec has its id as name"


@pytest.mark.parametrize("words", [
    ["--exec-get", "w-1", "--junit", "out.xml"], ["--wait", "w-1", "--junit", "none/out.xml"],
    ["--wait", "w-1", "--junit", "."], ["--wait", "w-1", "--junit", ""],
])
def test_an_impossible_report_is_refused(desk: Desk, fake: FakeServer, remote: list[str], words: list[str]) -> None:
    done = desk.run(*words, *remote)
    assert done.code == 2 and "--junit" in done.err and not fake.seen
