"""Every command against a server, and the table of exit codes."""

from __future__ import annotations

import json
import re
import shlex
import socket

import pytest
import yaml
from client_desk import Desk
from fake_server import BASE, TOKEN, FakeServer, Reply, exec_object

from dlicmd.cli.commands.help import help_text
from dlicmd.contract.argv import parse_argv
from dlicmd.contract.examples import EXAMPLES
from dlicmd.contract.options import COMMANDS, OPTIONS, Option

HELP_WORDS = (["--help"], ["-h"])
#: Words that ask for the help about one command → an option or command that it names.
HELP_OF_ONE = (
    (["--exec-start", "--help"], "--numWorker N"), (["--exec-get", "x", "--nonsense", "--help"], "dlicmd get"),
    (["run", "--help"], "--gpus N"), (["logs", "-h"], "--tail N"), (["help", "--exec-verify"], "--steps N"),
    (["help", "--numWorker"], "number of workers"), (["help", "--follow"], "dlicmd --follow last"),
)


def test_exec_get_adds_data_of_the_scheduler(desk: Desk, local: FakeServer) -> None:
    local.execs["cpd-111"] = exec_object("cpd-111", numWorker=6)
    shown = json.loads(desk.run("--exec-get", "cpd-111").out)
    duration = shown.pop("runningDuration")
    info = shown.pop("parallelJobInfo")
    assert shown == local.execs["cpd-111"] and list(shown) == list(local.execs["cpd-111"])
    assert re.fullmatch(r"\d+d(\d+h)?", duration)
    memory = {"memory": "8192.000000Mi"}
    assert info == {"status": {"jobStatus": "Running"}, "spec": [{"taskGroups": {
        "metadata": {"name": "task12n", "annotations": {"lsf.ibm.com/gpu": ""}},
        "spec": {"replica": 6, "template": {"spec": {"containers": {"resources": {
            "requests": memory, "limits": memory}}}}},
    }}]}
    assert [seen.target for seen in local.seen] == [
        f"{BASE}/execs/cpd-111", f"{BASE}/scheduler/kubernetesobjects?type=paralleljob&name=cpd-111"]


def test_exec_get_shows_the_pending_duration_of_a_pending_exec(desk: Desk, local: FakeServer) -> None:
    local.execs["w-1"] = exec_object("w-1", state="PENDING_CRD_SCHEDULER")
    local.replies["GET", f"{BASE}/scheduler/kubernetesobjects"] = Reply(200, json.dumps({
        "status": {"jobStatus": "Pending", "jobPendingReason": "none", "creationTimestamp": "2023-10-27T16:27:30.1Z"},
    }).encode())
    shown = json.loads(desk.run("--exec-get", "w-1", "-o", "json").out)
    assert "pendingDuration" in shown and "runningDuration" not in shown
    assert shown["parallelJobInfo"] == {"status": {"jobStatus": "Pending", "jobPendingReason": "none"}, "spec": []}


def test_exec_get_shows_the_running_duration_of_a_finished_exec(desk: Desk, local: FakeServer) -> None:
    local.execs["w-1"] = exec_object(
        "w-1", state="FINISHED", startTime="2023-10-27T16:27:40Z", endTime="2023-10-27T16:29:45Z")
    shown = json.loads(desk.run("--exec-get", "w-1", "-o=json").out)
    assert shown == local.execs["w-1"] | {"runningDuration": "2m5s"}
    assert len(local.seen) == 1


def test_exec_get_works_without_cluster_objects(desk: Desk, local: FakeServer) -> None:
    local.execs["w-1"] = exec_object("w-1")
    local.replies["GET", f"{BASE}/scheduler/kubernetesobjects"] = Reply(500, b"Error 500: no cluster.\n")
    done = desk.run("--exec-get", "w-1")
    assert done.code == 0 and json.loads(done.out) == local.execs["w-1"] and done.err == ""


