"""Packages that users install in their jobs: seen by their own programs, never by the server or by other users."""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from runtime_support import USER, Bench, bench
from support import eventually

from dlicmd.contract.states import ERROR, FINISHED
from local_backend.elastic.errors import EngineError
from local_backend.elastic.script import captured
from local_backend.runtime.launch import read_identity
from local_backend.runtime.user_python import UserPython, write_scripts

VERSION = "99.0"
#: Shows the version that a new process finds.
ASK = "import importlib.metadata as m, sys; print(*(m.version(name) for name in sys.argv[1:]))\n"


def wheel(folder: Path, name: str, version: str = VERSION) -> None:
    """Write a wheel with the module `name` and a command of the same name into a folder."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}/__init__.py": f"__version__ = {version!r}\ndef main():\n    print('command of', __file__)\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[console_scripts]\n{name}-command = {name}:main\n",
    }
    record = "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD"))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(path, text)
    (folder / f"{name}-{version}-py3-none-any.whl").write_bytes(buffer.getvalue())


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """A folder with wheels: another torch and numpy than the server's, and packages that the server does not have."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name in ("torch", "numpy", "one", "two", "three", "four"):
        wheel(folder, name)
    return folder


def offline(wheels: Path) -> dict[str, str]:
    """Return variables that make pip read the wheels only, and no settings of this machine."""
    return {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_NO_DEPS": "1",
            "PIP_NO_CACHE_DIR": "1"}


def digest_of_server() -> str:
    """Return a digest of the packages and commands of this Python: names, and sizes and times of all metadata."""
    found = hashlib.sha256()
    folders = [Path(entry) for entry in sys.path if entry.endswith("-packages")] + [Path(sys.executable).parent]
    assert len(folders) > 1
    for folder in folders:
        for path in sorted(folder.iterdir()):
            for one in sorted(path.iterdir()) if path.name.endswith(".dist-info") else [path]:
                about = one.lstat()
                times = "" if one.is_dir() else f"{about.st_size} {about.st_mtime_ns}"
                found.update(f"{one} {times}\n".encode())
    return found.hexdigest()


def run(backend: Bench, wheels: Path, *lines: str, creator: str = USER, state: str = FINISHED) -> str:
    """Run a job with these lines of a shell, and return its output."""
    job = backend.submit({"ask.py": ASK}, user_cmd=("sh", "-ec", "\n".join(lines)), variables=offline(wheels),
                         creator=creator)
    assert backend.wait(job).state == state, backend.output(job, "stderr") + backend.output(job)
    return backend.output(job)


def installed(backend: Bench, user: str, wheels: Path, *names: str) -> UserPython:
    """Install wheels for a user as pip does, and return the user's environment."""
    python = UserPython(backend.settings.paths.user_python(user))
    python.make()
    for name in names:
        with zipfile.ZipFile(next(wheels.glob(f"{name}-*"))) as archive:
            archive.extractall(python.packages)
    return python


def test_packages_of_one_user_change_neither_the_server_nor_other_users(backend: Bench, wheels: Path) -> None:
    before = digest_of_server()
    of_server = f"{metadata.version('torch')} {metadata.version('numpy')}"
    assert VERSION not in of_server

    out = run(backend, wheels, "python ask.py torch numpy", "pip install -q --upgrade torch numpy",
              "python ask.py torch numpy")
    assert out.splitlines() == [of_server, f"{VERSION} {VERSION}"]
    assert run(backend, wheels, "python ask.py torch numpy").split() == [VERSION, VERSION]
    out = run(backend, wheels, "pip uninstall -q -y torch numpy", "python ask.py torch numpy", creator="bob")
    assert out.splitlines()[-1] == of_server
    assert digest_of_server() == before


