"""What a job of a server for a team can see, change and reach: its own files and processes, and nothing else."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import isolation
import psutil
import pytest
from kernels import serve
from runtime_support import Bench, bench, host_bench, runner_of
from support import PATIENCE, eventually

from dlicmd.contract.states import ERROR, FINISHED, KILLED, RUNNING

pytestmark = pytest.mark.integration

#: Reads, writes and reaches what its arguments name, and prints what succeeded.
ATTACK = """
    import ctypes, json, os, signal, sys
    wanted = json.loads(sys.argv[1])
    found = {"read": [], "written": [], "signalled": [], "traced": []}
    for path in wanted["read"]:
        try:
            found["read"] += [path] if (os.listdir(path) if os.path.isdir(path) else open(path, "rb").read()) else []
        except OSError:
            pass
    for path in wanted["write"]:
        try:
            if os.path.isdir(path):
                open(f"{path}/planted", "x").close()
                os.unlink(f"{path}/planted")
            else:
                same = open(path).read()
                open(path, "w").write(same)
            found["written"].append(path)
        except OSError:
            pass
    libc = ctypes.CDLL(None, use_errno=True)
    for pid in wanted["reach"]:
        try:
            os.kill(pid, 0)
            found["signalled"].append(pid)
        except OSError:
            pass
        if libc.ptrace(16, pid, 0, 0) == 0:
            found["traced"].append(pid)
    status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
    found["status"] = {name: status[name] for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb", "NoNewPrivs")}
    found["processes"] = [open(f"/proc/{pid}/cmdline").read() for pid in os.listdir("/proc") if pid.isdigit()]
    found["secret"] = False
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            found["secret"] |= b"SECRET-OF-ANOTHER" in open(f"/proc/{pid}/environ", "rb").read()
        except OSError:
            pass
    print(json.dumps(found))
"""
SLEEP = "import time\nprint('begun', flush=True)\ntime.sleep(600)\n"


@pytest.fixture(scope="module")
def _team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    isolation.needed()
    with bench(tmp_path_factory.mktemp("team") / "home", embedded=False, nursery_idle=600.0, slots=4) as one:
        yield one


@pytest.fixture
def team(_team: Bench) -> Iterator[Bench]:
    """A shared backend of a server for a team, with a nursery."""
    yield _team
    _team.end_all()


def result(one: Bench, job: str, state: str = FINISHED) -> str:
    row = one.wait(job)
    assert row.state == state, (row.message, one.output(job, "stderr"), one.launcher_log(job))
    return one.output(job)


def attack(one: Bench, *, warm: bool, **wanted: list[Any]) -> dict[str, Any]:
    words = (json.dumps({"read": [], "write": [], "reach": []} | wanted),)
    program = textwrap.dedent(ATTACK)
    job = (one.submit(program, arguments=words, creator="eve") if warm else
           one.submit(program, user_cmd=("python", "main.py", *words), creator="eve"))
    return json.loads(result(one, job))


def begun(one: Bench, **more: Any) -> str:
    """Start a job that runs until it is stopped."""
    job = one.submit(SLEEP, **more)
    eventually(lambda: one.output(job) == "begun\n", f"{job} has begun")
    return job


@pytest.mark.parametrize("warm", [True, False], ids=["forked", "executed"])
def test_a_job_reads_nothing_of_the_server_and_of_other_users(team: Bench, warm: bool) -> None:
    paths = team.settings.paths
    secrets = [paths.home / name for name in ("backend.json", "keys/key.pem", "tls/ca.key", "audit.log")]
    for path in secrets:
        path.parent.mkdir(exist_ok=True)
        path.write_text("secret")
    theirs = paths.data_fs / "users" / "bob" / "data.txt"
    theirs.parent.mkdir(parents=True, exist_ok=True)
    theirs.parent.parent.chmod(0o700)
    theirs.write_text("secret")
    job = team.submit("open('result.txt', 'w').write('x')\nprint('SECRET')\n", creator="bob",
                      variables={"TOKEN": "SECRET-OF-ANOTHER"})
    result(team, job)
    bobs = team.paths(job)
    running = begun(team, creator="bob", variables={"TOKEN": "SECRET-OF-ANOTHER"})
    read = [*secrets, paths.vault, paths.database, paths.jobs, paths.users / "bob", paths.result_fs / "bob",
            bobs.root, bobs.spec, bobs.capture("task12n-1", "stdout", False), theirs, "/etc/shadow", "/root/.ssh",
            f"/proc/{os.getpid()}/environ", *(f"/proc/{one.pid}/environ" for one in psutil.Process().children(True))]
    exists = [str(path) for path in read if os.path.exists(path)]
    assert len(exists) > 12
    assert attack(team, warm=warm, read=exists)["read"] == []
    team.stop(running)
    assert team.wait(running).state == KILLED


def test_a_folder_with_a_python_is_no_environment_that_a_job_may_read(team: Bench, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(os.path.realpath(sys.executable))
    (tmp_path / "secret").write_text("SECRET")
    program = f"print(open({str(tmp_path / 'secret')!r}).read())"
    job = team.submit(program, conda_env=str(tmp_path))
    assert "SECRET" not in result(team, job, ERROR)
    (tmp_path / "pyvenv.cfg").write_text("home = /usr/bin\n")
    assert "SECRET" in result(team, team.submit(program, conda_env=str(tmp_path)))
    if os.geteuid() == 0:
        os.chown(tmp_path, 12345, 12345)
        assert "SECRET" not in result(team, team.submit(program, conda_env=str(tmp_path)), ERROR)


@pytest.mark.parametrize("warm", [True, False], ids=["forked", "executed"])
def test_a_job_changes_nothing_of_the_machine(team: Bench, warm: bool) -> None:
    paths = team.settings.paths
    folders = [paths.home, paths.jobs, paths.data_fs, paths.scripts, sys.prefix, os.path.dirname(json.__file__), "/usr",
               "/etc", "/", "/opt", "/proc/sys/kernel/core_pattern", "/proc/sys/vm/swappiness", "/sys/devices"]
    assert attack(team, warm=warm, write=[str(path) for path in folders])["written"] == []


@pytest.mark.parametrize("warm", [True, False], ids=["forked", "executed"])
def test_a_job_reaches_no_other_process_and_has_no_privileges(team: Bench, warm: bool) -> None:
    other = begun(team, creator="bob")
    runner = runner_of(team, other)
    outside = [os.getpid(), runner, *(one.pid for one in psutil.Process(runner).children(True)),
               *(one.pid for one in psutil.Process().children(True))]
    found = attack(team, warm=warm, reach=[pid for pid in outside if pid > 1000])
    assert found["signalled"] == [] and found["traced"] == [] and not found["secret"]
    assert not [line for line in found["processes"] if "nursery" in line or "runner" in line or other in line]
    assert {int(value, 16) for name, value in found["status"].items() if name != "NoNewPrivs"} == {0}
    assert found["status"]["NoNewPrivs"] == "1"
    assert team.row(other).state == RUNNING and psutil.pid_exists(runner)
    team.stop(other)
    assert team.wait(other).state == KILLED


@pytest.mark.parametrize("warm", [True, False], ids=["forked", "executed"])
def test_a_job_changes_no_program_that_runs_in_its_sandbox(team: Bench, warm: bool) -> None:
    """A link to the file of a process leads out of the sandbox, past its read-only folders."""
    program = """
        import os, stat
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                file = f"/proc/{pid}/exe"
                name = os.readlink(file)
                os.chmod(file, stat.S_IMODE(os.stat(file).st_mode))
            except OSError:
                continue
            if os.path.exists(name):
                print(name)
    """
    source = textwrap.dedent(program)
    job = team.submit(source) if warm else team.submit(source, user_cmd=("python", "main.py"))
    assert result(team, job) == ""


def test_a_process_that_enters_the_sandbox_shows_no_open_files_of_its_runner(team: Bench) -> None:
    """A pipe of the user stops the second process in the middle of its start, if something reads the pipe then."""
    program = """
        import os, pathlib, time
        second, found = pathlib.Path(os.environ["RESULT_DIR"], "second"), set()
        if os.environ["TASK_ID"] == "2":
            second.touch()
        while not (found or second.exists()):
            for pid in set(filter(str.isdigit, os.listdir("/proc"))) - {"1", str(os.getpid())}:
                try:
                    files = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
                except OSError:
                    continue
                found |= {name.partition(":")[0] for name in files if name.startswith("socket:") or "/jobs/" in name}
            time.sleep(0.01)
        print(*found)
    """
    result(team, team.submit("", creator="carol"))
    record = team.settings.paths.user_python("carol") / "pyvenv.cfg"
    text = record.read_bytes()
    record.unlink()
    os.mkfifo(record)
    job = team.submit(textwrap.dedent(program), creator="carol", num_worker=2)
    eventually(lambda: written(record, text), "the first process has read the pipe, or the pipe is gone")
    eventually(lambda: team.output(job), "the first process has looked around")
    team.stop(job)
    team.wait(job)
    assert team.output(job) == "\n"


def written(path: Path, text: bytes) -> bool:
    """Write into a pipe that has a reader, or into a file."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return False
    os.write(file, text)
    os.close(file)
    return True


def test_jobs_do_not_inherit_the_keyring_of_the_server(tmp_path: Path) -> None:
    isolation.needed()
    keyctl = {"x86_64": 250, "aarch64": 219}.get(os.uname().machine)
    own = ctypes.CDLL(None).syscall(keyctl, 1, None) if keyctl else -1  # joins a new session keyring
    if own < 0:
        pytest.skip("this system has no keyrings for programs")
    program = f"import ctypes\nprint(ctypes.CDLL(None).syscall({keyctl}, 0, ctypes.c_long(-3), 0))\n"
    with bench(tmp_path / "home", embedded=False) as one:
        found = [int(result(one, one.submit(program, creator=user))) for user in ("eve", "bob")]
    assert len({own, *found}) == 3


def test_a_job_cannot_make_a_namespace_with_privileges(team: Bench) -> None:
    job = team.submit("", user_cmd=("sh", "-c", "unshare --user --map-root-user --mount mount -t tmpfs none /usr"))
    assert team.wait(job).state == ERROR


def test_the_memory_of_a_forked_program_has_no_key_of_the_server(team: Bench) -> None:
    program = """
        import sys
        needle, found = bytes.fromhex(sys.argv[1]), False
        with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", buffering=0) as memory:
            for line in maps:
                span, access = line.split()[:2]
                begin, end = (int(word, 16) for word in span.split("-"))
                if access.startswith("r") and not line.rstrip().endswith(("[vvar]", "[vsyscall]", "[vvar_vclock]")):
                    memory.seek(begin)
                    try:
                        text = memory.read(end - begin)
                    except OSError:
                        continue
                    found |= bytes(byte ^ 1 for byte in needle) in text
        print(found)
    """
    job = team.submit("print(1)", variables={"TOKEN": "sealed"})
    result(team, job)
    key = team.settings.paths.vault.read_bytes().split()[0]
    hidden = bytes(byte ^ 1 for byte in key).hex()
    again = team.submit(textwrap.dedent(program), arguments=(hidden,), variables={"TOKEN": "sealed"})
    assert result(team, again) == "False\n"


def test_a_job_has_its_own_folders_for_temporary_files_and_shared_memory(team: Bench) -> None:
    program = """
        import os, socket, tempfile
        from multiprocessing import shared_memory
        assert tempfile.gettempdir() == os.environ["TMPDIR"]
        for path in ("/tmp/mine", "/var/tmp/mine2", "/dev/shm/mine3"):
            open(path, "w").write("x")
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(f"{tempfile.mkdtemp()}/{'x' * 40}")
        block = shared_memory.SharedMemory(create=True, size=2**20)
        block.buf[:3] = b"abc"
        block.close(); block.unlink()
        print(sorted(os.listdir("/dev/shm")), os.path.isdir(os.environ["HOME"]))
    """
    assert result(team, team.submit(textwrap.dedent(program))) == "['mine3'] True\n"
    assert not os.path.exists("/tmp/mine") and not os.path.exists("/dev/shm/mine3")


def test_loader_processes_use_shared_memory(team: Bench) -> None:
    program = """
        import torch
        from torch.utils.data import DataLoader, TensorDataset
        if __name__ == "__main__":
            loader = DataLoader(TensorDataset(torch.arange(64.0)), batch_size=8, num_workers=2)
            print(sum(batch.sum().item() for batch, in loader))
    """
    assert result(team, team.submit(textwrap.dedent(program))) == "2016.0\n"


def test_packages_that_a_job_installs_are_found_by_the_next_job_of_the_user(team: Bench) -> None:
    setup = "from setuptools import setup\nsetup(name='planted-module', version='1', py_modules=['planted_module'])\n"
    pip = "pip install --user --no-index --no-build-isolation --no-deps -q ./package && pip list --local"
    files = {"package/setup.py": setup, "package/planted_module.py": "VALUE = 42\n"}
    first = team.submit(files, user_cmd=("sh", "-c", pip))
    assert "planted-module" in result(team, first).replace("_", "-")
    assert result(team, team.submit("import planted_module\nprint(planted_module.VALUE)")) == "42\n"
    assert team.wait(team.submit("import planted_module", creator="eve")).state == ERROR


def test_the_data_of_a_job_is_there(team: Bench) -> None:
    paths = team.settings.paths
    (paths.data_fs / "shared").mkdir(parents=True, exist_ok=True)
    (paths.data_fs / "shared" / "x").write_text("shared")
    own = paths.data_fs / "users" / "eve" / "set"
    own.mkdir(parents=True, exist_ok=True)
    own.parent.parent.chmod(0o700)
    (own / "x").write_text("own")
    program = """
        import os
        print(open(os.environ["DATA_DIR"] + "/x").read())
        try:
            open(os.environ["DATA_DIR"] + "/y", "w").write("y")
        except OSError as problem:
            print(problem.strerror)
    """
    shared = team.submit(textwrap.dedent(program), data_dir=str(paths.data_fs / "shared"), creator="eve")
    assert result(team, shared) == "shared\nRead-only file system\n"
    assert result(team, team.submit(textwrap.dedent(program), data_dir=str(own), creator="eve")) == "own\n"
    assert (own / "y").read_text() == "y"


def test_an_isolated_job_finds_volumes_in_mnts(team: Bench, tmp_path: Path) -> None:
    """Contract, 10: 'mounts the named volume at `/mnts/DeepLIIFData`'. Programs of WMLA contain this path."""
    (tmp_path / "x").write_text("scan")
    team.settings.volumes.mkdir(exist_ok=True)
    (team.settings.volumes / "DeepLIIFData").symlink_to(tmp_path)
    program = "print(open('/mnts/DeepLIIFData/x').read()); open('/mnts/DeepLIIFData/y', 'w').write('y')"
    assert result(team, team.submit(program)) == "scan\n" and (tmp_path / "y").read_text() == "y"


def test_a_stopped_job_leaves_no_process(team: Bench) -> None:
    program = """
        import os, subprocess, time
        for _ in range(2):
            subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 600 & sleep 600"], start_new_session=True)
        print("begun", flush=True)
        time.sleep(600)
    """
    job = team.submit(textwrap.dedent(program))
    eventually(lambda: team.output(job) == "begun\n", "the job has begun")
    family = psutil.Process(runner_of(team, job)).children(recursive=True)
    assert len(family) >= 7, "with the processes that hold the sandbox"
    team.stop(job)
    assert team.wait(job).state == KILLED
    assert psutil.wait_procs(family, PATIENCE)[1] == [] and team.leftovers(job) == []


def test_a_job_that_kills_all_processes_that_it_sees_ends(team: Bench) -> None:
    job = team.submit("import os\nos.kill(-1, 9)\nimport time\ntime.sleep(600)\n")
    assert team.wait(job).state == ERROR
    assert result(team, team.submit("print('next')")) == "next\n"


def test_nothing_of_a_job_survives_the_death_of_its_runner(team: Bench) -> None:
    job = begun(team)
    runner = psutil.Process(runner_of(team, job))
    family = runner.children(recursive=True)
    runner.kill()
    assert team.wait(job).state == ERROR
    assert psutil.wait_procs(family, PATIENCE)[1] == []


def test_a_starting_server_adopts_an_isolated_job(tmp_path: Path) -> None:
    isolation.needed()
    with host_bench(tmp_path / "home", embedded=False) as (host, one):
        waiting = "while not os.path.exists('go'): time.sleep(0.01)\n"
        job = one.submit(f"import os, time\nprint('begun', flush=True)\n{waiting}")
        eventually(lambda: one.output(job) == "begun\n", "the job has begun")
        host.restart()
        eventually(lambda: "adopted by server" in one.launcher_log(job), "the server adopts the job")
        (one.paths(job).code(one.row(job).workload) / "go").touch()
        assert result(one, job) == "begun\n"


def test_jobs_are_killed_before_their_runner_and_the_server(team: Bench) -> None:
    job = begun(team)
    runner = runner_of(team, job)
    [task] = [int(line.split("pid ")[1].split(":")[0]) for line in team.launcher_log(job).splitlines()
              if "task12n-1 started" in line]
    scores = [int(Path(f"/proc/{pid}/oom_score_adj").read_text()) for pid in (os.getpid(), runner, task)]
    assert os.getpriority(os.PRIO_PROCESS, task) == os.getpriority(os.PRIO_PROCESS, runner) + 5
    assert scores[0] < scores[1] < scores[2]
    os.kill(runner, signal.SIGTERM)
    assert team.wait(job).state == KILLED


@pytest.mark.parametrize("command", [("main.py",), None], ids=["command", "forked"])
def test_a_kernel_reaches_the_gateway_again_and_sees_nothing_else_of_it(team: Bench, command: tuple[str, ...]) -> None:
    sockets = team.settings.paths.gateway
    kernels = sockets / "kernels"
    kernels.mkdir(parents=True, exist_ok=True)
    (sockets / "control.sock").touch()
    program = textwrap.dedent("""
        import os, socket, time
        path = os.environ["DLI_KERNEL_SOCKET"]
        os.write(int(os.environ["DLI_READY_FD"]), b"x")
        while True:
            try:
                with socket.socket(socket.AF_UNIX) as link:
                    link.connect(path)
                    link.sendall(repr(os.listdir(os.path.dirname(os.path.dirname(path)))).encode())
                    link.recv(1)
            except OSError:
                time.sleep(0.05)
    """)
    values = {"socket": str(kernels / "kernels.sock"), "command": command,
              "description": {"name": "digits", "kernel_path": "main.py"}}
    job = serve(team, files={"main.py": program}, values=values, creator="eve")
    for _ in range(2):  # a gateway that starts again makes another socket
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(kernels / "kernels.sock"))
            listening.listen()
            listening.settimeout(PATIENCE)
            link, _ = listening.accept()
            with link:
                assert link.recv(1000) == b"['kernels']"
            (kernels / "kernels.sock").unlink()
    team.stop(job)
    assert team.wait(job).state == KILLED
