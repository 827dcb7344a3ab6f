"""The server's side of a plugin algorithm: starts plugin_host.py for one question; for a team, in a sandbox."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from local_backend import own_process
from local_backend.errors import Invalid
from local_backend.fields import TEXT
from local_backend.files import remove_tree
from local_backend.hypersearch import plugin_host, space
from local_backend.hypersearch.definition import Definition, Known, Value
from local_backend.hypersearch.plugins import interpreter_of
from local_backend.hypersearch.questions import Hold, SuggesterFailed, SuggesterLost
from local_backend.runtime.cgroup import JobGroup
from local_backend.runtime.environment import inherited
from local_backend.runtime.sandbox import PROGRAM
from local_backend.runtime.view import READ, TEMPORARY, Mount, arguments, of_environment, of_machine
from local_backend.settings import Settings

#: Most bytes of an answer, of a file that a plugin writes, and of its log.
_ANSWER, _FILE, _LOG = 8 * 2**20, 16 * 2**20, 8 * 2**20
#: Most characters of the sentence of a plugin that fails.
_SENTENCE = 1000
#: Name of the only task in the control group of a plugin.
_TASK = "task0"
#: Members of a parameter that plugins may read, whatever its type.
_LISTS = ("discreteDbVal", "discreteIntVal", "discreateStrVal")
_TYPES = {"range": "Range", "discrete": "Discrete", "fix": "fix"}


@dataclass(frozen=True)
class PluginAnswer:
    """Suggestions, and the state of the plugin after them. Fewer suggestions than asked for: the space is exhausted."""

    suggestions: list[dict[str, Value]]
    state: bytes


def ask(settings: Settings, description: Mapping[str, Any], definition: Definition, *, name: str, count: int,
        last: Sequence[Known], state: bytes | None, log: Path, hold: Hold,
        control_group: Path | None = None) -> PluginAnswer:
    """Ask an installed algorithm for `count` experiments of the search `name`; wait for the answer.

    `description` is that of the installation, `last` are the ended experiments of the latest batch, and `state` is that
    of the latest answer. `control_group` is delegated to this process: a child of it limits the plugin as the group of
    a job does. Raises SuggesterLost when the process was killed, by the `hold` of the question or by others, and
    SuggesterFailed when the plugin failed or exceeded a limit. The plugin's log goes to the file `log`.
    """
    folder = description["path"]
    request = {
        "name": name, "folder": folder, "number": count, "level": description.get("logLevel", "INFO"),
        "hyper_parameters": _hyper_parameters(definition), "kwargs": definition.params,
        "last": _results(definition, last) if last else None,
        "state": None if state is None else base64.b64encode(state).decode("ascii"),
        "limits": {"seconds": settings.plugin_seconds, "memory": settings.plugin_memory, "file": _FILE,
                   "nice": own_process.NICE, "score": own_process.JOB_SCORE},
    }
    try:
        python, mounts = environment_of(settings, description)
    except Invalid as problem:
        raise SuggesterFailed(f"the algorithm {definition.algorithm} cannot run: {problem}") from None
    with (_log(log) as messages, _temporary() as temporary,
          _enclosed(settings, control_group, temporary.name, messages) as entry):
        process = _start(settings, python, [(READ, folder), *mounts], temporary, messages, inherits=entry)
        with hold.of(partial(_kill, process)):
            said = _answer(process, json.dumps(request | {"group": entry}).encode(), settings.plugin_seconds)
    match said:
        case {"problem": str(why)}:
            why = "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in why[:_SENTENCE])
            raise SuggesterFailed(f"the algorithm {definition.algorithm} failed: {why}")
        case {"suggestions": [*suggestions], "state": str(text)} if all(isinstance(one, dict) for one in suggestions):
            found = [_checked(definition, one) for one in suggestions[:count]]
            with contextlib.suppress(ValueError):
                return PluginAnswer(found, base64.b64decode(text))
    raise SuggesterFailed(f"the algorithm {definition.algorithm} gave an answer without suggestions")


def environment_of(settings: Settings, description: Mapping[str, Any]) -> tuple[str, Sequence[Mount]]:
    """Return the Python of an installed algorithm, and what its sandbox must see of the environment. Raises Invalid if
    the environment does not exist, or if the sandbox would not show it to a job, either."""
    python = interpreter_of(description)
    if python is None or not settings.isolates_jobs:
        return python or sys.executable, ()
    folder = str(Path(python).parent.parent)
    mounts = of_environment(settings, folder)
    if not mounts:
        raise Invalid("search.plugin", f"the environment {folder} is not shown to algorithms: it needs conda-meta or "
                      "pyvenv.cfg, and only root or the account of the server may own it and the folders above it")
    return python, mounts


def _hyper_parameters(definition: Definition) -> list[dict[str, Any]]:
    """Return the parameters as the request has them, with the spelling that plugins know, and with the lists that are
    empty or absent in the request as empty lists."""
    lists: dict[str, Any] = {key: [] for key in _LISTS}
    return [lists | item | {"type": _TYPES.get(str(item["type"]).lower(), item["type"]), "dataType": one.data}
            for item, one in zip(definition.raw["hyperParams"], definition.parameters, strict=True)]


def _results(definition: Definition, last: Sequence[Known]) -> list[dict[str, Any]]:
    failed = -9999.99 if definition.maximize else 9999.99
    return [{**one.parameters, "id": one.id, "hyperParams": dict(one.parameters),
             "metricVal": failed if one.value is None else one.value,
             "state": "FAILED" if one.state == "failed" else "FINISHED"} for one in last]


def _checked(definition: Definition, suggestion: Mapping[str, Any]) -> dict[str, Value]:
    """Return a suggestion with the types of the definition. Plugins may leave the bounds of a range, as WMLA's do."""
    known = {one.name: one for one in definition.parameters}
    found: dict[str, Value] = {}
    for name, value in suggestion.items():
        if name not in known:
            raise SuggesterFailed(f"the algorithm {definition.algorithm} suggested {name!r}, which is not a parameter")
        try:
            number = _text(str(value)) if known[name].data == "STR" else float(value)
            found[name] = int(number) if known[name].data == "INT" else number
            if isinstance(number, float) and not abs(number) < float("inf"):
                raise ValueError
        except (TypeError, ValueError, OverflowError):
            raise SuggesterFailed(f"the algorithm {definition.algorithm} suggested {space.text(str(value))[:100]!r} "
                                  f"for {name}, which must be {known[name].data}") from None
    return found


