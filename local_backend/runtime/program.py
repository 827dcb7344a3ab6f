"""Turns a process forked from the nursery into a fresh interpreter that runs a program.

The process behaves and looks like a plain `python main.py`: `__main__`, `sys.argv`, `sys.path`, tracebacks, exit
codes, unbuffered output. The program runs on a shallow stack. A forked child leaves the frames of nursery and runner
by raising `Become`; `follow`, called at the top level of the process, catches it.
"""

from __future__ import annotations

import builtins
import gc
import importlib
import importlib.machinery
import io
import os
import signal
import sys
import tempfile
import time
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from local_backend.elastic.script import initial_environment
from local_backend.runtime import exiting
from local_backend.runtime.user_python import UserPython

#: An action that this process takes next; returns when it is done.
Step = Callable[[], None]


class Become(BaseException):
    """Raised in a forked child to leave all frames and take `step` instead."""

    def __init__(self, step: Step) -> None:
        super().__init__()
        self.step = step


def follow(step: Step) -> None:
    """Take `step`, then each step that this process raises by `Become`."""
    following: Step | None = step
    while following is not None:
        now, following = following, None
        try:
            now()
        except Become as become:
            following = become.step


@dataclass(frozen=True)
class Interpreter:
    """The state that a fresh interpreter would find."""

    environment: dict[str, str]
    #: sys.path without its first entry and without PYTHONPATH.
    base_path: tuple[str, ...]
    python: UserPython

    def settle(self, first: str, argv: list[str]) -> dict[str, Any]:
        """Make this process look as if just started with `argv`, with `first` at the front of sys.path. Return the
        names of the new `__main__`."""
        os.environ.clear()
        os.environ.update(self.environment)
        initial_environment.note(self.environment)
        given = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
        sys.path[:] = list(dict.fromkeys([first, *given, *self.base_path]))
        sys.argv[:] = argv
        sys.orig_argv[:] = [str(self.python.executable), *argv]
        importlib.invalidate_caches()
        self.python.enter()
        _standard_streams()
        _forget_the_nursery()
        return _new_main()


@dataclass(frozen=True)
class Script:
    """A step: run a Python file as `__main__`."""

    interpreter: Interpreter
    main: str
    arguments: tuple[str, ...]

    def __call__(self) -> None:
        folder = os.path.dirname(self.main)
        names = self.interpreter.settle(folder, [self.main, *self.arguments])
        names |= {"__file__": self.main, "__cached__": None}
        names["__loader__"] = importlib.machinery.SourceFileLoader("__main__", self.main)
        given, loaded = frozenset(sys.modules), exiting.libraries()
        code: types.CodeType | None = None
        status = 0
        try:
            code = _compile(self.main)
            exec(code, names)
        except SystemExit as ended:
            asked = exiting.status_of(ended.code)
            if asked is None:
                raise
            status = asked
        except BaseException:
            _show_from(code)
            raise
        del names
        exiting.finish(status, folder, given, loaded)
        sys.exit(status)


@dataclass(frozen=True)
class Function:
    """A step: call a module's `main`, which returns an exit status or None, as `python -m module` would."""

    interpreter: Interpreter
    module: str
    directory: str

    def __call__(self) -> NoReturn:
        self.interpreter.settle(self.directory, [self.module])
        sys.exit(importlib.import_module(self.module).main())


def _compile(main: str) -> types.CodeType:
    try:
        with open(main, "rb") as file:
            source = file.read()
    except OSError as problem:
        print(f"{sys.executable}: can't open file {main!r}: [Errno {problem.errno}] {problem.strerror}",
              file=sys.stderr)
        raise SystemExit(2) from None
    return compile(source, main, "exec", dont_inherit=True)


def _show_from(code: types.CodeType | None) -> None:
    """Make the interpreter report the current exception as if the frames before `code` did not exist."""
    show = sys.excepthook

    def hook(kind: type[BaseException], problem: BaseException, trace: types.TracebackType | None) -> None:
        while trace is not None and trace.tb_frame.f_code is not code:
            trace = trace.tb_next
        show(kind, problem.with_traceback(trace), trace)

    sys.excepthook = hook


def _new_main() -> dict[str, Any]:
    """Install a fresh `__main__`; return its names. The old module is kept, because its frames are still on the
    stack."""
    fresh = types.ModuleType("__main__")
    names = vars(fresh)
    names["__builtins__"] = builtins
    old = sys.modules[f"{__name__}.started_as"] = sys.modules["__main__"]
    if "__annotations__" in vars(old):  # before Python 3.14 every `__main__` has them
        names["__annotations__"] = {}
    sys.modules["__main__"] = fresh
    return names


def _standard_streams() -> None:
    """Create stdin, stdout and stderr as `python -u` does, with the encodings of this interpreter."""
    for fd, name, old in ((1, "stdout", sys.stdout), (2, "stderr", sys.stderr)):
        raw = io.FileIO(fd, "w", closefd=False)
        raw.name = f"<{name}>"
        stream = io.TextIOWrapper(raw, old.encoding, old.errors, newline="\n", write_through=True)
        stream.mode = "w"  # type: ignore[misc]
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    sys.stdin = sys.__stdin__ = open(0, encoding=sys.stdin.encoding, errors=sys.stdin.errors, closefd=False)  # type: ignore[misc]  # noqa: SIM115


def _forget_the_nursery() -> None:
    """Undo the preparations for forking, and reset state that must differ between processes."""
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGPIPE, signal.SIG_IGN)):
        signal.signal(number, handler)
    time.tzset()
    tempfile.tempdir = None
    if "numpy.random" in sys.modules:
        # Not seed(): an unseeded generator must not look seeded.
        sys.modules["numpy.random"].set_bit_generator(sys.modules["numpy.random"].MT19937())
    if "multiprocessing.process" in sys.modules:
        sys.modules["multiprocessing.process"].current_process().authkey = os.urandom(32)
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()
        threads = os.environ.get("OMP_NUM_THREADS", "")
        if threads.isdecimal() and int(threads) > 0:
            sys.modules["torch"].set_num_threads(int(threads))
    gc.enable()  # frozen objects stay frozen: modules never become garbage, and scanning copies their pages