def test_exec_get_all_prints_a_table_and_sends_the_query(desk: Desk, local: FakeServer) -> None:
    assert desk.run("--exec-get-all", "-o", "table").out == "No result found\n"
    local.execs["w-1"] = exec_object("w-1", appName="a\x1b[31mb\nc")
    local.execs["w-2"] = exec_object("w-2", state="PENDING_CRD_SCHEDULER", elastic=True, createTime="soon")
    done = desk.run("--exec-get-all", "-o", "table", "--query-args", "limit=10&state=FINISHED&sort_by=id:desc")
    rows = [re.split(r"  +", line) for line in done.out.splitlines()]
    assert rows[0] == ["id", "submit_user", "name", "framework", "type", "state", "num", "submit_time", "age"]
    assert rows[1][:8] == ["w-1", "alice", "ab c", "PyTorch", "PARALLEL", "RUNNING", "1", "10-27 16:27"]
    assert rows[2] == ["w-2", "alice", "SingleNodePytorchTrain", "PyTorch", "ELASTIC", "PENDING", "1", "n/a", "n/a"]
    assert local.seen[-1].target == f"{BASE}/execs/?limit=10&state=FINISHED&sort_by=id:desc"


def test_a_wrong_query_is_reported(desk: Desk, local: FakeServer) -> None:
    done = desk.run("--exec-get-all", "--query-args", "limit=ten", "-o", "json")
    assert (done.code, done.error) == (2, "client.usage") and "limit: 'ten'" in done.err
    assert not local.requests("GET", "/execs/")
    local.replies["GET", f"{BASE}/execs/"] = Reply(400, b"Error 400: there is no state MOON.\n")
    done = desk.run("--exec-get-all", "--query-args", "state=MOON", "-o", "json")
    assert (done.code, done.error) == (2, "query.refused") and "there is no state MOON." in done.err
    assert desk.run("--exec-get-all").code == 1, "without a query, a refusal is a failure of the server"
    del local.replies["GET", f"{BASE}/execs/"]
    done = desk.run("--exec-get-all", "--query-args", "?stat=FINISHED&limit=3&x")
    assert done.code == 0 and local.seen[-1].target == f"{BASE}/execs/?stat=FINISHED&limit=3&x"
    first, second = done.err.splitlines()
    known = ("limit", "offset", "state", "sort_by", "all", "search", "find")
    assert "'stat'" in first and all(name in first for name in known) and "mean state" in first
    assert "'x'" in second


def test_wide_characters_keep_table_columns_aligned(desk: Desk, local: FakeServer) -> None:
    local.execs["w-1"] = exec_object("w-1", creator="\u4e16\u754c", appName="e\u0301tude")
    local.execs["w-2"] = exec_object("w-2", creator="ada", appName="etude")
    head, first, second = desk.run("--exec-get-all", "-o", "custom-columns=creator,appName,id").out.splitlines()
    assert head == "creator  appName  id"
    assert first == "\u4e16\u754c     e\u0301tude    w-1" and second == "ada      etude    w-2"


def test_execs_are_printed_in_other_output_formats(desk: Desk, local: FakeServer) -> None:
    local.execs["w-1"] = exec_object("w-1")
    assert json.loads(desk.run("--exec-get-all", "-o", "json").out) == [local.execs["w-1"]]
    assert yaml.safe_load(desk.run("--exec-get-all", "--output=yaml").out) == [local.execs["w-1"]]
    chosen = desk.run("--exec-get-all", "-o", "custom-columns=id,app_id,workDir,nonsense,elastic").out.splitlines()
    assert chosen[0].split() == ["id", "app_id", "workDir", "nonsense", "elastic"]
    assert chosen[1].split() == ["w-1", "w-1", local.execs["w-1"]["workDir"], "n/a", "false"]
    unknown = desk.run("--exec-get-all", "-o", "custom-columns=id,nonsense,dataSource").err
    assert unknown.count("\n") == 1 and "nonsense, dataSource" in unknown
    slip = desk.run("--exec-get-all", "-o", "custom-columns=idd,state").err
    assert slip.count("\n") == 1 and "idd" in slip and "mean id?" in slip
    local.execs["w-2"] = exec_object("w-2", nonsense=1)
    assert desk.run("--exec-get-all", "-o", "custom-columns=id,nonsense").err == ""
    assert desk.run("--exec-get", "w-2", "-o", "table").out.splitlines()[1].startswith("w-2 ")
    for bad in ("xml", "custom-columns=", "custom-columns=a,,b", ""):
        done = desk.run("--exec-get-all", "-o", bad)
        assert done.code == 2 and len(done.err.splitlines()) == 1


