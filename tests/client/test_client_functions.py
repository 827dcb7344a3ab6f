"""Functions as jobs: pickled by value, run in another process, with their outcome as return value or exception."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_server import TOKEN
from function_server import FunctionServer

import dlicmd
from dlicmd.sdk import function
from dlicmd.sdk.function_job import OUTCOME


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FunctionServer]:
    monkeypatch.setenv("HOME", str(tmp_path))
    with FunctionServer(tmp_path / "jobs") as found:
        yield found


@pytest.fixture
def client(server: FunctionServer) -> dlicmd.Client:
    return dlicmd.Client("127.0.0.1", server.port, http=True, token=TOKEN)


class Point:
    """A class of a module that the job does not have."""

    def __init__(self, x: int) -> None:
        self.x = x

    def __call__(self) -> int:
        return helper(self.x)


def helper(x: int) -> int:
    return x * 10


def add(a: int, b: int = 0) -> int:
    print("adding")
    return a + b


class Odd(Exception):
    """An exception that cannot be loaded, because its arguments differ from those of its class."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} {two}")


def fail(kind: type[Exception], *args: Any) -> None:
    raise kind(*args)


def counter(start: int) -> Callable[[], int]:
    def count() -> int:
        return start + 1

    return count


CALLS: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], Any]] = [
    (add, (1,), {"b": 2}, 3), (counter(4), (), {}, 5), (lambda: None, (), {}, None), (pow, (2, 10), {}, 1024),
    (Point(3), (), {}, 30), (functools.partial(add, 1), (1,), {}, 2), (os.path.join, ("a", "b"), {}, "a/b"),
    (lambda: os.getcwd().rpartition("/")[2], (), {}, "function"), (sorted, ([2, 1],), {"reverse": True}, [2, 1]),
]


@pytest.mark.parametrize(("called", "args", "kwargs", "expected"), CALLS)
def test_a_job_returns_what_its_function_returns(
    client: dlicmd.Client, called: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], expected: Any
) -> None:
    job = client.submit(called, *args, **kwargs)
    assert job.result() == expected and job.state == "FINISHED"
    assert client.job(job.id).result() == expected


def test_an_instance_comes_back_with_its_class(client: dlicmd.Client) -> None:
    found = client.submit(lambda: Point(7)).result()
    assert isinstance(found, Point) and found() == 70


def test_what_a_function_prints_is_in_the_log(client: dlicmd.Client) -> None:
    job = client.submit(add, 1)
    assert job.result() == 1 and job.logs() == "adding\n"


def test_a_large_array_is_returned(client: dlicmd.Client) -> None:
    numpy = pytest.importorskip("numpy")
    found = client.submit(lambda: numpy.arange(4_000_000, dtype="float64")).result()
    assert found.nbytes == 32_000_000 and found[-1] == 3_999_999


def test_an_exception_is_raised_with_its_traceback(client: dlicmd.Client) -> None:
    job = client.submit(fail, KeyError, "what")
    with pytest.raises(KeyError) as raised:
        job.result()
    shown = "".join(traceback.format_exception(raised.value))
    assert raised.value.args == ("what",) and job.state == "ERROR"
    assert "in fail" in shown and "dlicmd_function.py" not in shown
    assert "in fail" in job.logs() and "dlicmd_function.py" not in job.logs()


@pytest.mark.parametrize("called", [
    functools.partial(fail, Odd, 1, 2), functools.partial(sys.exit, 3), lambda: os._exit(3),
    lambda: os.kill(os.getpid(), 9)])
def test_an_end_without_a_usable_exception_is_a_failed_job(client: dlicmd.Client, called: Callable[[], Any]) -> None:
    job = client.run(called)
    with pytest.raises(dlicmd.JobFailed) as raised:
        job.result()
    assert raised.value.exec_id == job.id and raised.value.state == "ERROR"


def test_a_failed_job_shows_the_traceback_of_an_exception_that_cannot_be_loaded(client: dlicmd.Client) -> None:
    with pytest.raises(dlicmd.JobFailed, match="1 2"):
        client.submit(fail, Odd, 1, 2).result()


def test_a_return_value_that_cannot_be_pickled_is_an_error(client: dlicmd.Client) -> None:
    with pytest.raises(TypeError):
        client.submit(threading.Lock).result()


def test_a_function_that_ends_the_program_stores_no_value(client: dlicmd.Client) -> None:
    with pytest.raises(dlicmd.ResultError):
        client.submit(sys.exit, 0).result()


def test_a_function_that_cannot_be_pickled_is_refused(client: dlicmd.Client, server: FunctionServer) -> None:
    lock = threading.Lock()
    with pytest.raises(dlicmd.UsageProblem) as raised:
        client.submit(id, lock)
    assert "cannot pickle id" in str(raised.value) and not server.requests("POST")


@pytest.mark.parametrize("wrong", [
    {"arguments": ["--epochs"]}, {"kind": "elastic"}, {"kind": "command"}, {"workers": 2, "gpus": 3},
    {"kind": "x"}, {"data": "[1"}, {"options": {"x": 1}}])
def test_wrong_arguments_are_refused(client: dlicmd.Client, server: FunctionServer, wrong: dict[str, Any]) -> None:
    with pytest.raises(dlicmd.UsageProblem):
        client.run(lambda: None, **wrong)
    assert not server.requests("POST")