def _text(text: str) -> str:
    """Return a text that can be a word of a program. Raises ValueError."""
    if len(text) > TEXT or "\0" in text:
        raise ValueError
    text.encode()
    return text


@contextlib.contextmanager
def _log(path: Path) -> Any:
    """Yield the log, to append to. A long one begins again."""
    with open(path, "ab") as file:
        if file.tell() > _LOG:
            file.truncate(0)
        yield file


@contextlib.contextmanager
def _temporary() -> Any:
    """Yield a new folder, which is removed at the end, whatever the plugin has made in it."""
    folder = Path(tempfile.mkdtemp(prefix="dli-"))
    try:
        yield folder
    finally:
        with contextlib.suppress(OSError):
            remove_tree(folder)


@contextlib.contextmanager
def _enclosed(settings: Settings, delegated: Path | None, name: str, log: IO[bytes]) -> Iterator[int | None]:
    """Yield a descriptor of a new control group for a plugin, with the limits of a job; None where no group is
    delegated. Its processes end with the block. Raises SuggesterFailed when the group was out of memory."""
    if delegated is None:
        yield None
        return
    group = JobGroup(delegated, f"plugin-{name}")
    try:
        group.make(settings.job_processes)
        entry: int | None = group.open(_TASK, settings.plugin_memory)
    except OSError as problem:
        log.write(f"no control group limits the algorithm: {problem}\n".encode())
        log.flush()
        entry = None
    try:
        yield entry
    except SuggesterLost:
        if group.was_full(_TASK):
            raise SuggesterFailed(
                f"the processes of the algorithm used more than {settings.plugin_memory} bytes of memory; an "
                "administrator can raise the limit with DLI_PLUGIN_MEMORY") from None
        raise
    finally:
        if entry is not None:
            os.close(entry)
        group.end()


