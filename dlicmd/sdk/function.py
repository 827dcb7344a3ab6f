"""Functions as jobs: a function is pickled by value and uploaded, and its outcome is fetched and checked.

The server unpickles nothing. The program `dlicmd.sdk.function_job` unpickles the function in the job. The client
unpickles the outcome, but only if its HMAC shows that it belongs to a call of this user: the key of each call is
derived from a secret file of the user. The key also reaches the server, so the server can make an outcome of its own.
"""

from __future__ import annotations

import functools
import hmac
import json
import os
import pickle
import pkgutil
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, NamedTuple

from dlicmd.contract.states import ERROR
from dlicmd.sdk import paths
from dlicmd.sdk.errors import JobFailed, PackageError, ResultError, ServerError, TokenFileError, UsageProblem
from dlicmd.sdk.exec_calls import ExecCalls
from dlicmd.sdk.function_job import CALL, IS_ERROR, IS_PICKLED, KEY, NONCE, OUTCOME, PYTHON, TRACE
from dlicmd.sdk.results import Wanted, fetch, place

#: The name of the uploaded program.
PROGRAM = "dlicmd_function.py"
#: Code of the answer about a file that the program did not write.
NO_FILE = "exec.no_file"
#: Number of bytes of the secret, and of a nonce.
_SIZE = 32
#: Packages that are never sent: every job has them, or no job needs them.
_KNOWN = frozenset({
    "dlicmd", "local_backend", "fabric_model", "fabric_data", "callbacks", "emetrics", "pyedt", "redhareapi",
    "redhareapiversion",
})
#: cloudpickle has one list of modules to pickle by value for the whole process.
_by_value = threading.Lock()


class JobTraceback(Exception):
    """The traceback of an exception in the job: the cause of the exception that `Job.result` raises."""

    def __str__(self) -> str:
        return "\n" + str(self.args[0])


class FunctionOutcome(NamedTuple):
    """The outcome of a function: its return value; or an exception with its traceback, which is None if it cannot be
    loaded."""

    is_error: bool
    value: Any
    trace: str = ""


def write_call(function: Callable[..., Any], folder: Path) -> None:
    """Write the program and the pickled function to an empty folder. Raises UsageProblem when the function cannot be
    pickled, PackageError when the disk is full."""
    cloudpickle = _cloudpickle()
    nonce = os.urandom(_SIZE)
    about = {PYTHON: list(sys.version_info[:2]), NONCE: nonce.hex(), KEY: _key(nonce).hex()}
    try:
        (folder / PROGRAM).write_bytes(pkgutil.get_data("dlicmd.sdk", "function_job.py") or b"")
        with open(folder / CALL, "wb") as file, _local_modules_by_value(cloudpickle, function):
            file.write(json.dumps(about).encode() + b"\n")
            cloudpickle.dump(function, file)
    except OSError as problem:
        raise PackageError(f"cannot write the pickled function to {tempfile.gettempdir()}: {problem.strerror}; name a "
                           "folder in TMPDIR") from None
    except (pickle.PicklingError, TypeError, AttributeError, ValueError, RecursionError) as problem:
        raise UsageProblem(f"cannot pickle {name_of(function)} with its arguments and the variables that it uses: "
                           f"{problem}") from None


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function, for the name of a job."""
    inner = _inner(function)
    name = str(getattr(inner, "__name__", type(inner).__name__))
    return "".join(letter for letter in name if letter.isalnum() or letter in "_.-") or "function"


def fetch_outcome(client: ExecCalls, exec_id: str) -> FunctionOutcome | None:
    """Return the outcome of the function of an exec that has ended, or None if the exec stored no outcome. Raises
    ResultError, JobFailed."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            path = fetch(client, Wanted(exec_id, OUTCOME, OUTCOME), Path(folder), force=True)
        except ServerError as problem:
            if problem.code != NO_FILE:
                raise
            return None
        return read_outcome(path, exec_id)