@pytest.mark.integration
def test_all_ways_to_install_a_package_work(backend: Bench, wheels: Path) -> None:
    (wheels / "requirements.txt").write_text("three\n")
    install = "import subprocess, sys; subprocess.check_call([sys.executable, '-m', 'pip', 'install', '-q', 'four'])"
    out = run(
        backend, wheels, "pip install -q one", "python3 -m pip install -q --user two",
        f"pip3 install -q -r {wheels}/requirements.txt", f'python -c "{install}"', "python ask.py one two three four",
        "one-command", "two-command", "pip install -q --user --force-reinstall one", "pip uninstall -q -y four",
        "pip freeze --local",
    )
    folder = UserPython(backend.settings.paths.user_python(USER)).packages
    first, command, other, *rest = out.splitlines()
    assert first.split() == [VERSION] * 4
    assert (command, other) == tuple(f"command of {folder}/{name}/__init__.py" for name in ("one", "two"))
    assert {line.partition(" ")[0].partition("=")[0] for line in rest} == {"one", "two", "three"}


@pytest.mark.integration
def test_an_installing_pip_waits_for_another_one(backend: Bench, wheels: Path) -> None:
    run(backend, wheels, "true")
    prefix = backend.settings.paths.user_python(USER)
    with (prefix / ".pip.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        job = backend.submit({"ask.py": ASK}, user_cmd=("sh", "-ec", "pip install -q one; python ask.py one"),
                             variables=offline(wheels))
        eventually(lambda: "waiting" in backend.output(job, "stderr"), "pip waits")
        assert not (UserPython(prefix).packages / "one").exists()
    assert backend.wait(job).state == FINISHED, backend.output(job, "stderr")
    assert backend.output(job).split() == [VERSION]


def test_the_nursery_starts_no_program_whose_user_has_other_versions(warm: Bench, wheels: Path) -> None:
    eventually(lambda: warm.supervisor.status()["nursery"]["state"] == "ready", "the nursery is ready")  # type: ignore[attr-defined]
    python = installed(warm, "carol", wheels, "numpy")
    job = warm.submit("import numpy, sys\nprint(numpy.__version__, sys.executable)\n", creator="carol")
    assert warm.wait(job).state == FINISHED, warm.output(job, "stderr")
    assert warm.output(job).split() == [VERSION, str(python.executable)]


def test_a_forked_program_sees_packages_that_the_nursery_has_not_loaded(warm: Bench, wheels: Path) -> None:
    eventually(lambda: warm.supervisor.status()["nursery"]["state"] == "ready", "the nursery is ready")  # type: ignore[attr-defined]
    python = installed(warm, "dave", wheels, "one")
    job = warm.submit("import one, sys, torch\nprint(one.__version__, torch.ones(1).item(), sys.executable)\n",
                      creator="dave")
    assert warm.wait(job).state == FINISHED, warm.output(job, "stderr")
    assert warm.output(job).split() == [VERSION, "1.0", str(python.executable)]
    assert str(python.executable) not in warm.launcher_log(job)


def test_a_worker_with_other_versions_than_the_script_is_refused() -> None:
    script = captured.capture()
    with pytest.raises(EngineError, match="numpy"):
        captured.apply(script | {"versions": script["versions"] | {"numpy": VERSION}})


TRAINING = """
import one, os, sys, torch
from fabric_model import FabricModel
from torch.utils.data import Dataset


class Data(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, number):
        assert one.__version__ == "99.0" and sys.prefix == os.environ["PYTHONUSERBASE"]
        return torch.tensor([float(number)]), torch.tensor([2.0 * number])


if "change" in sys.argv:
    with open(os.path.join(os.path.dirname(os.path.dirname(one.__file__)), "zzzz.pth"), "w") as file:
        file.write("import numpy; numpy.__version__ = '99.0'")
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.001)
FabricModel(model, lambda: (Data(), Data()), torch.nn.functional.mse_loss, optimizer).train(1, 4, 2)
"""


