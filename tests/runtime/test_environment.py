"""The environment of a process, computed by a pure function."""

from __future__ import annotations

import getpass
import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from workloads import workload

from local_backend.runtime.data_list import is_own
from local_backend.runtime.environment import TaskId, acts_at_start, inherited, needs_own_interpreter, of_task
from local_backend.runtime.launch import Launch
from local_backend.runtime.paths import DRIVER, ExecPaths, HomePaths, pod_name, worker_number, worker_task
from local_backend.runtime.tasks import resolve
from local_backend.scheduler.model import CPU, GPU, Slot
from local_backend.workload import Data, DataSource

NAMES = ["DLI_DATA_DIRS", "DLI_DATA_SOURCES_FILE"]
HOME = HomePaths(Path("/h"), Path("/h/data"), Path("/h/results"))
ROOT = "/h/results/ada/batchworkdir/local-7"


def launch(slots: tuple[Slot, ...] = (Slot("cpu-0", CPU),), environment: dict[str, str] | None = None,
           **spec: Any) -> Launch:
    values = {"id": "local-7", "model_dir": "digits", "main": "train.py", "data_dir": "/h/data/mnist",
              "datastore_meta": "type=fs,data_path=mnist"}
    return Launch(workload(**values | spec), 1, HOME, slots, 4, environment or {"PATH": "/bin", "LANG": "C"}, 1.0)


def env_of(one: Launch, task: TaskId | None = None) -> dict[str, str]:
    task = task or TaskId("task12n-1", 1, one.slots)
    return of_task(one, task, master_port=4711, cores=8, temporary=Path("/tmp/dli-1"))


def test_a_program_gets_the_variables_of_the_contract() -> None:
    env = env_of(launch())
    expected = {
        "DATA_DIR": "/h/data/mnist", "DATA_PATH": "mnist", "RESULT_DIR": ROOT, "SAVED_MODEL_DIR": f"{ROOT}/model",
        "CHECKPOINT_DIR": f"{ROOT}/checkpoint", "DLI_EXECID": "local-7", "APP_ID": "local-7", "JOB_ID": "local-7",
        "DLI_DATA_FS": "/h/data", "DLI_RESULT_FS": "/h/results", "DLI_WORK_DIR": f"{ROOT}/_submitted_code/digits",
        "MODEL_FILE_LOCATION": f"{ROOT}/_submitted_code", "FABRIC_HOME": "/h/fabric", "FRAME_WORK": "PyTorch",
        "DLI_IS_ELASTIC": "false", "DLI_CS_DATASTORE_META": "type=fs,data_path=mnist", "DLI_SUBMIT_USERNAME": "ada",
        "CUDA_VISIBLE_DEVICES": "", "PYTHONUNBUFFERED": "x", "TASK_ID": "1", "DLI_TASK_ID": "0", "IS_TASK0": "",
        "PYTHONUSERBASE": "/h/users/ada/python", "TASK12N_DEVICE_TYPE": "cpu", "EMETRICS_STREAMING": "ON", "LANG": "C",
        "OMP_NUM_THREADS": "2", "SPACE_ID": "", "DLI_CONDA_ENV_NAME": "dlipy3",
    }
    assert env["JOB_UUID"] == env["MSD_MK_ID"] != env_of(launch(id="local-8"))["JOB_UUID"]
    assert expected.items() <= env.items()
    assert env["LOG_DIR"] == f"{ROOT}/log/app.{env['MSD_POD_NAME']}"
    assert env["MSD_POD_NAME"].startswith("local-7-task12n-")
    assert env["PYTHONPATH"].split(os.pathsep)[:1] == [f"{ROOT}/_submitted_code/digits"]
    assert "/h/fabric/libs/fabric.zip" in env["PYTHONPATH"].split(os.pathsep)
    assert not {"RANK", "WORLD_SIZE", "TF_CONFIG", "DLI_IS_DRIVER"} & set(env)