@pytest.mark.parametrize(("named", "expected"), [
    ({}, "--exec-start PyTorch --appName lambda --model-dir function --model-main dlicmd_function.py"),
    ({"workers": 3, "kind": "ddp", "name": "x y"},
     "--exec-start distPyTorch --appName 'x y' --numWorker 3 --model-dir function --model-main dlicmd_function.py"),
    ({"gpus": 2, "env": {"A": 1}}, "--exec-start PyTorch --msd-env A=1 --workerDeviceType gpu --workerDeviceNum 2 "
                                   "--appName lambda --model-dir function --model-main dlicmd_function.py"),
])
def test_the_arguments_of_run_become_options(
    client: dlicmd.Client, server: FunctionServer, named: dict[str, Any], expected: str
) -> None:
    job = client.run(lambda: None, **named)
    assert job.exec["submitted"] == expected and job.result() is None


def test_the_process_of_rank_0_gives_the_value(client: dlicmd.Client, server: FunctionServer) -> None:
    server.more = {"RANK": "0"}
    assert client.submit(add, 1).result() == 1
    server.more = {"RANK": "1"}
    with pytest.raises(dlicmd.ResultError):
        client.submit(add, 1).result()


def test_another_version_of_python_is_reported(
    client: dlicmd.Client, server: FunctionServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the job runs another version; once the program that reads the outcome does."""
    job = client.submit(add, 1)
    (tmp_path / "other.py").write_text(
        "import runpy, sys\nsys.version_info = (3, 99)\nrunpy.run_path(sys.argv[1], run_name='__main__')\n")
    server.python = [sys.executable, str(tmp_path / "other.py")]
    with pytest.raises(dlicmd.JobFailed, match=r"3\.99"):
        client.submit(add, 1).result()
    monkeypatch.setattr(function.sys, "version_info", (3, 98))
    with pytest.raises(dlicmd.ResultError, match=r"3\.98"):
        job.result()


@pytest.mark.parametrize("change", [
    lambda data: b"0" * 64 + data[64:], lambda data: data[:-1], lambda data: data + b".", lambda data: data[:70],
    lambda data: b"", lambda data: data.replace(b'"nonce": "', b'"nonce": "0'),
    lambda data: data.replace(b"nonce", b"none"), lambda data: data[:65] + b"[]\n", lambda data: data[:65] + b"{}\n",
], ids=range(9))
def test_a_changed_outcome_is_not_loaded(
    client: dlicmd.Client, server: FunctionServer, change: Callable[[bytes], bytes]
) -> None:
    job = client.submit(add, 1)
    server.files[job.id][OUTCOME] = change(server.files[job.id][OUTCOME])
    with pytest.raises(dlicmd.ResultError):
        job.result()


def test_an_outcome_of_another_user_is_not_loaded(
    client: dlicmd.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = client.submit(add, 1)
    assert (tmp_path / ".dlicmd.functions").stat().st_mode & 0o777 == 0o600
    (tmp_path / "other").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "other"))
    with pytest.raises(dlicmd.ResultError):
        job.result()
    (tmp_path / "other" / ".dlicmd.functions").write_bytes(b"short")
    with pytest.raises(dlicmd.TokenFileError):
        job.result()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has /dev/full")
def test_a_full_disk_is_reported(
    client: dlicmd.Client, server: FunctionServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(function, "CALL", "/dev/full")
    with pytest.raises(dlicmd.PackageError):
        client.submit(add, 1)
    assert not server.requests("POST")


def test_a_job_without_a_function_has_no_value(client: dlicmd.Client, server: FunctionServer) -> None:
    job = client.submit(add, 1)
    del server.files[job.id][OUTCOME]
    with pytest.raises(dlicmd.ResultError):
        job.result()


def test_without_cloudpickle_the_message_names_it(client: dlicmd.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(dlicmd.UsageProblem, match="pip install cloudpickle"):
        client.submit(add, 1)


#: A script of a user, with a module and a package of their own beside it.
SCRIPT = """
import json, sys
import dlicmd, near, pack.deep
from pack.deep import Value

class Local:
    def __init__(self, x): self.x = x
    def double(self): return near.twice(self.x)

def job(): return [Local(4).double(), pack.deep.FACTOR, Value(2).x, near.__name__]

def make(): return Local(5), Value(6)

client = dlicmd.Client("127.0.0.1", int(sys.argv[1]), http=True, token="fake-token-1")
local, value = client.submit(make).result()
print(json.dumps([client.submit(job).result(), type(local) is Local, local.x, type(value) is Value, value.x,
                  client.submit(near.twice, 8).result()]))
"""


@pytest.mark.parametrize("way", [["script.py"], ["-c", "exec(compile(open('script.py').read(), 'cell', 'exec'))"]],
                         ids=["script", "notebook"])
def test_modules_beside_a_script_travel_with_its_functions(
    server: FunctionServer, tmp_path: Path, way: list[str]
) -> None:
    """A notebook runs code without a file."""
    folder = tmp_path / "user"
    (folder / "pack").mkdir(parents=True)
    (folder / "script.py").write_text(SCRIPT)
    (folder / "near.py").write_text("def twice(x): return 2 * x\n")
    (folder / "pack" / "__init__.py").write_text("")
    (folder / "pack" / "deep.py").write_text("FACTOR = 3\nclass Value:\n    def __init__(self, x): self.x = x\n")
    done = subprocess.run([sys.executable, *way, str(server.port)], cwd=folder, capture_output=True, text=True,
                          timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[8, 3, 2, "near"], True, 5, True, 6, 16]