@pytest.mark.integration
@pytest.mark.parametrize(("argument", "state"), [("stay", FINISHED), ("change", ERROR)])
def test_an_elastic_training_uses_the_packages_of_its_user(
    warm: Bench, wheels: Path, argument: str, state: str,
) -> None:
    python = installed(warm, argument, wheels, "one")
    (python.packages / "mine.pth").touch()  # no process is forked from the nursery
    job = warm.submit(TRAINING, framework="edtPyTorch", elastic=True, num_worker=1, arguments=(argument,),
                      creator=argument)
    row = warm.wait(job)
    error = warm.output(job, "stderr", "task0")
    assert row.state == state, error
    assert ("numpy 99.0" in error) is (state == ERROR)
    assert "task12n-1 started, pid" in warm.launcher_log(job) and str(python.executable) in warm.launcher_log(job)


def test_another_python_finds_only_the_packages_of_the_user(tmp_path: Path) -> None:
    """A conda environment or the system's Python, called from a job, does not get the packages of the server."""
    python = UserPython(tmp_path / "python")
    python.make()
    other = str(python.executable.readlink())

    def path_of(base: Path) -> set[str]:
        done = subprocess.run([other, "-c", "import sys; print(*sys.path, sep='\\n')"], capture_output=True, text=True,
                              check=True, env={"PYTHONUSERBASE": str(base)})
        return set(done.stdout.splitlines())

    assert path_of(python.prefix) - path_of(tmp_path / "none") == {str(python.packages)}