def test_stop_and_delete_print_the_http_status(desk: Desk, local: FakeServer) -> None:
    local.execs.update({name: exec_object(name) for name in ("w-1", "w-2")})
    assert desk.run("--exec-stop", "w-1").out == "Stop exec w-1 succeed. HTTP:204 \n"
    assert desk.run("--exec-delete", "w-1").out == "Delete exec w-1 succeed. HTTP:204 \n"
    assert desk.run("--exec-delete-all").out == "Execs are deleted\n"
    assert [(seen.method, seen.path) for seen in local.seen] == [
        ("POST", f"{BASE}/execs/w-1/stop"), ("DELETE", f"{BASE}/execs/w-1"), ("DELETE", f"{BASE}/execs")]
    assert local.seen[0].headers["content-length"] == "0"


@pytest.mark.parametrize("exec_id", [".", "..", "./", "a/../..", "frameworks/../x", "%2e%2e", "\x1b[31m", "ä b", "?x"])
@pytest.mark.parametrize("command", ["--exec-delete", "--exec-get", "--exec-stop"])
def test_exec_ids_cannot_reach_another_path(desk: Desk, local: FakeServer, command: str, exec_id: str) -> None:
    local.execs["w-1"] = exec_object("w-1")
    done = desk.run(command, exec_id)
    assert done.code == 6 and "\x1b" not in done.err
    assert list(local.execs) == ["w-1"]
    for seen in local.seen:
        assert seen.path.startswith(f"{BASE}/execs/") and seen.path.removeprefix(f"{BASE}/execs/").strip("./")


def test_frameworks_and_status_are_printed(desk: Desk, local: FakeServer) -> None:
    assert desk.run("--dl-frameworks").out == "Name: PyTorch\nVersion: 2.1\nDesc: first line\n      second line\n\n"
    assert json.loads(desk.run("--dl-frameworks", "-o", "json").out)[0]["name"] == "PyTorch"
    assert json.loads(desk.run("--status").out) == {"status": "OK"}


def test_logs_are_printed_for_every_process(desk: Desk, local: FakeServer) -> None:
    local.execs["w-1"] = exec_object("w-1")
    line = "=" * 100
    commands = {"--exec-outlogs": "stdout", "--exec-errlogs": "stderr", "--exec-launcherlogs": "launcherlog"}
    for command, log in commands.items():
        done = desk.run(command, "w-1")
        tasks = (("Driver", "driver"), ("Executor 1", "executor/1"), ("Executor 2", "executor/2"))
        assert done.out == "".join(f"{line}\n{name} {log}\nw-1/{path}/logs/{log}\n\n" for name, path in tasks)
    local.replies["GET", f"{BASE}/scheduler/applications/w-1/executor/1/logs/stdout"] = Reply(500, b"gone")
    done = desk.run("--exec-outlogs", "w-1")
    assert done.code == 1 and "Executor 1" in done.err and "Executor 2 stdout\nw-1" in done.out
    local.execs["w-1"]["appId"] = local.execs["w-1"]["submissionId"] = ""
    done = desk.run("--exec-outlogs", "w-1", "-o", "json")
    assert (done.code, done.error) == (1, "client.failed") and "w-1" in done.err


def test_executors_are_numbered_by_their_names(desk: Desk, local: FakeServer) -> None:
    local.execs["w-1"] = exec_object("w-1")
    listed = [{"task0": {}, "task12n": [{"name": "task12n-1901"}, {"name": "task12n-2000"}, {"name": "odd"}, 3]}]
    local.replies["GET", f"{BASE}/scheduler/applications"] = Reply(200, json.dumps(listed).encode())
    done = desk.run("--exec-outlogs", "w-1")
    found = re.findall(r"w-1/(.*)/logs/stdout", done.out)
    assert found == ["executor/1901", "executor/2000", "executor/3", "executor/4"]


def test_omitted_executor_logs_are_reported(desk: Desk, local: FakeServer) -> None:
    local.execs["w-1"] = exec_object("w-1")
    listed = [{"task0": {"name": "task0"}, "task12n": [{"name": "task12n-1901"}, {"name": "task12n-1902"}]}]
    local.replies["GET", f"{BASE}/scheduler/applications"] = Reply(200, json.dumps(listed).encode())
    done = desk.run("--exec-errlogs", "w-1")
    assert done.code == 0 and done.err.count("\n") == 1 and "1901" in done.err
    assert re.findall(r"w-1/(.*)/logs/stderr", done.out) == ["driver", "executor/1901", "executor/1902"]