@pytest.mark.parametrize(("data_dir", "data_path"), [
    ("/h/data/a/b", "a/b"), ("/h/data", ""), ("", ""), ("/elsewhere", "/elsewhere"), ("/h/database", "/h/database"),
])
def test_data_path_is_relative_to_the_data_directory(data_dir: str, data_path: str) -> None:
    env = env_of(launch(data_dir=data_dir))
    assert env["DATA_PATH"] == data_path
    assert not data_dir or os.path.normpath(os.path.join(env["DLI_DATA_FS"], data_path)) == env["DATA_DIR"]


def test_a_list_of_data_folders_that_is_too_long_is_left_out() -> None:
    def told(count: int) -> dict[str, str]:
        sources = [DataSource(str(number), "fs", "mount", f"/h/data/{number:04d}{'x' * 90}") for number in range(count)]
        return env_of(launch(sources=tuple(sources), environment=inherited(dict.fromkeys(NAMES, "of another job"))))

    assert told(2)["DLI_DATA_DIRS"].count(":") == 1
    many = told(2000)
    assert "DLI_DATA_DIRS" not in many and many["DLI_DATA_SOURCES_FILE"] == "/h/jobs/local-7/data/sources.json"
    assert max(len(f"{name}={value}") for name, value in many.items()) < 128 << 10
    assert not set(NAMES[1:]) & set(env_of(launch(environment=inherited(dict.fromkeys(NAMES, "of another job")))))


def test_distributed_workers_get_their_rank() -> None:
    one = launch((Slot("cpu-0", CPU), Slot("cpu-1", CPU)), framework="distPyTorch", num_worker=2)
    env = env_of(one, TaskId("task12n-2", 2, one.slots[1:]))
    expected = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "4711", "WORLD_SIZE": "2", "RANK": "1", "NODE_RANK": "1",
                "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
                "WMLA_NWORKER": "2", "WMLA_WORKER_NDEVICE": "1", "TASK_ID": "2", "DLI_TASK_ID": "1"}
    assert expected.items() <= env.items()
    assert env["GLOO_SOCKET_IFNAME"].startswith("lo")


def test_a_worker_with_several_gpus_numbers_its_processes_itself() -> None:
    slots = tuple(Slot(f"gpu-{i}", GPU, f"GPU-{i}") for i in range(4))
    one = launch(slots, framework="distPyTorch", num_worker=2, device_num=2)
    assert not {"LOCAL_RANK", "LOCAL_WORLD_SIZE"} & set(env_of(one, TaskId("task12n-2", 2, slots[2:])))
    assert env_of(one, TaskId("task12n-2", 2, slots[3:]))["LOCAL_RANK"] == "0"


def test_the_driver_sees_no_gpu_and_each_worker_only_its_own() -> None:
    slots = (Slot("gpu-0", GPU, "GPU-aa"), Slot("gpu-1", GPU, "GPU-bb"))
    one = launch(slots, elastic=True, framework="edtPyTorch", num_worker=2)
    driver = env_of(one, TaskId(DRIVER, 0))
    assert (driver["CUDA_VISIBLE_DEVICES"], driver["DLI_IS_DRIVER"], driver["IS_TASK0"]) == ("", "true", "true")
    assert (driver["FABRIC_BACKEND"], driver["RESUME_WEIGHT_PATH"]) == ("pytorch", "null")
    worker = env_of(one, TaskId("task12n-2", 2, slots[1:]))
    assert (worker["CUDA_VISIBLE_DEVICES"], worker["TASK12N_DEVICE_TYPE"]) == ("GPU-bb", "ngpus")
    assert "DLI_IS_DRIVER" not in worker
    assert "RANK" not in worker


def test_variables_of_the_submitter_win_but_the_code_stays_importable() -> None:
    env = env_of(launch(variables={"DATA_DIR": "/mine", "A B": "ü=1", "PYTHONPATH": "/my/libs"}))
    assert (env["DATA_DIR"], env["A B"]) == ("/mine", "ü=1")
    assert env["PYTHONPATH"].split(os.pathsep)[:2] == [f"{ROOT}/_submitted_code/digits", "/my/libs"]
    assert "/h/fabric/libs/fabric.zip" in env["PYTHONPATH"]


