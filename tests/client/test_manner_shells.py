"""Habits of scripts that were written for the original client, in bash, with real processes of `dlicmd.py`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from fake_server import BASE, FakeServer, Reply, Seen, exec_object
from manner_desk import MannerDesk, address, as_json, store_token
from manner_rows import LISTED, LOGS, RUNNING, get

DEADLINE = 90
ONE = f"{BASE}/execs/w-1"


@pytest.fixture
def user(tmp_path: Path, fake: FakeServer) -> MannerDesk:
    """A user with `dlicmd` and `dlicmd.py` on the PATH. `$SERVER` has the options that name the server."""
    user = MannerDesk(tmp_path)
    store_token(user)
    tools, scripts = tmp_path / "bin", tmp_path / "scripts"
    for folder in (tools, scripts):  # beside `dlicmd`, Python would take the file `dlicmd.py` for the package
        folder.mkdir()
    (tools / "dlicmd").write_text(f"#!{sys.executable}\nimport sys\nfrom dlicmd.cli import main\nsys.exit(main())\n")
    (tools / "dlicmd").chmod(0o755)
    (scripts / "dlicmd.py").symlink_to(tools / "dlicmd")
    user.environment["PATH"] = f"{scripts}:{tools}:{user.environment['PATH']}"
    user.environment |= {"SERVER": " ".join(address(fake)), "PYTHON": sys.executable}
    (user.folder / "main.py").write_text("print(1)\n")
    return user


def bash(user: MannerDesk, script: str, code: int = 0) -> list[str]:
    """Run a script, and return the lines of its standard output; standard error must be empty."""
    done = subprocess.run(["bash", "-c", script], cwd=user.folder, env=user.environment, timeout=DEADLINE, check=False,
                          capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stderr) == (code, ""), done
    return done.stdout.splitlines()


def in_turn(answers: Iterable[Reply]) -> Callable[[Seen], Reply]:
    """Return an answer of a fake server: each of the answers once, and the last one from then on."""
    left = list(answers)

    def answer(_: Seen) -> Reply:
        return left.pop(0) if len(left) > 1 else left[0]

    return answer


def states(*names: str) -> Callable[[Seen], Reply]:
    """Return the answers to polls of an exec."""
    return in_turn(as_json(exec_object("w-1", state=name)) for name in names)


def test_columns_and_lines_of_the_list(user: MannerDesk, fake: FakeServer) -> None:
    fake.execs |= {"w-1": exec_object("w-1", state="FINISHED"), "w-2": exec_object("w-2", appName="my name"),
                   "w-3": exec_object("w-3", state="FINISHED", numWorker=4)}
    assert bash(user, r"""
        dlicmd.py --exec-get-all $SERVER > list.txt
        awk '{print $2}' list.txt | sed '1,2d;$d'
        sed '1,2d;$d' list.txt | wc -l
        grep -c FINISHED list.txt
        tail -n +3 list.txt | head -n -1 | awk '$7 == "FINISHED" {print $2, $8}'
        head -n 1 list.txt | tr -d -- '-' | wc -c
        dlicmd.py --exec-get-all $SERVER -o custom-columns=id | awk 'NR > 2 && NF == 2 {print $2}' | xargs
        dlicmd.py --exec-get-all $SERVER -o json | $PYTHON -c 'import json, sys; print(len(json.load(sys.stdin)))'
    """) == ["w-1", "w-2", "w-3", "3", "2", "w-1 1", "w-3 4", "1", "w-1 w-2 w-3", "3"]


def test_the_same_habits_in_a_pipe_of_dlicmd(user: MannerDesk, fake: FakeServer) -> None:
    fake.execs |= {"w-1": exec_object("w-1", state="FINISHED")}
    assert bash(user, r"""
        dlicmd --exec-get-all $SERVER | awk '{print $2}' | sed '1,2d;$d'
        DLICMD_COMPAT=wmla dlicmd --exec-get w-9 $SERVER; echo $?
        dlicmd --exec-get w-9 $SERVER 2> /dev/null; echo $?
    """) == ["w-1", "Error 400: Exec w-9 is not found.", "", "1", "6"]


def test_the_id_of_a_submission(user: MannerDesk, fake: FakeServer) -> None:
    assert bash(user, r"""
        set -e
        id=$(dlicmd.py --exec-start PyTorch --model-main main.py $SERVER | grep execId | cut -d'"' -f4)
        echo "$id"
        dlicmd.py --exec-start PyTorch --model-main main.py $SERVER > out.txt 2> /dev/null
        tail -n +3 out.txt | $PYTHON -c 'import json, sys; print(json.load(sys.stdin)["appId"])'
        sed -n 's/.*"execId": "\(.*\)",/\1/p' out.txt
        head -n 2 out.txt
        dlicmd.py --exec-start PyTorch --user-cmd $SERVER -- sh -c "exit 3" | sed -n 2p
    """) == ["wmla-1", "wmla-2", "wmla-2", "Copying files and directories ...", "Content size: 9", "Content size: 0"]
    assert [seen.query["args"][0] for seen in fake.requests("POST", "/execs/")][-1].endswith("-- sh -c 'exit 3'")


def test_a_loop_that_waits_for_a_state(user: MannerDesk, fake: FakeServer) -> None:
    fake.replies["GET", ONE] = states("", "PENDING_CRD_SCHEDULER", "RUNNING", "FINISHED")
    assert bash(user, r"""
        set -eu
        state=""
        until [ "$state" = FINISHED ] || [ "$state" = KILLED ] || [ "$state" = ERROR ]; do
            state=$(dlicmd.py --exec-get w-1 $SERVER | grep '"state"' | cut -d'"' -f4)
            echo "state: $state"
        done
    """) == ["state: ", "state: PENDING_CRD_SCHEDULER", "state: RUNNING", "state: FINISHED"]


def test_a_loop_that_stops_jobs_goes_on_after_a_refusal(user: MannerDesk, fake: FakeServer) -> None:
    fake.execs |= {"w-1": exec_object("w-1", state="FINISHED"), "w-2": exec_object("w-2")}
    fake.replies["POST", f"{ONE}/stop"] = Reply(400, b"Error 400: Exec w-1 has ended.\n")
    assert bash(user, r"""
        set -e
        for id in w-1 w-2 w-9; do dlicmd.py --exec-stop $id $SERVER; done
        dlicmd.py --exec-stop w-2 $SERVER | grep -q succeed && echo stopped
        for id in w-1 w-9; do dlicmd.py --exec-delete $id $SERVER; done | grep -c succeed
        dlicmd.py --exec-delete-all $SERVER
    """) == [
        "Stop exec w-1 failed. HTTP:400 Error 400: Exec w-1 has ended.", "Stop exec w-2 succeed. HTTP:204 ",
        "Stop exec w-9 failed. HTTP:400 Error 400: Exec w-9 is not found.", "stopped", "1", "Execs are deleted",
    ]


def test_a_wait_for_an_application(user: MannerDesk, fake: FakeServer) -> None:
    ended = RUNNING | {"state": "ERROR"}
    fake.replies["GET", f"{LISTED}/w-1"] = in_turn([as_json([RUNNING]), as_json([ended])])
    fake.replies |= get(f"{LISTED}/w-9", [])
    assert bash(user, r"""
        set -e
        dlicmd.py --app-wait w-1 $SERVER | awk -F'    ' '{print $1, $2, NF}'
        dlicmd.py --app-wait w-9 $SERVER > /dev/null || echo unknown $?
    """) == ["w-1 RUNNING 3", "w-1 ERROR 3", "unknown 1"]


def test_queries_and_their_abbreviations(user: MannerDesk, fake: FakeServer) -> None:
    assert bash(user, r"""
        dlicmd.py --exec-get-all --query 'limit=1&state=FINISHED' $SERVER | wc -l
        dlicmd.py --exec-get-all --query-a=limit=2 --debug-l error $SERVER | wc -l
        dlicmd.py --exec-get-all --que limit=3 $SERVER -o wide | wc -l
    """) == ["3"] * 3
    assert [seen.query for seen in fake.requests("GET", "/execs/")] == [
        {"limit": ["1"], "state": ["FINISHED"]}, {"limit": ["2"]}, {"limit": ["3"]}]


def test_logs_of_processes(user: MannerDesk, fake: FakeServer) -> None:
    fake.execs["w-1"] = exec_object("w-1")
    fake.logs["w-1"] = "[2023-10-27 16:27:29] Train,\tLoss: 0.5\n" * 3
    fake.replies |= LOGS
    assert bash(user, r"""
        dlicmd.py --exec-outlogs w-1 $SERVER > logs.txt
        grep -c '^====' logs.txt
        grep -E '^(Driver|Executor)' logs.txt
        sed -n 's/^\*Task <1> SubProcess\*: //p' logs.txt
        awk '/^Executor 1/ {on = 1; next} /^=/ {on = 0} on' logs.txt | wc -l
        dlicmd.py --exec-trainlogs w-1 $SERVER | sed 's/:/,/g' | cut -d, -f5 | sort -u
    """) == ["3", "Driver stdout", "Executor 1 stdout", "Executor 2 stdout", "a", "b", "3", " 0.5"]


def test_errors_are_part_of_the_output(user: MannerDesk, fake: FakeServer) -> None:
    fake.replies["GET", f"{BASE}/execs/w-8"] = as_json({"error": "gone"}, 500)
    assert bash(user, r"""
        out=$(dlicmd.py --exec-get w-8 $SERVER 2> /dev/null) || echo "failed: $(echo $out)"
        dlicmd.py --exec-start PyTorch $SERVER | grep -c '^\[Error\]: '
        if ! dlicmd.py --exec-get $SERVER > usage.txt; then grep -c error usage.txt; fi
        dlicmd.py > /dev/null; echo $?
        dlicmd.py --help | grep -c -e '--exec-start'
    """)[:4] == ['failed: { "error": "gone" }', "1", "1", "1"]


def test_the_file_name_and_the_variable_select_the_same(user: MannerDesk) -> None:
    calls = "{0} --exec-stop w-1 $SERVER; echo $?; {0} --status $SERVER -o json; {0} --no-such-command $SERVER; echo $?"
    named = bash(user, calls.format("dlicmd.py"))
    assert named[:3] == ["Stop exec w-1 failed. HTTP:400 Error 400: Exec w-1 is not found.", "0", "{"]
    assert named == bash(user, calls.format("DLICMD_COMPAT=wmla dlicmd"))
    assert named != bash(user, calls.format("2> /dev/null dlicmd"))


def test_the_answer_to_a_logon_contains_the_token(user: MannerDesk, fake: FakeServer) -> None:
    user.token.unlink()
    lines = bash(user, "dlicmd.py --logon --username alice --password pw $SERVER && dlicmd.py --logoff $SERVER")
    assert lines[-1] == "bye" and json.loads("\n".join(lines[:-1]))["accessToken"] == "fake-token-1"
    assert not user.token.exists()