def test_a_server_in_the_environment_of_a_user_lays_others_over_it(tmp_path: Path) -> None:
    below, above = UserPython(tmp_path / "below"), UserPython(tmp_path / "above")
    below.make()
    (below.packages / "lower.py").touch()
    make = (f"from pathlib import Path; from local_backend.runtime.user_python import UserPython; "
            f"UserPython(Path({str(above.prefix)!r})).make()")
    subprocess.run([below.executable, "-c", make], cwd=tmp_path, check=True)
    show = "import lower, local_backend, numpy, sys; print(sys.prefix)"
    done = subprocess.run([above.executable, "-c", show], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == str(above.prefix), done.stderr


def test_commands_of_the_servers_python_run_with_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server, scripts, prefix = tmp_path / "server" / "bin", tmp_path / "scripts", tmp_path / "python"
    server.mkdir(parents=True)
    (server / "python").symlink_to(sys.executable)
    heads = {"tool": f"#!{server}/python\n", "long": f"#!/bin/sh\n'''exec' \"{server}/python3\" \"$0\" \"$@\"\n' '''\n"}
    for name, head in {**heads, "shell": "#!/bin/sh\n", "other": "#!/usr/bin/perl\n"}.items():
        (server / name).write_text(f"{head}import sys; print(sys.prefix, sys.argv[1:])\n")
    UserPython(prefix).make()
    monkeypatch.setattr(sys, "executable", str(server / "python"))
    write_scripts(scripts)
    assert {"tool", "long", "pip"} <= set(os.listdir(scripts)) and not {"shell", "other"} & set(os.listdir(scripts))
    for name in heads:
        done = subprocess.run([scripts / name, "a b"], env={"PYTHONUSERBASE": str(prefix), "PATH": os.environ["PATH"]},
                              capture_output=True, text=True, check=True)
        assert done.stdout == f"{prefix} ['a b']\n"


@pytest.mark.parametrize("kind", ["file", "link to nothing", "link to a folder", "lib"])
def test_an_environment_that_a_program_has_replaced_is_created_anew(tmp_path: Path, kind: str) -> None:
    python, elsewhere = UserPython(tmp_path / "python"), tmp_path / "elsewhere"
    elsewhere.mkdir()
    if kind == "file":
        python.prefix.write_text("x")
    elif kind == "lib":
        python.prefix.mkdir()
        (python.prefix / "lib").write_text("x")
    else:
        python.prefix.symlink_to(elsewhere if kind.endswith("folder") else tmp_path / "missing")
    python.make()
    assert python.packages.is_dir() and not python.prefix.is_symlink() and list(elsewhere.iterdir()) == []


def test_pip_does_not_find_the_servers_python_after_a_program_removed_its_own(backend: Bench, wheels: Path) -> None:
    before = digest_of_server()
    out = run(backend, wheels, 'rm -r "$PYTHONUSERBASE"', "python -m pip install -q one || echo failed",
              "python3 -m pip install -q one || echo failed", "pip install -q one || echo failed")
    assert out.split() == ["failed"] * 3 and digest_of_server() == before
    assert run(backend, wheels, "pip install -q one", "python ask.py one").split() == [VERSION]


def test_an_environment_follows_the_python_of_the_server(tmp_path: Path) -> None:
    python = UserPython(tmp_path / "python")
    python.make()
    wanted = python.executable.readlink()
    mine = python.packages / "mine.py"
    mine.write_text("")
    python.executable.unlink()
    python.executable.symlink_to("/no/such/python")
    (python.prefix / "pyvenv.cfg").write_text("home = /no/such\n")
    python.make()
    assert python.executable.readlink() == wanted and mine.exists()
    done = subprocess.run([python.executable, "-c", "import mine, sys; print(sys.prefix)"], capture_output=True,
                          text=True, check=True)
    assert done.stdout.strip() == str(python.prefix)
    assert python.prefix.stat().st_mode & 0o077 == 0


@pytest.fixture
def holding(tmp_path: Path) -> Iterator[tuple[Bench, str, Path]]:
    """A backend, a job that runs, and its TMPDIR, which contains a file and a socket."""
    with bench(tmp_path / ("long" * 20)) as backend:
        job = backend.submit("""if 1:
            import os, socket, tempfile, time
            folder = tempfile.gettempdir()
            assert folder == os.environ["TMPDIR"] and os.stat(folder).st_mode & 0o777 == 0o700
            with open(os.path.join(tempfile.mkdtemp(), "file"), "w") as file:
                file.write("x" * 100_000)
            socket.socket(socket.AF_UNIX).bind(os.path.join(folder, "s" * 30))
            with open("new", "w") as file:
                file.write(folder)
            os.rename("new", "folder")
            while not os.path.exists("end"):
                time.sleep(0.02)
        """)
        yield backend, job, Path(backend.wait_for_file(job, "folder"))


def test_temporary_files_are_removed_with_the_job(holding: tuple[Bench, str, Path]) -> None:
    backend, job, folder = holding
    assert folder.is_dir()
    (backend.paths(job).code(backend.row(job).workload) / "end").touch()
    assert backend.wait(job).state == FINISHED, backend.output(job, "stderr")
    assert not folder.exists() and not os.path.lexists(backend.paths(job).temporary)


def test_temporary_files_are_removed_after_a_kill_of_the_runner(holding: tuple[Bench, str, Path]) -> None:
    backend, job, folder = holding
    identity = read_identity(backend.paths(job))
    assert identity is not None and folder.is_dir()
    os.kill(identity.pid, 9)
    assert backend.wait(job).state == ERROR
    assert not folder.exists() and not os.path.lexists(backend.paths(job).temporary)


def test_a_program_of_a_service_finds_the_usual_variables(tmp_path: Path) -> None:
    shown = "PWD OLDPWD HOME USER LOGNAME LANG TMPDIR"
    with bench(tmp_path) as backend, pytest.MonkeyPatch.context() as patch:
        for name in os.environ:
            if name != "PATH":
                patch.delenv(name)
        command = f"for n in {shown}; do printenv $n || echo; done; pwd -P"
        job = backend.submit("print()", user_cmd=("sh", "-c", command))
        assert backend.wait(job).state == FINISHED, backend.output(job, "stderr")
    pwd, old, home, user, logname, lang, _temporary, real = backend.output(job).splitlines()
    assert pwd == real == str(backend.paths(job).code(backend.row(job).workload)) and old == ""
    assert user == logname != "" and lang.endswith("UTF-8")
    assert os.access(home, os.W_OK)