def test_secrets_of_the_server_are_not_inherited() -> None:
    secrets = {"DLI_PASSWORD": "p", "DLICMD_TOKEN": "t", "DLICMD_PASSWORD": "q"}
    account = {"USER": "ada", "LOGNAME": "ada", "LANG": "C"}
    assert inherited(secrets | account) == account


def test_variables_that_a_service_lacks_are_added() -> None:
    found = inherited({})
    assert found == {"USER": getpass.getuser(), "LOGNAME": found["USER"], "LANG": found["LANG"]}
    assert found["LANG"].endswith(".UTF-8")
    assert inherited({"USER": "", "LOGNAME": "ada", "LANG": ""}) == {"USER": "ada", "LOGNAME": "ada",
                                                                     "LANG": found["LANG"]}


def test_a_home_that_cannot_be_used_is_replaced(tmp_path: Path) -> None:
    for home in ("", "here", str(tmp_path / "missing")):
        env = env_of(launch(environment=inherited({"HOME": home})))
        assert env["HOME"] == "/h/users/ada/home"
    assert env_of(launch(environment=inherited({"HOME": str(tmp_path)})))["HOME"] == str(tmp_path)
    of_another = inherited({"HOME": str(tmp_path)}, of_server=False)
    assert env_of(launch(environment=of_another))["HOME"] == "/h/users/ada/home", "pip reads its settings there"


def test_nothing_of_the_servers_folder_and_python_environment_leaks() -> None:
    of_server = dict.fromkeys(["PWD", "OLDPWD", "VIRTUAL_ENV", "PIP_TARGET", "PIP_PREFIX", "TMPDIR"], "/of/the/server")
    env = env_of(launch(environment=inherited(of_server)))
    assert (env["PWD"], env["TMPDIR"]) == (f"{ROOT}/_submitted_code/digits", "/tmp/dli-1")
    assert "/of/the/server" not in env.values()
    assert env_of(launch(variables={"PWD": "/elsewhere", "TMPDIR": "/mine"}))["TMPDIR"] == "/mine"
    assert env_of(launch(variables={"PWD": "/elsewhere"}))["PWD"] == f"{ROOT}/_submitted_code/digits"


def test_a_conda_environment_comes_first_in_path() -> None:
    env = env_of(launch(conda_env="/opt/envs/mine"))
    assert env["PATH"] == "/opt/envs/mine/bin:/bin"
    assert env["PYTHONUSERBASE"] != env_of(launch())["PYTHONUSERBASE"] == env_of(launch())["VIRTUAL_ENV"]
    assert "VIRTUAL_ENV" not in env
    assert env["CONDA_PREFIX"] == "/opt/envs/mine"


@pytest.mark.parametrize(
    ("change", "cold"),
    [({}, False), ({"variables": {"EPOCHS": "3"}}, False), ({"variables": {"OMP_NUM_THREADS": "1"}}, True),
     ({"variables": {"PYTHONHASHSEED": "0"}}, True), ({"variables": {"LD_PRELOAD": "x.so"}}, True),
     ({"conda_env": "/opt/envs/mine"}, True), ({"user_cmd": ("ls",)}, True)],
)
def test_some_jobs_need_their_own_interpreter(change: dict[str, Any], cold: bool) -> None:
    assert needs_own_interpreter(launch(**change).spec) is cold
    assert acts_at_start(["MALLOC_ARENA_MAX"])