def _start(
    settings: Settings, python: str, seen: Sequence[Mount], temporary: Path, log: IO[bytes], *, inherits: int | None
) -> subprocess.Popen[bytes]:
    """Start the process, which inherits a descriptor. Its sandbox sees `seen`, and what every job sees. Raises
    SuggesterFailed."""
    words = [python, "-s", plugin_host.__file__]
    environment = inherited(os.environ, of_server=settings.embedded) | {"TMPDIR": str(temporary)}
    with contextlib.ExitStack() as stack:
        file: str | None = None
        keep: Sequence[int] = ()
        if settings.isolates_jobs:
            program = shutil.which(PROGRAM)
            if program is None:
                raise SuggesterFailed(f"the program {PROGRAM} (bubblewrap) is not installed")
            file, keep = stack.enter_context(own_process.unchangeable(program))
            mounts = [*of_machine(settings), *seen]
            words = [PROGRAM, "--unshare-user", "--unshare-pid", "--unshare-ipc", "--die-with-parent", "--new-session",
                     "--cap-drop", "ALL", "--bind", str(temporary), TEMPORARY, *arguments(mounts),
                     "--chdir", TEMPORARY, "--", *words]
            environment |= {"TMPDIR": TEMPORARY}
        return subprocess.Popen(
            words, executable=file, pass_fds=keep if inherits is None else [*keep, inherits], env=environment,
            cwd=temporary, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True)


def _answer(process: subprocess.Popen[bytes], request: bytes, seconds: float) -> Any:
    """Return the answer of a process to a request. The process, and what it started, is then gone."""
    assert process.stdin is not None and process.stdout is not None
    late = threading.Event()

    def expire() -> None:
        late.set()
        _kill(process)

    timer = threading.Timer(seconds, expire)
    timer.start()
    try:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(request)
            process.stdin.close()
        text = _read(process, process.stdout.fileno())
    finally:
        timer.cancel()
        _kill(process)
        status = process.wait()
        process.stdout.close()
    if len(text) > _ANSWER:
        raise SuggesterFailed(f"the answer of the algorithm exceeds {_ANSWER} bytes")
    try:
        return json.loads(text)
    except RecursionError:
        raise SuggesterFailed("the answer of the algorithm is nested too deeply") from None
    except ValueError:
        if late.is_set() or -status in (signal.SIGXCPU, signal.SIGXFSZ):
            raise SuggesterFailed(f"the algorithm took longer than {seconds:g} s, or exceeded a limit") from None
        raise SuggesterLost("the process of the algorithm ended without an answer") from None


def _read(process: subprocess.Popen[bytes], out: int) -> bytes:
    """Return what a process writes until its end: at most a little more than `_ANSWER` bytes. Processes that it has
    left behind may keep its output open."""
    end: int | None = None
    with contextlib.suppress(OSError):  # old kernels, and some sandboxes, have no such descriptors
        end = os.pidfd_open(process.pid)
    text = b""
    os.set_blocking(out, False)
    poll = select.poll()
    poll.register(out, select.POLLIN)
    if end is not None:
        poll.register(end, select.POLLIN)
    try:
        while len(text) <= _ANSWER:
            ready = {fd for fd, _ in poll.poll()}
            piece = os.read(out, 1 << 16) if out in ready else b""
            if not piece:
                break
            text += piece
    finally:
        if end is not None:
            os.close(end)
    return text


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.returncode is None:  # else another process may have its id
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