def read_outcome(path: Path, exec_id: str) -> FunctionOutcome:
    """Return the outcome in a fetched file. Raises ResultError when it is not the outcome of a call of this user, or
    when it cannot be loaded; JobFailed when the job refused the function because it runs another version of Python."""
    with open(path, "rb") as file:
        code = file.read(64)
        if file.read(1) != b"\n":
            raise ResultError(f"the outcome of {exec_id} is damaged")
        begin = file.tell()
        try:
            about = json.loads(file.readline())
            expected = _code(file, begin, _key(bytes.fromhex(about[NONCE])))
            version = ".".join(str(int(number)) for number in about[PYTHON])
        except (ValueError, TypeError, KeyError, RecursionError):
            raise ResultError(f"the outcome of {exec_id} is damaged") from None
        if not hmac.compare_digest(code, expected):
            raise ResultError(
                f"the outcome of {exec_id} is not loaded: a pickle can run code, and this one does not belong to a "
                f"call that this user submitted from here (key: {paths.function_key_file()})")
        here = ".".join(map(str, sys.version_info[:2]))
        if version != here and about.get(IS_PICKLED):
            raise ResultError(f"the outcome of {exec_id} was pickled by Python {version}, but this program runs {here};"
                              f" read it with Python {version}")
        if version != here:
            raise JobFailed(exec_id, ERROR, f"the job runs Python {version}, but this program runs {here}, and "
                            "functions need equal versions; submit a program file with Client.run(FILE)")
        if not about.get(IS_PICKLED):
            return FunctionOutcome(True, None, str(about.get(TRACE, "")))
        file.seek(begin)
        file.readline()
        return FunctionOutcome(bool(about.get(IS_ERROR)), _loaded(file, exec_id), str(about.get(TRACE, "")))


def _loaded(file: BinaryIO, exec_id: str) -> Any:
    try:
        return pickle.load(file)
    except Exception as problem:  # a pickle can raise any exception
        raise ResultError(f"cannot load the outcome of {exec_id}: {type(problem).__name__}: {problem}") from None


def _code(file: BinaryIO, begin: int, key: bytes) -> bytes:
    """Return the HMAC of a file from `begin` on, in hexadecimal digits."""
    code = hmac.new(key, digestmod="sha256")
    file.seek(begin)
    while chunk := file.read(1 << 20):
        code.update(chunk)
    return code.hexdigest().encode()


def _key(nonce: bytes) -> bytes:
    """Return the key of one call. A later process of the same user gets the same key."""
    return hmac.digest(_secret(), nonce, "sha256")


def _secret() -> bytes:
    """Return the secret of this user. The first call makes it. Raises TokenFileError."""
    path = paths.function_key_file()
    try:
        if not path.exists():
            fd, made = tempfile.mkstemp(prefix=path.name, dir=path.parent)  # only the owner can read it
            with open(fd, "wb") as file:
                file.write(os.urandom(_SIZE))
            try:
                place(Path(made), path, force=False)
            except ResultError:
                pass  # another process was faster
            finally:
                Path(made).unlink(missing_ok=True)
        secret = path.read_bytes()
    except OSError as problem:
        raise TokenFileError(f"cannot use the key for functions, {path}: {problem.strerror}") from None
    if len(secret) != _SIZE:
        raise TokenFileError(f"{path} is not the key for functions; remove it")
    return secret


def _cloudpickle() -> Any:
    try:
        import cloudpickle
    except ImportError:
        raise UsageProblem("functions as jobs need cloudpickle: pip install cloudpickle") from None
    return cloudpickle


@contextmanager
def _local_modules_by_value(cloudpickle: Any, function: Callable[..., Any]) -> Iterator[None]:
    """Pickle what belongs to the user's own modules by value in this context: the job does not have these modules."""
    with _by_value:
        modules = _local_modules(function)
        for module in modules:
            cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            for module in modules:
                cloudpickle.unregister_pickle_by_value(module)


def _local_modules(function: Callable[..., Any]) -> list[ModuleType]:
    """Return the loaded modules below the folder of the main program, or below the current folder in a notebook, and
    those below the folder of the function's module."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    own = getattr(sys.modules.get(getattr(_inner(function), "__module__", None) or ""), "__file__", None)
    roots = [Path(main).resolve().parent if main else Path.cwd(), *([Path(own).resolve().parent] if own else [])]
    found = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not file or name == "__main__" or name.partition(".")[0] in _KNOWN or module.__name__ != name:
            continue
        path = _not_installed(file)
        if path is not None and any(path.is_relative_to(root) for root in roots):
            found.append(module)
    return found


@functools.cache
def _not_installed(file: str) -> Path | None:
    """Return the path of the file of a module, None for a module of an installed package. A process has thousands of
    modules, and may submit many functions."""
    path = Path(file).resolve()
    library = (Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    return None if "site-packages" in path.parts or any(path.is_relative_to(one) for one in library) else path


def _inner(function: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(function, functools.partial):
        function = function.func
    return function