def test_a_launcher_log_shared_by_all_processes_is_shown_once(desk: Desk, local: FakeServer) -> None:
    local.execs["w-1"] = exec_object("w-1")
    for task in ("driver", "executor/1", "executor/2"):
        local.replies["GET", f"{BASE}/scheduler/applications/w-1/{task}/logs/launcherlog"] = Reply(200, b"started\n")
    done = desk.run("--exec-launcherlogs", "w-1", "-o", "table")
    assert done.out == "=" * 100 + "\nDriver to Executor 2 launcherlog\nstarted\n"
    local.replies["GET", f"{BASE}/scheduler/applications/w-1/driver/logs/launcherlog"] = Reply(500, b"gone")
    done = desk.run("--exec-launcherlogs", "w-1", "-o", "table")
    assert done.code == 1 and done.out.count("started") == 2 and "Driver launcherlog: " in done.err


def test_train_logs_are_printed_byte_for_byte(desk: Desk, local: FakeServer) -> None:
    local.execs["w-1"] = exec_object("w-1")
    raw = b"\x1b[31mr\xc3\xbcd\x00\xff\r\nno newline"
    local.replies["GET", f"{BASE}/execs/w-1/log"] = Reply(200, raw)
    for command, kind in (("--exec-trainlogs", "outerrlog"), ("--exec-trainoutlogs", "outlog"),
                          ("--exec-trainerrlogs", "errlog")):
        done = desk.run(command, "w-1")
        assert done.raw_out == raw + b"\n"
        assert local.seen[-1].target.endswith(f"/log?logType={kind}")
        assert local.seen[-1].headers["accept"] == "text/plain"


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_the_help_of_a_long_command_has_examples_of_it(command: Option) -> None:
    page = help_text(command.name)
    for line, _ in EXAMPLES[command.name]:
        words = shlex.split(line.removeprefix('eval "$(').removesuffix(')"').partition(" > ")[0])
        assert line in page and words[0] == "dlicmd"
        if command.name != "--help":
            found = parse_argv(words[1:])
            assert found.command == command.name and (not found.program or "--" in words)


def test_help_and_version_are_printed(desk: Desk) -> None:
    for words in HELP_WORDS:
        done = desk.run(*words)
        assert done.code == 0 and done.out.startswith("Usage: dlicmd") and "\n  result ID " in done.out
    for words, named in HELP_OF_ONE:
        done = desk.run(*words)
        assert done.code == 0 and done.out.startswith("Usage: dlicmd") and named in done.out
        assert "--exec-delete-all" not in done.out
    nothing, short = desk.run(), desk.run("help")
    assert (short.code, short.out, short.err) == (0, nothing.err, "") and len(short.out.splitlines()) < 24
    assert nothing.code == 2 and nothing.out == "" and nothing.err.startswith("Usage: dlicmd")
    assert len(nothing.err.splitlines()) <= 32 and "dlicmd --help" in nothing.err
    assert "Examples:\n  dlicmd demo " in desk.run("--help").out
    shown = desk.run("help", "options").out
    assert "--exec-trainresult ID" in shown and "--user-cmd " in shown and "  130  interrupted" in shown
    assert "--msd-pack-id ID " in shown and "--lsf-gpu-syntax TEXT *" in shown and "--numWorker N " in shown
    assert "options marked *" in " ".join(shown.split())
    assert desk.run("--version").out.startswith("dlicmd ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--exec-gett", "x"], "mean --exec-get"),
        (["--exec-get"], "--exec-get ID"),
        (["--exec-get", ""], "--exec-get"),
        (["--exec-get", "a", "b"], "'b'"),
        (["--exec-get", "a", "--exec-stop", "b"], "--exec-stop"),
        (["--follow"], "--follow"),
        (["--wait"], "--wait"),
        (["--rest-host", "h"], "no command"),
        (["--exec-get-all", "--rest-port", "99999", "--rest-host", "h"], "--rest-port"),
        (["--exec-get-all", "--insecure"], "--insecure"),
        (["--exec-get-all", "--rest-host", "a b"], "'a b'"),
        (["--exec-get-all", "--rest-host", "http://h"], "--http"),
        (["--exec-get-all", "--rest-host", "ftp://h"], "'ftp://h'"),
        (["--exec-get-all", "--rest-host", "h@evil"], "'h@evil'"),
        (["--logon"], "logon"),
        (["--demo", "--rest-host", "h"], "--demo"),
        (["--exec-trainresult", "w-1", "--to", "/dev/null"], "--to: '/dev/null'"),
        (["--debug-level", "loud", "--version"], "--debug-level"),
    ],
)
def test_usage_errors_are_reported_in_one_line(desk: Desk, local: FakeServer, words: list[str], said: str) -> None:
    local.execs["w-1"] = exec_object("w-1")
    done = desk.run(*words)
    assert done.code == 2 and done.out == "", done
    assert len(done.err.splitlines()) == 1 and said in done.err
    assert done.err.endswith(("Try 'dlicmd --help'.\n", f"Try 'dlicmd {words[0]} --help'.\n"))