@pytest.mark.parametrize("inherited_value", [None, "7"])
def test_all_processes_of_a_job_have_the_same_hash_seed(inherited_value: str | None) -> None:
    one = launch(environment={} if inherited_value is None else {"PYTHONHASHSEED": inherited_value})
    tasks = [TaskId(DRIVER, 0), TaskId("task12n-1", 1, one.slots), TaskId("task12n-2", 2, one.slots)]
    assert {env_of(one, task)["PYTHONHASHSEED"] for task in tasks} == {"0"}
    assert env_of(launch(user_cmd=("python", "x.py")))["PYTHONHASHSEED"] == "0"
    assert env_of(launch(variables={"PYTHONHASHSEED": "3"}))["PYTHONHASHSEED"] == "3"
    random = launch(variables={"PYTHONHASHSEED": "random"})
    seeds = {env_of(random, task)["PYTHONHASHSEED"] for task in tasks}
    assert len(seeds) == 1 and seeds.pop().isdecimal()


def test_worker_logs_never_share_a_folder() -> None:
    paths = HOME.job("local-7", "ada")
    names = {pod_name("local-7", task) for task in ("task0", *map(worker_task, range(1, 5001)))}
    assert len(names) == 5001
    assert all(re.fullmatch("local-7-task(0|12n)-[0-9a-z]{5}", name) for name in names)
    assert paths.log_dir("task12n-3").name == f"app.{pod_name('local-7', 'task12n-3')}"
    assert [worker_number(name) for name in ("task12n-31", "task12n-0", "task12n-x", "task0", "")] == [31, *[None] * 4]


@pytest.mark.parametrize(("name", "folder"), [
    ("mnist", "1-mnist"), ("a-b_c.d", "1-a-b_c.d"), ("日本 データ", "1-日本-データ"), ("नेपाली", "1-नेपाली"),
    ("../x", "1-..-x"), ("a:/b", "1-a-b"), ("!", "1-data"), ("本" * 100, "1-" + "本" * 66), ("\x1b\ud800", "1-data"),
])
def test_a_data_folder_has_a_safe_form_of_the_name_of_its_source(name: str, folder: str) -> None:
    assert ExecPaths(Path("/s"), Path("/r"), "e").data_folder(1, name).name == folder


def test_a_data_folder_has_a_name_in_the_filesystem_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: "iso8859-1")
    assert ExecPaths(Path("/s"), Path("/r"), "e").data_folder(1, "Übung 日本 1").name == "1-Übung-1"


def test_torch_load_reads_pickled_objects_unless_server_or_job_forbid_it() -> None:
    name = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"
    assert env_of(launch())[name] == "1"
    assert env_of(launch(environment={name: "0"}))[name] == env_of(launch(variables={name: "0"}))[name] == "0"
    other = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    for one in (launch(variables={other: "1"}), launch(environment={other: "1"})):
        assert name not in env_of(one)


def test_torch_load_reads_tensors_alone_from_data_of_others() -> None:
    name = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"
    assert name not in env_of(replace(launch(), whole_objects=False))
    assert env_of(replace(launch(variables={name: "1"}), whole_objects=False))[name] == "1"
    assert env_of(replace(launch(environment={name: "1"}), whole_objects=False))[name] == "1"


def mount(path: object) -> DataSource:
    return DataSource("m", "fs", "mount", str(path))


def fetched(**connection: str) -> DataSource:
    return DataSource("f", "connection_asset", "download", kind="s3", connection=connection)


