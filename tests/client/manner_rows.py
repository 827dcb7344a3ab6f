"""Rows of the tests of the three manners: a command line, the answers of the server, and the output."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fake_server import BASE, Reply, Seen, exec_object
from manner_desk import as_json
from manner_rules import iso, log, pretty, sub_table, table, utc

Answers = Mapping[tuple[str, str], "Reply | Callable[[Seen], Reply]"]
LISTED = f"{BASE}/scheduler/engine/applications"
CLUSTER = f"{BASE}/scheduler/kubernetesobjects"
SEARCHES = f"{BASE}/hypersearch"
DEPLOYED = {"name": "m", "kernel": "k.py", "attributes": {"a": "b"}, "environments": {"X": "1"}}
#: A time whose age is `2d,4h` when the tests begin.
BEGAN = int(time.time()) - (2 * 86400 + 4 * 3600 + 1800)
EXECS = "id submit_user name framework type state num submit_time age"
APPS = "id consumer submit_user name pri type state num gpu mem cpu submit_time start_time age"
HISTORY = APPS.removesuffix("age") + "duration"
JOBS = "id namespace consumer submit_user type state res_req nodes create_time age"
ANALYSIS = ("tag type curr_cpu curr_gpu curr_mem hist_cpu hist_gpu hist_mem PENDING RUNNING FINISHED KILLED ERROR "
            "UNKNOWN")

ELASTIC = exec_object("w-1", state="PENDING_CRD_SCHEDULER", elastic=True, framework="edtPyTorch", numWorker=2,
                      createTime=iso(BEGAN), appName="Elastic")
PLAIN = exec_object("w-22", state="", creator="bob", createTime=iso(BEGAN).replace("Z", ".125Z"))
EXEC_CELLS = [
    ["w-1", "alice", "Elastic", "edtPyTorch", "ELASTIC", "PENDING_CRD_SCHEDULER", 2, utc(BEGAN), "2d,4h"],
    ["w-22", "bob", "SingleNodePytorchTrain", "PyTorch", "PARALLEL", "", 1, utc(BEGAN) + ".125000", "2d,4h"],
]
RUNNING = {
    "id": "w-1", "state": "RUNNING", "type": "Training", "tag": "", "consumer": "/plans/a", "submit_user": "alice",
    "name": "one", "priority": 5000, "submit_time": BEGAN, "start_time": BEGAN + 60, "end_time": 0,
    "task12n_resreq": "ncpus=1,ngpus=1,mem=4096", "task12n_num": 2, "used_gpu": 2, "used_mem": "3072", "used_cpu": 1.5,
    "kernels": [{"ip": "10.0.0.7"}],
}
PENDING = RUNNING | {"id": "w-2", "state": "PENDING_CRD_SCHEDULER", "consumer": "/other", "submit_user": "bob",
                     "submit_time": BEGAN + 1, "start_time": 0, "used_gpu": 0, "used_mem": 0, "used_cpu": 0,
                     "task12n_resreq": "ncpus=1", "task12n_num": 0, "kernels": [], "name": None}
ENDED = RUNNING | {"id": "w-3", "state": "KILLED", "end_time": BEGAN + 60 + 62}
NEVER_RAN = ENDED | {"id": "w-4", "state": "ERROR", "start_time": 0, "submit_time": BEGAN + 5}
APP_CELLS = [
    ["w-1", "/plans/a", "alice", "one", 5000, "Training", "RUNNING", 2, "2.0/2.0", "3072.0/8192.0", "1.5/2.0",
     utc(BEGAN), utc(BEGAN + 60), "2d,4h"],
    ["w-2", "/other", "bob", None, 5000, "Training", "PENDING_PJ", 1, "0.0/0.0", "0.0/0.0", "0.0/1.0",
     utc(BEGAN + 1), None, "2d,4h"],
]
HISTORY_CELLS = [
    ["w-3", "/plans/a", "alice", "one", 5000, "Training", "KILLED", 2, "2.0/2.0", "3072.0/8192.0", "1.5/2.0",
     utc(BEGAN), utc(BEGAN + 60), "1m,2s"],
    ["w-4", "/plans/a", "alice", "one", 5000, "Training", "ERROR", 2, "2.0/2.0", "3072.0/8192.0", "1.5/2.0",
     utc(BEGAN + 5), None, ""],
]
POD = {"metadata": {"name": "p", "labels": {"controller-uid": "u-1"}}, "spec": {"nodeName": "node-7"},
       "status": {"podIP": "10.0.0.7"}}
JOB = {
    "metadata": {"uid": "u-1", "namespace": "cpd", "creationTimestamp": iso(BEGAN), "labels": {
        "msd/job": "w-1", "msd/job-type": "Training"}, "annotations": {
        "lsf.ibm.com/consumer": "/plans/a", "lsf.ibm.com/submissionUser": "alice"}},
    "status": {"jobStatus": "Running"},
    "spec": {"taskGroups": [{"metadata": {"name": "task12n"}, "spec": {"replica": 2, "template": {"spec": {
        "containers": [{"resources": {"requests": {"memory": "4096.000000Mi", "cpu": "1", "nvidia.com/gpu": "1"}}}]}}}},
    ]},
}
JOB_CELLS = ["w-1", "cpd", "/plans/a", "alice", "Training", "RUNNING", "num=2,ngpus=1,mem=4G,ncpus=1", "node-7",
             utc(BEGAN), "2d,4h"]
SEARCH = {
    "hpoName": "s-1", "state": "RUNNING", "running": 1, "progress": "1/2", "creator": "alice",
    "createtime": "2021-03-08 03:24:40", "duration": "00:01:00", "complete": 1, "failed": 0,
    "experiments": [{"id": 0, "appId": "w-7", "state": "FINISHED", "metricVal": 0.5,
                     "startTime": "2021-03-08 03:24:41", "endTime": "2021-03-08 03:25:40"},
                    {"id": 10, "appId": "w-8", "state": "RUNNING", "metricVal": None,
                     "startTime": "2021-03-08 03:25:41", "endTime": None}],
}
SEARCH_TABLE = table("name state running progress creator createtime duration complete failed",
                     ["s-1", "RUNNING", 1, "1/2", "alice", "2021-03-08 03:24:40", "00:01:00", 1, 0])
EXPERIMENTS = sub_table(" " * 8, [0, "w-7", "FINISHED", 0.5, "2021-03-08 03:24:41", "2021-03-08 03:25:40"],
                        [10, "w-8", "RUNNING", None, "2021-03-08 03:25:41", None])
TREE = {"id": "plans", "childTreeDto": [{"id": "a"}]}
TREE_TEXT = "".join([
    "root\n", "|-- {green}plans{end}\n", "    |-- {green}a{end}\n", "        |-- {red}alice{end}\n",
    sub_table(" " * 12, ["w-1", "Training", "RUNNING", "num=2,ngpus=1,mem=4G,ncpus=1", "2d,4h", "node-7"]),
    "|-- {green}Unknown{end}\n",
    sub_table(" " * 4, ["w-2", "Training", "PENDING_PJ", "num=1,ngpus=n/a,mem=n/a,ncpus=1", "2d,4h", None]),
])
IDS = pretty({"execId": "wmla-1", "appId": "wmla-1"})
FRAMEWORKS = "Name: PyTorch\nVersion: 2.1\nDesc: first line\n      second line\n\n"
RESULT = "dlpd-model-1-2w-1-result.zip"


@dataclass
class Row:
    """A command line, answers of the server, and the output of each manner.

    `code`, `said` and `out` (an exact text, or a pattern) are those of the original client. `piped_code` and `error`
    (a piece of standard error) are those of the two others, which print the same standard output unless `piped_out`
    is given. `view`: pieces of the output on a terminal, which then differs and has no borders. `token`: whether a
    token is stored.
    """

    words: str
    out: str | re.Pattern[str]
    answers: Answers = field(default_factory=dict)
    code: int = 0
    piped_code: int = 0
    error: str = ""
    piped_out: str | re.Pattern[str] | None = None
    view: tuple[str, ...] = ()
    token: bool = True
    name: str = ""

    @property
    def title(self) -> str:
        """A name for the test."""
        return (self.words or "nothing") + (f" ({self.name})" if self.name else "")


def get(path: str, value: Any) -> dict[tuple[str, str], Reply]:
    """Return the answer to a GET."""
    return {("GET", path): as_json(value)}


def text(method: str, path: str, said: str, status: int = 200) -> dict[tuple[str, str], Reply]:
    """Return an answer in plain text."""
    return {(method, path): Reply(status, said.encode(), {"Content-Type": "text/plain"})}


def _cluster(seen: Seen) -> Reply:
    return as_json({"items": [POD if seen.query["type"] == ["pod"] else JOB]})


def _started(size: str) -> str:
    return f"Copying files and directories ...\nContent size: {size}\n{IDS}"


EXEC = get(f"{BASE}/execs/w-1", ELASTIC)
UNKNOWN = "Error 400: Exec w-9 is not found.\n"
APP = f"{BASE}/scheduler/applications/w-1"
#: The answers to the logs of an application with a driver and two executors.
LOGS = {
    **get(f"{BASE}/scheduler/applications", [{"task0": {"name": "task0"}, "task12n": [{}, {}]}]),
    **{key: reply for kind in ("stdout", "stderr", "launcherlog") for key, reply in {
        **text("GET", f"{APP}/driver/logs/{kind}", f"driver {kind}\n"),
        **text("GET", f"{APP}/executor/1/logs/{kind}", "*Task <1> SubProcess*: a\n*Task <1> SubProcess*: b\n"),
        **text("GET", f"{APP}/executor/2/logs/{kind}", "Error 500: gone\n", 500)}.items()},
}


def _logs(kind: str) -> str:
    return (log(f"Driver {kind}", f"driver {kind}\n")
            + log(f"Executor 1 {kind}", "*Task <1> SubProcess*: a\n*Task <1> SubProcess*: b\n")
            + log(f"Executor 2 {kind}", "Error 500: gone\n"))


def _log_rows(command: str, kind: str) -> list[Row]:
    complete = {**EXEC, **LOGS, **text("GET", f"{APP}/executor/2/logs/{kind}", "")}
    whole = _logs(kind).replace("Error 500: gone\n", "")
    return [
        Row(f"{command} w-1", whole, complete, view=(f"Driver {kind}",), name="complete"),
        Row(f"{command} w-1", _logs(kind), {**EXEC, **LOGS}, 0, 1, "Executor 2",
            piped_out=_logs(kind).replace("Error 500: gone\n", ""), view=("Driver",), name="a log fails"),
    ]


#: Rows of commands that succeed, or that fail in their own way.
ROWS = [
    Row("", re.compile("Usage: .*--exec-start", re.S), code=1, piped_code=2, error="Usage:", piped_out=""),
    Row("--help", re.compile("Usage: .*--exec-start", re.S), piped_out=re.compile("Usage: .*run .*help options", re.S)),
    Row("-h", re.compile("Usage: .*--exec-start", re.S), piped_out=re.compile("Usage: .*run .*help options", re.S)),
    Row("--no-such-command", re.compile("Usage: .*--exec-start", re.S), code=1, piped_code=2,
        error="unknown option", piped_out=""),
    Row("--logon --username alice --password pw", pretty({"accessToken": "fake-token-1", "username": "alice"}),
        piped_out=pretty({"accessToken": "***", "username": "alice"}), token=False),
    Row("--logon --username alice --password pw",
        "Authentication error. The request was denied.\n" + pretty({"error": "no"}),
        {("GET", "/auth/v1/logon"): as_json({"error": "no"}, 401)}, 1, 9, "no token is stored now", piped_out="",
        name="refused"),
    Row("--logon --username alice --password pw", "Authentication error. The request was denied.\nError 400: no\n\n",
        text("GET", "/auth/v1/logon", "Error 400: no\n", 400), 1, 9, "no token is stored now", piped_out="",
        name="400"),
    Row("--logon --username alice --password pw", re.compile(r"\[Error\]: .*accessToken\n"),
        get("/auth/v1/logon", {"username": "alice"}), 1, 1, "accessToken", piped_out="", name="without a token"),
    Row("--logoff", "bye\n"),
    Row("--logoff", pretty({"message": "done"}), {("POST", "/auth/v1/logoff"): as_json({"message": "done"})},
        name="JSON"),
    Row("--logoff", "", token=False, error="no stored token", name="without a token"),
    Row("--status", pretty({"status": "OK"})),
    Row("--status", "fine\n", text("GET", f"{BASE}/status", "fine\n"), name="text"),
    Row("--dl-frameworks", FRAMEWORKS, view=("Name: PyTorch",)),
    Row("--dl-frameworks -o custom-columns=name", FRAMEWORKS, piped_out="name\nPyTorch\n"),
    Row("--dl-frameworks", "", get(f"{BASE}/execs/frameworks", []), name="none"),
    Row("--dl-frameworks -o json", pretty([{"name": "PyTorch", "desc": ["first line", "second line"],
                                            "frameworkVersion": "2.1"}])),
    Row("--exec-start PyTorch --model-main main.py", _started("1.9K")),
    Row("--exec-start PyTorch --model-main whole.py", _started("2M")),
    Row("--exec-start PyTorch --model-main small.py", _started("484")),
    Row("--exec-start PyTorch --user-cmd -- hostname -f", _started("0")),
    Row("--exec-start PyTorch --model-dir model --model-main main.py",
        re.compile(_started("[0-9.]+K?").replace("...", r"\.\.\.").replace("{", r"\{").replace("}", r"\}"))),
    Row("--exec-start PyTorch", re.compile(r"\[Error\]: .*--model-main.*\n"), code=1, piped_code=2,
        error="--model-main", piped_out=""),
    Row("--exec-start PyTorch --user-cmd", re.compile(r"\[Error\]: .*--user-cmd.*\n"), code=1, piped_code=2,
        error="--user-cmd", piped_out=""),
    Row("--exec-start PyTorch --pbmodel-name VGG16 --pbmodel-cmd train", _started("0")),
    Row("--exec-start PyTorch --pbmodel-name VGG16", re.compile(r"\[Error\]: .*--pbmodel-cmd.*\n"), code=1,
        piped_out=_started("0")),
    Row("--exec-start PyTorch --model-main absent.py", re.compile(r"\[Error\]: .*absent.py.*\n"), code=1, piped_code=2,
        error="absent.py", piped_out=""),
    Row("--exec-get-all", table(EXECS, *EXEC_CELLS), get(f"{BASE}/execs/", [ELASTIC, PLAIN]),
        view=("submit_user", "PENDING")),
    Row("--exec-get-all", table(EXECS), get(f"{BASE}/execs/", []), view=("No result found",), name="none"),
    Row("--exec-get-all -o json", pretty([PLAIN | {"appName": "ä"}]),
        get(f"{BASE}/execs/", [PLAIN | {"appName": "ä"}])),
    Row("--exec-get-all -o custom-columns=id,x", table("id x", ["w-1", None]), get(f"{BASE}/execs/", [ELASTIC]),
        piped_out="id   x\nw-1  n/a\n", error="no row has the column x"),
    Row("--exec-get-all -o custom-columns=id,app_id,num", table("id app_id num", ["w-1", "w-1", 2]),
        get(f"{BASE}/execs/", [ELASTIC]), piped_out="id   app_id  num\nw-1  w-1     2\n"),
    Row("--exec-get-all -o wide", table(EXECS, *EXEC_CELLS), get(f"{BASE}/execs/", [ELASTIC, PLAIN]),
        piped_code=2, piped_out="", error="-o"),
    Row("--exec-get-all -opt", table(EXECS, EXEC_CELLS[0]), get(f"{BASE}/execs/", [ELASTIC]),
        piped_code=2, piped_out="", error="-opt"),
    Row("--exec-get-all --query-args start=1", table(EXECS, EXEC_CELLS[0]), get(f"{BASE}/execs/", [ELASTIC]),
        error="unknown key 'start'", view=("submit_user",)),
    Row("--exec-get-all --query start=1", table(EXECS, EXEC_CELLS[0]), get(f"{BASE}/execs/", [ELASTIC]),
        piped_code=2, error="unknown option '--query'", piped_out="", name="abbreviated"),
    Row("--exec-get-all --unknown word", table(EXECS, EXEC_CELLS[0]), get(f"{BASE}/execs/", [ELASTIC]),
        piped_code=2, error="unknown option '--unknown'", piped_out=""),
    Row("--exec-get w-1", pretty(ELASTIC | {"state": "FINISHED"}),
        get(f"{BASE}/execs/w-1", ELASTIC | {"state": "FINISHED"})),
    Row("--exec-get w-1 -o json", pretty(ELASTIC | {"state": "FINISHED"}),
        get(f"{BASE}/execs/w-1", ELASTIC | {"state": "FINISHED"})),
    Row("--exec-get w-9", UNKNOWN + "\n", code=1, piped_code=6, error="w-9", piped_out=""),
    Row("--exec-stop w-1", "Stop exec w-1 succeed. HTTP:204 \n", {**EXEC, ("POST", f"{BASE}/execs/w-1/stop"):
                                                                  Reply(204)}),
    Row("--exec-stop w-1", "Stop exec w-1 failed. HTTP:400 Error 400: has ended\n",
        {**EXEC, **text("POST", f"{BASE}/execs/w-1/stop", "Error 400: has ended\n", 400)}, 0, 1, "has ended",
        piped_out="Stop exec w-1 failed. HTTP:400 \n", name="refused"),
    Row("--exec-stop w-9", f"Stop exec w-9 failed. HTTP:400 {UNKNOWN}", code=0, piped_code=6, error="w-9",
        piped_out="Stop exec w-9 failed. HTTP:400 \n"),
    Row("--exec-delete w-1", "Delete exec w-1 succeed. HTTP:204 \n", {("DELETE", f"{BASE}/execs/w-1"): Reply(204)}),
    Row("--exec-delete w-9", f"Delete exec w-9 failed. HTTP:400 {UNKNOWN}", code=0, piped_code=6, error="w-9",
        piped_out="Delete exec w-9 failed. HTTP:400 \n"),
    Row("--exec-delete-all", "Execs are deleted\n"),
    Row("--exec-deploy w-1 --kernel k.py --name m --attributes a=b --envs X=1",
        f"{DEPLOYED}\nw-1\n" + pretty({"url": "u", "n": {"m": 1}}, 4),
        {("POST", f"{BASE}/execs/w-1/deploy"): as_json({"url": "u", "n": {"m": 1}})},
        piped_out=pretty({"url": "u", "n": {"m": 1}}, 4), view=('  "url": "u"',)),
    Row("--exec-deploy w-1", re.compile(r".*--kernel.*\n"), EXEC, 2, 2, "--kernel", piped_out=""),
    *_log_rows("--exec-outlogs", "stdout"), *_log_rows("--exec-errlogs", "stderr"),
    *_log_rows("--exec-launcherlogs", "launcherlog"),
    *_log_rows("--app-outlogs", "stdout"), *_log_rows("--app-errlogs", "stderr"),
    *_log_rows("--app-launcherlogs", "launcherlog"),
    Row("--exec-outlogs w-1", "", get(f"{BASE}/execs/w-1", {"id": "w-1", "state": ""}), 1, 1, "no application yet",
        name="no application yet"),
    Row("--exec-trainlogs w-1", "a\nb\n", text("GET", f"{BASE}/execs/w-1/log", "a\nb")),
    Row("--exec-trainoutlogs w-1", "a\nb\n", text("GET", f"{BASE}/execs/w-1/log", "a\nb\n")),
    Row("--exec-trainerrlogs w-1", "", text("GET", f"{BASE}/execs/w-1/log", "")),
    Row("--exec-trainlogs w-9", UNKNOWN + "\n", code=1, piped_code=6, error="w-9", piped_out=""),
    Row("--exec-trainresult w-9", UNKNOWN + "\n", code=1, piped_code=6, error="w-9", piped_out=""),
    Row("--app-get-all", table(APPS, *APP_CELLS), get(LISTED, [PENDING, RUNNING, ENDED]), view=("PENDING",)),
    Row("--app-get-all", "No result found\n", get(LISTED, []), name="none"),
    Row("--app-get-all -o custom-columns=id,start_time,x", table("id start_time x", ["w-1", utc(BEGAN + 60), None]),
        get(LISTED, [RUNNING]), piped_out=re.compile("id +start_time +x\nw-1 "), error="no row has the column x"),
    Row("--app-history-get-all", table(HISTORY, *HISTORY_CELLS), get(LISTED, [NEVER_RAN, ENDED, RUNNING]),
        view=("1m2s",)),
    Row("--app-history-get-all", "No result found\n", get(LISTED, []), name="none"),
    Row("--app-get w-1", pretty([RUNNING]), get(f"{LISTED}/w-1", [RUNNING])),
    Row("--app-get w-9", "", get(f"{LISTED}/w-9", []), 0, 6, "w-9"),
    Row("--app-wait w-1", "w-1    FINISHED    2d,4h\n", get(f"{LISTED}/w-1", [RUNNING | {"state": "FINISHED"}]),
        view=("w-1    FINISHED    2d4h",)),
    Row("--app-wait w-3", "w-3    KILLED    2d,4h\n", get(f"{LISTED}/w-3", [ENDED]), 0, 4, "KILLED",
        view=("w-3    KILLED    2d4h",)),
    Row("--app-wait w-9", re.compile(r"\[Error\]: .*w-9.*\n"), get(f"{LISTED}/w-9", []), 1, 6, "w-9", piped_out=""),
    Row("--app-stop w-1 w-2",
        "Stop application w-1 succeed. HTTP:200 stopped\nStop application w-2 failed. HTTP:500 Error 500: no\n",
        {**text("PUT", f"{APP}/stop", "stopped\n"),
         **text("PUT", f"{BASE}/scheduler/applications/w-2/stop", "Error 500: no\n", 500)}, 0, 1, "no",
        piped_out="Stop application w-1 succeed. HTTP:200 stopped\nStop application w-2 failed. HTTP:500 \n"),
    Row("--app-stop-all", "Stop application w-1 succeed. HTTP:200 stopped\n",
        {**get(LISTED, [RUNNING, ENDED]), **text("PUT", f"{APP}/stop", "stopped\n")}),
    Row("--app-stop-all", "No result found\n", get(LISTED, []), name="none"),
    Row("--app-analyze 100", re.compile(r"From \d{4}-\d\d-\d\d \d\d:\d\d:\d\d To \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\n"
                                        + re.escape(table(ANALYSIS, [
                                            "/plans/a/alice", "Training", "1.5", "2.0", "3072.0", "2.0", "2.0",
                                            "8192.0", 0, 1, 0, 1, 0, 0]))),
        get(LISTED, [RUNNING, ENDED]), view=("/plans/a/alice",)),
    Row("--app-analyze two", re.compile(r".*'two'.*\n"), code=2, piped_code=2, error="'two'", piped_out=""),
    Row("--rp-get-all", TREE_TEXT.format(green="\x1b[32m", red="\x1b[31m", end="\x1b[0m"),
        {**get(f"{BASE}/resplans/resplantree", TREE), **get(LISTED, [RUNNING, PENDING]), **get(CLUSTER, {"items": [
            POD]})},
        piped_out=TREE_TEXT.format(green="", red="", end=""), view=("plans", "alice", "w-1", "Unknown")),
    Row("--rp-get-all -o json", pretty(TREE), get(f"{BASE}/resplans/resplantree", TREE)),
    Row("--rp-get a", pretty({"id": "a"}), get(f"{BASE}/resplans/resplan/a", {"id": "a"})),
    Row("--rp-delete a", pretty({"gone": True}), {("DELETE", f"{BASE}/resplans/resplan/a"): as_json({"gone": True})}),
    Row("--rp-delete a", "", {("DELETE", f"{BASE}/resplans/resplan/a"): Reply(204)}, name="no text"),
    Row("--pj-get-all", table(JOBS, JOB_CELLS), {("GET", CLUSTER): _cluster}, view=("RUNNING", "node-7")),
    Row("--pj-get-all", "No result found\n", get(CLUSTER, {"items": []}), name="none"),
    Row("--k8s-obj-get-all pod", pretty({"items": [POD]}), get(CLUSTER, {"items": [POD]})),
    Row("--k8s-obj-get pod p", pretty(POD), get(CLUSTER, POD)),
    Row("--k8s-obj-get pod", re.compile(r"\[Error\]: .*--k8s-obj-get.*\n"), code=1, piped_code=2,
        error="--k8s-obj-get", piped_out=""),
    Row("--hpo-start search.json --model-dir model",
        re.compile(r"Copying files and directories \.\.\.\nContent size: [0-9.]+K?\n.*id: alice-hpo-1\n"),
        text("POST", SEARCHES, "alice-hpo-1")),
    Row("--hpo-start absent.json --model-dir model", "[Error]: Invalid parameter for --hpo-start, a file in json "
        "format with search definition is required\n", code=1, piped_code=2, error="absent.json", piped_out=""),
    Row("--hpo-get-all", "\n".join([*SEARCH_TABLE.splitlines()[:-1], EXPERIMENTS + SEARCH_TABLE.splitlines()[-1], ""]),
        get(SEARCHES, [SEARCH]), view=("s-1", "1/2")),
    Row("--hpo-get-all", "No result found\n", get(SEARCHES, []), name="none"),
    Row("--hpo-start search.yaml --model-dir model",
        re.compile(r"Copying files and directories \.\.\.\nContent size: [0-9.]+K?\n.*id: alice-hpo-1\n"),
        text("POST", SEARCHES, "alice-hpo-1")),
    Row("--hpo-start", re.compile(r".*--hpo-start needs a value.*\n"), code=2, piped_code=2, error="--hpo-start FILE",
        piped_out=""),
    Row("--hpo-get s-1", pretty(SEARCH), get(f"{SEARCHES}/s-1", SEARCH), view=("1 running", "w-7")),
    Row("--hpo-get s-9", "Error 404: no\n\n", text("GET", f"{SEARCHES}/s-9", "Error 404: no\n", 404), 1, 6, "s-9",
        piped_out=""),
    Row("--hpo-stop s-1 --force", "Stop hpo s-1 succeed. HTTP:204 \n", {("PUT", f"{SEARCHES}/s-1/force"): Reply(204)}),
    Row("--hpo-stop s-1", "Stop hpo s-1 succeed. HTTP:204 \n", {("PUT", f"{SEARCHES}/s-1"): Reply(204)}),
    Row("--hpo-restart s-1", pretty({"uid": "s-1"}), {("PUT", f"{SEARCHES}/s-1/restart"): as_json({"uid": "s-1"})}),
    Row("--hpo-delete s-1", "Delete hpo s-1 succeed. HTTP:204 \n", {("DELETE", f"{SEARCHES}/s-1"): Reply(204)}),
    Row("--hpo-delete-all", "gone\n", text("DELETE", SEARCHES, "gone\n")),
    Row("--hpo-algorithm-get-all", table("name type remoteExec", ["Random", "BUILT_IN", False]),
        get(f"{SEARCHES}/algorithm", [{"name": "Random", "type": "BUILT_IN", "remoteExec": False}]), view=("Random",)),
    Row("--hpo-algorithm-get-all", "No result found\n", get(f"{SEARCHES}/algorithm", []), name="none"),
    Row("--hpo-algorithm-get a", pretty({"name": "a"}), get(f"{SEARCHES}/algorithm/a", {"name": "a"})),
    Row("--hpo-algorithm-delete a", "gone\n", text("DELETE", f"{SEARCHES}/algorithm/a", "gone\n")),
]
#: Command → words after it, for the failures that all calls have.
OPERANDS = {
    **dict.fromkeys(("--logon", "--logoff", "--status", "--dl-frameworks", "--exec-get-all", "--exec-delete-all",
                     "--app-get-all", "--app-history-get-all", "--app-stop-all", "--rp-get-all", "--pj-get-all",
                     "--hpo-get-all", "--hpo-delete-all", "--hpo-algorithm-get-all"), ""),
    **dict.fromkeys(("--exec-get", "--exec-stop", "--exec-delete", "--exec-launcherlogs", "--exec-outlogs",
                     "--exec-errlogs", "--exec-trainlogs", "--exec-trainoutlogs", "--exec-trainerrlogs",
                     "--exec-trainresult", "--app-get", "--app-wait", "--app-stop", "--app-launcherlogs",
                     "--app-outlogs", "--app-errlogs", "--rp-get", "--rp-delete", "--hpo-get", "--hpo-stop",
                     "--hpo-restart", "--hpo-delete", "--hpo-algorithm-get", "--hpo-algorithm-delete"), "w-1"),
    "--logon": "--username alice --password pw", "--exec-start": "PyTorch --model-main main.py",
    "--exec-deploy": "w-1 --kernel k.py", "--app-analyze": "2", "--k8s-obj-get-all": "pod", "--k8s-obj-get": "pod p",
    "--hpo-start": "search.json --model-dir model",
}
#: Command → its sentence about a call that fails; the original client then exits with 0.
SENTENCES = {"--exec-stop": "Stop exec", "--exec-delete": "Delete exec", "--app-stop": "Stop application",
             "--hpo-stop": "Stop hpo", "--hpo-delete": "Delete hpo"}