@pytest.mark.parametrize(("words", "shown"), [
    (["foo"], "dlicmd help"), (["help", "xyzzy"], "dlicmd help"), (["ls", "last"], "dlicmd ls --help"),
    (["logs", "last", "--tail", "x"], "dlicmd logs --help"),
    (["ls", "--state", "nonsense"], "dlicmd ls --help"), (["run", "x", "--as", "mpi"], "dlicmd run --help"),
    (["diff", "w-1", "w-2", "--export", "table.txt"], "dlicmd diff --help"),
    (["--exec-get-all", "--query-args", "limit=x"], "dlicmd --exec-get-all --help"),
    (["--debug-level", "loud", "--version"], "dlicmd --help"),
])
def test_a_wrong_line_of_a_verb_leads_to_the_help_of_the_verb(
    desk: Desk, local: FakeServer, words: list[str], shown: str
) -> None:
    local.execs.update({name: exec_object(name) for name in ("w-1", "w-2")})
    done = desk.run(*words)
    assert (done.code, done.out) == (2, "") and done.err.endswith(f" Try '{shown}'.\n"), done
    named = shown.removesuffix("help").removesuffix(" --").rstrip()
    assert desk.run(*shown.split()[1:]).out.startswith(f"Usage: {named}")


def test_a_command_without_its_dashes_is_named(desk: Desk, local: FakeServer) -> None:
    done = desk.run("exec-get", "x")
    assert (done.code, done.out) == (2, "") and done.err.endswith(": dlicmd --exec-get ID\n"), done


def test_words_that_are_not_utf_8_are_refused(desk: Desk, local: FakeServer) -> None:
    done = desk.run(b"--exec-get", b"\xff\xfe")
    assert done.code == 2 and "UTF-8" in done.err


@pytest.mark.parametrize(
    ("reply", "code", "said"),
    [
        (Reply(401, b'{"message": "token expired"}'), 9, "token expired"),
        (Reply(403, b"Error 403: Not yours.\n"), 9, "Not yours"),
        (Reply(404, b"Error 404: Not found.\n"), 6, "'w-1'"),
        (Reply(400, b"Error 400: Exec w-1 is not found.\n"), 6, "'w-1'"),
        (Reply(500, b'{"errors": [{"message": "disk \x1b[31mfull"}]}'), 1, "disk full"),
        (Reply(500, b""), 1, "HTTP 500"),
        (Reply(302, b"", {"Location": "https://elsewhere/"}), 1, "elsewhere"),
        (Reply(200, b"<html>"), 1, "not JSON"),
        (Reply(200, b"[" * 100_000), 1, "not JSON"),
        (Reply(200, b"[]"), 1, "not a JSON object"),
    ],
)
def test_answers_of_the_server_determine_the_exit_code(
    desk: Desk, local: FakeServer, reply: Reply, code: int, said: str
) -> None:
    local.execs["w-1"] = exec_object("w-1")
    local.replies["GET", f"{BASE}/execs/w-1"] = reply
    done = desk.run("--exec-get", "w-1")
    assert (done.code, done.out) == (code, "") and said in done.err, done
    assert len(done.err.splitlines()) == 1 and "\x1b" not in done.err


def test_a_refused_request_is_not_reported_as_an_unknown_id(desk: Desk, local: FakeServer) -> None:
    local.execs["w-1"] = exec_object("w-1")
    local.replies["POST", f"{BASE}/execs/w-1/stop"] = Reply(400, b"Error 400: Exec w-1 is already stopped.\n")
    done = desk.run("--exec-stop", "w-1")
    assert done.code == 1
    assert done.err.count("\n") == 1 and done.err.endswith(" w-1: Exec w-1 is already stopped.\n")
    # Contract, 4.2: prints "... failed. HTTP:..."; 4.5: "original scripts only test stdout".
    assert done.out == "Stop exec w-1 failed. HTTP:400 \n"
    for command in ("--exec-stop", "--exec-delete", "--exec-trainlogs", "--exec-trainresult", "--exec-outlogs",
                    "--follow", "--wait"):
        assert desk.run(command, "nobody-1").code == 6, command