@pytest.mark.parametrize(("data", "own"), [
    (Data(), True),
    (Data(data_dir="DATA"), False),
    (Data(data_dir="DATA/mnist"), False),
    (Data(data_dir="DATA/users/ada/mnist"), True),
    (Data(data_dir="DATA/users/adam/mnist"), False),
    (Data(data_dir="DATA/users/ada/shared"), False),
    (Data((mount("DATA/users/ada/mnist"),)), True),
    (Data((mount("DATA/users/ada/mnist"), mount("VOLUMES/lake"))), False),
    (Data((fetched(name="ada/box"), fetched(type="s3", bucket="b"))), True),
    (Data((fetched(name="bob/box"),)), False),
    (Data((fetched(id="9"),)), False),
    (Data((fetched(name="ada"),)), False),
])
def test_data_is_the_submitters_own_in_the_own_folder_and_through_the_own_connection(
    tmp_path: Path, data: Data, own: bool
) -> None:
    data_fs = tmp_path / "data"
    (data_fs / "users" / "ada" / "mnist").mkdir(parents=True)
    (data_fs / "users" / "ada" / "shared").symlink_to(data_fs)

    def placed(path: str) -> str:
        return path.replace("DATA", str(data_fs)).replace("VOLUMES", str(tmp_path / "volumes"))

    data = replace(data, data_dir=placed(data.data_dir),
                   sources=tuple(replace(source, path=placed(source.path)) for source in data.sources))
    assert is_own(replace(launch().spec, creator="ada", data=data), data_fs) == own


def test_the_thread_count_of_the_server_is_inherited() -> None:
    assert env_of(launch(environment={"OMP_NUM_THREADS": "3"}))["OMP_NUM_THREADS"] == "3"


def test_a_command_that_names_a_file_of_the_code_runs_that_file(tmp_path: Path) -> None:
    (tmp_path / "go.sh").write_text("#!/bin/sh\necho hi\n")
    (tmp_path / "train.py").write_text("print(1)\n")
    (tmp_path / "folder").mkdir()
    assert resolve(["go.sh", "a b"], tmp_path, "python", tmp_path) == (str(tmp_path / "go.sh"), "a b")
    assert os.access(tmp_path / "go.sh", os.X_OK)
    assert resolve(["train.py", "1"], tmp_path, "python", tmp_path) == ("python", str(tmp_path / "train.py"), "1")
    assert resolve(["bash", "go.sh"], tmp_path, "python", tmp_path) == ("bash", "go.sh")
    assert resolve(["folder"], tmp_path, "python", tmp_path) == ("folder",)


@pytest.mark.parametrize(("line", "expected"), [
    ("python train.py --name 'a b'", ("python", "train.py", "--name", "a b")),
    ("train.py --epochs 3", ("PY", "{code}/train.py", "--epochs", "3")),
    ("a b.py", ("PY", "{code}/a b.py")),
    ("it's", ("it's",)),
    ("cd sub && ls", ("/bin/sh", "-c", "cd sub && ls")),
    ("LR=0.1 python train.py", ("/bin/sh", "-c", "LR=0.1 python train.py")),
    ("ls $DATA_DIR/x", ("/bin/sh", "-c", "ls $DATA_DIR/x")),
    ("", ("",)),
])
def test_a_command_line_in_one_argument_is_split(tmp_path: Path, line: str, expected: tuple[str, ...]) -> None:
    for name in ("train.py", "a b.py"):
        (tmp_path / name).write_text("print(1)\n")
    assert resolve([line], tmp_path, "PY", tmp_path) == tuple(word.format(code=tmp_path) for word in expected)


def test_a_launch_is_read_as_it_was_written(tmp_path: Path) -> None:
    home = HomePaths(tmp_path, tmp_path / "d", tmp_path / "r")
    one = replace(launch((Slot("gpu-0", GPU, "GPU-aa"),), user_cmd=("a b", "'c'")), home=home)
    one.paths.state.mkdir(parents=True)
    one.write()
    assert Launch.read(one.paths.spec) == one
    assert one.paths.spec.stat().st_mode & 0o777 == 0o600


def test_a_command_in_a_replaced_folder_changes_no_file_outside_of_the_results(tmp_path: Path) -> None:
    root, other = tmp_path / "results", tmp_path / "other"
    for folder in (root, other):
        folder.mkdir()
    (other / "go.sh").write_text("#!/bin/sh\n", encoding="utf-8")
    (other / "go.sh").chmod(0o600)
    (root / "code").symlink_to(other)
    assert resolve(["go.sh"], root / "code", "python", root) == ("go.sh",)
    assert (other / "go.sh").stat().st_mode & 0o777 == 0o600