def test_an_unreachable_server_is_reported(desk: Desk) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = str(unused.getsockname()[1])
        words = ["--exec-get-all", "--rest-host", "localhost", "--rest-port", port, "--jwt-token", "t"]
        for more in (["--http"], []):
            desk.environment["DLICMD_RETRIES"] = "1" if more else "0"
            [said] = desk.run(*words, *more).err.splitlines()
            assert "cannot reach" in said
            assert said.endswith("; check that a server is running there, and check --rest-host and --rest-port")
        assert desk.run(*words).code == 8


def test_a_server_that_does_not_speak_http_is_reported(desk: Desk) -> None:
    import threading

    def chat(listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(65536)
                connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=chat, args=(listener,), daemon=True).start()
        port = str(listener.getsockname()[1])
        done = desk.run("--exec-get-all", "--rest-host", "127.0.0.1", "--rest-port", port, "--jwt-token", "t", "--http")
        listener.shutdown(socket.SHUT_RDWR)
    assert done.code == 8 and len(done.err.splitlines()) == 1


def test_reads_are_repeated_after_a_broken_connection(desk: Desk, local: FakeServer) -> None:
    local.execs["w-1"] = exec_object("w-1", state="FINISHED")
    failures = iter([True, False])

    def flaky(_seen: object) -> Reply:
        if next(failures):
            raise ConnectionResetError
        return Reply(200, json.dumps(local.execs["w-1"]).encode())

    local.replies["GET", f"{BASE}/execs/w-1"] = flaky
    done = desk.run("--exec-get", "w-1")
    assert done.code == 0 and len(done.err.splitlines()) == 1 and "GET /execs/w-1" in done.err


def test_debug_output_goes_to_stderr_without_secrets(desk: Desk, local: FakeServer) -> None:
    local.execs["w-1"] = exec_object("w-1")
    done = desk.run("--exec-get", "w-1", "--debug-level", "debug")
    assert json.loads(done.out)["id"] == "w-1" and "[Debug]: GET" in done.err and TOKEN not in done.err
    failed = desk.run("--exec-get", "w-2", "--debug-level", "debug")
    assert failed.code == 6 and "Traceback" in failed.err and TOKEN not in failed.err


def test_a_reader_that_closes_the_pipe_causes_no_traceback(desk: Desk, local: FakeServer) -> None:
    local.execs.update({f"w-{n}": exec_object(f"w-{n}") for n in range(3000)})
    with desk.start("--exec-get-all", "-o", "json") as process:
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 1


def test_help_does_not_break_long_words(desk: Desk) -> None:
    desk.environment["COLUMNS"] = "80"
    shown = desk.run("help", "options").out.split()
    lacking = [word for option in OPTIONS if not option.hidden for word in option.help.split() if word not in shown]
    assert not lacking


@pytest.mark.parametrize(("words", "code", "status"), [
    (["--wait"], "client.usage", 2), (["--exec-get", "w-9"], "exec.not_found", 6),
    (["--exec-get", "last"], "exec.none_yet", 6), (["--app-get", "w-9"], "application.not_found", 6),
])
def test_errors_are_json_objects_if_the_output_format_is_json(
    desk: Desk, local: FakeServer, words: list[str], code: str, status: int
) -> None:
    done = desk.run(*words, "-o", "json")
    assert (done.code, done.out) == (status, "")
    found = json.loads(done.err)["error"]
    assert found["code"] == code and found["exitCode"] == status and found["message"]


def test_the_error_code_of_the_server_is_reported(desk: Desk, local: FakeServer) -> None:
    text = b"Error 507: alice may have 2 execs.\n"
    local.replies["POST", f"{BASE}/execs/"] = Reply(507, text, {"X-DLI-Error-Code": "quota.execs"})
    words = ["--exec-start", "PyTorch", "--model-dir", str(desk.model()), "--model-main", "train.py"]
    assert desk.run(*words, "-o", "json").error == "quota.execs"
