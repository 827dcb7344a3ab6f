"""The processes of a job: what each one runs, and how it is started."""

from __future__ import annotations

import errno
import os
import re
import shlex
import signal
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from local_backend.elastic.script import initial_environment
from local_backend.files import is_plain, make_folder
from local_backend.own_process import JOB_SCORE, give_way, hide, may_be_killed
from local_backend.runtime import cgroup, environment
from local_backend.runtime.environment import TaskId
from local_backend.runtime.launch import Launch
from local_backend.runtime.overlay import TITLE, show_title, title_of
from local_backend.runtime.paths import DRIVER, worker_task
from local_backend.runtime.processes import become_subreaper, die_with_parent
from local_backend.runtime.program import Become, Function, Interpreter, Script, Step
from local_backend.runtime.sandbox import Sandbox
from local_backend.runtime.user_python import UserPython, modules_in
from local_backend.scheduler.model import Slot

ENGINE_WORKER = "local_backend.elastic.worker.worker"
KERNEL = "local_backend.inference.kernel.main"
#: Shell syntax: lists, pipes, redirections, patterns and variables.
_FOR_A_SHELL = re.compile(r"[|&;<>()$`*?\n]|^\s*\w+=")


@dataclass(frozen=True)
class TaskPlan:
    """A process to start."""

    task: TaskId
    environment: dict[str, str]
    directory: Path
    #: RESULT_DIR, and LOG_DIR in it.
    root: Path
    log_dir: Path
    #: Command line, for a process with its own interpreter or another program.
    argv: tuple[str, ...]
    stdout: Path
    stderr: Path
    #: The Python environment of the user.
    python: UserPython
    #: Step for a process forked from this one; None if it needs its own interpreter.
    step: Step | None = None
    #: Descriptor that the process inherits besides the standard ones.
    keep: int | None = None
    #: Whether all processes that the task starts stay below the task while it lives, see `tree.strays`.
    elastic: bool = False
    #: What `ps` shows of the process, unless it becomes another program.
    title: str = ""


class Planner:
    """Creates the plans of one launch."""

    def __init__(
        self, launch: Launch, *, warm: bool, master_port: int, cores: int, temporary: Path, base_path: Sequence[str],
    ) -> None:
        self.launch = launch
        self._of_task = partial(
            environment.of_task, launch, master_port=master_port, cores=cores, temporary=temporary)
        self._python = UserPython(launch.home.user_python(launch.spec.creator))
        self._base_path = tuple(base_path)
        self.warm = warm and not environment.needs_own_interpreter(launch.spec) and not self._shadows()

    def driver(self, channel: int, restarts: int) -> TaskPlan:
        """Return the plan of an elastic job's driver. `channel` is its end of the runner channel; `restarts` counts
        its earlier starts."""
        extra = {"DLI_RUNNER_FD": str(channel), "DLI_RESTARTS": str(restarts)}
        task = TaskId(DRIVER, 0)
        if self.launch.spec.program.user_cmd is not None:
            # The command may set variables for the program, and the workers need these, too.
            env = self._of_task(task)
            extra[initial_environment.TOLD] = initial_environment.told(env)
        return self._program(task, extra, keep=channel)

    def workers(self) -> list[TaskPlan]:
        """Return the plans of all workers of a job that is not elastic."""
        spec, slots = self.launch.spec, self.launch.slots
        each = len(slots) // spec.resources.num_worker
        return [
            self._program(TaskId(worker_task(number), number, slots[(number - 1) * each : number * each]), {})
            for number in range(1, spec.resources.num_worker + 1)
        ]

    def engine_worker(self, number: int, slot: Slot, hub: dict[str, str]) -> TaskPlan:
        """Return the plan of an elastic worker on a slot; the variables in `hub` tell the worker how to reach its
        hub."""
        task = TaskId(worker_task(number), number, (slot,))
        argv = (environment.interpreter(self.launch), "-m", ENGINE_WORKER)
        return self._plan(task, argv, hub | {"DLI_WORKER_NUMBER": str(number)}, module=ENGINE_WORKER)

    def kernel(self, number: int, slot: Slot, ready: int) -> TaskPlan:
        """Return the plan of a kernel of a service on a slot. The kernel writes a byte to the descriptor `ready` when
        it takes requests."""
        service = self.launch.spec.service
        assert service is not None
        task, extra = TaskId(worker_task(number), number, (slot,)), {"DLI_READY_FD": str(ready)}
        python = environment.interpreter(self.launch)
        if service.command is None:
            return self._plan(task, (python, "-m", KERNEL), extra, module=KERNEL, keep=ready)
        code = self.launch.paths.code(self.launch.spec)
        return self._plan(task, resolve(service.command, code, python, self.launch.paths.root), extra, keep=ready)

    def _program(self, task: TaskId, extra: dict[str, str], keep: int | None = None) -> TaskPlan:
        spec, code = self.launch.spec, self.launch.paths.code(self.launch.spec)
        python = environment.interpreter(self.launch)
        if spec.program.user_cmd is not None:
            argv = resolve(spec.program.user_cmd, code, python, self.launch.paths.root)
        else:
            argv = (python, str(code / str(spec.program.main)), *spec.program.arguments)
        return self._plan(task, argv, extra, keep=keep)

    def _plan(
        self, task: TaskId, argv: tuple[str, ...], extra: dict[str, str], *, module: str | None = None,
        keep: int | None = None,
    ) -> TaskPlan:
        """Return the plan of a process; `module` has the `main` that it runs, None for a script or a command."""
        launch = self.launch
        env = self._of_task(task) | extra
        code = launch.paths.code(launch.spec)
        elastic = launch.spec.resources.elastic
        stdout, stderr = (launch.paths.capture(task.name, name, elastic) for name in ("stdout", "stderr"))
        step: Step | None = None
        if self.warm:
            fresh = Interpreter(env, self._base_path, self._python)
            step = Script(fresh, argv[1], argv[2:]) if module is None else Function(fresh, module, str(code))
        title = title_of(launch.spec.id, task.number)
        service = launch.spec.service
        is_command = launch.spec.program.user_cmd is not None or (service is not None and service.command is not None)
        if step is None and not is_command and launch.spec.environment.conda_env is None:
            env |= {TITLE: title}
        root, log_dir = launch.paths.root, launch.paths.log_dir(task.name)
        return TaskPlan(task, env, code, root, log_dir, argv, stdout, stderr, self._python, step, keep, elastic,
                        title)

    def _shadows(self) -> bool:
        """Return whether the program ships, or the user has installed, a module whose name is already loaded here: an
        import would find the wrong one."""
        spec, code = self.launch.spec, self.launch.paths.code(self.launch.spec)
        loaded = {name.partition(".")[0] for name in sys.modules} - {"__main__", "__mp_main__"}
        folders = {code, (code / str(spec.program.main)).parent, *environment.own_modules(self.launch)}
        return self._python.shadows(loaded) or any(not loaded.isdisjoint(modules_in(folder)) for folder in folders)


def resolve(words: Sequence[str], code: Path, python: str, root: Path) -> tuple[str, ...]:
    """Return the command of --user-cmd, ready to be executed in `code`. An earlier process of the job may have replaced
    `code` by a link: files outside of `root`, which is RESULT_DIR, are not touched.

    If the first word is a file of the code, the file is run: itself if executable or starting with `#!` (then made
    executable), else by Python. Any other word is left to PATH. Older scripts pass a whole command line as one word,
    because quotes were lost. Such a line is split as a shell would, or passed to a shell if it has shell syntax.
    """
    if not words:
        return (python,)
    if len(words) == 1 and not os.path.lexists(code / words[0]):
        words = _apart(words[0])
    path = code / words[0]
    try:
        real = path.resolve(strict=True)
        top = code.resolve()
        if not (real.is_file() and real.is_relative_to(top) and top.is_relative_to(root.resolve())):
            return tuple(words)
        with open(os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if not mode & stat.S_IXUSR:
                if file.read(2) != b"#!":
                    return (python, str(path), *words[1:])
                os.fchmod(file.fileno(), mode | stat.S_IXUSR)
    except (OSError, ValueError, RuntimeError):
        return tuple(words)
    return (str(path), *words[1:])


def _apart(line: str) -> list[str]:
    if any(map(str.isspace, line)) and _FOR_A_SHELL.search(line):
        return ["/bin/sh", "-c", line]
    try:
        return shlex.split(line) or [line]
    except ValueError:  # an unclosed quote
        return [line]


def start(plan: TaskPlan, sandbox: Sandbox | None = None, group: int | None = None) -> int:
    """Start a process in its own group that dies with this process; return its pid. With `sandbox`, which this process
    leads, the process sees the sandbox only. With `group`, the descriptor of a control group, the process is in that
    group. Does not return in the child.

    Raises OSError when its output files cannot be opened or no process can be created.
    """
    os.close(make_folder(plan.log_dir, plan.root))
    opened: list[int] = []
    parent = os.getpid()
    # Until the child has its own handlers, a signal for it would reach those of this process.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        opened += [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)]
        opened += [_log(path, plan.root) for path in (plan.stdout, plan.stderr)]
        pid = os.fork()
        if pid == 0:
            _child(plan, sandbox, group, parent, opened)
    finally:
        if os.getpid() == parent:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            for fd in opened:
                os.close(fd)
    try:
        os.setpgid(pid, pid)  # the child does this, too: the first call takes effect
    except (PermissionError, ProcessLookupError):
        pass  # the child has done it and already runs its program
    return pid


def _log(path: Path, root: Path) -> int:
    """Open a log for appending. If the program has replaced the log, or a folder on the way from RESULT_DIR to it,
    remove the replacement: a link to another user's file, or a pipe without a reader. Raises OSError."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    folder = make_folder(path.parent, root if path.is_relative_to(root) else path.parent.parent)
    try:
        try:
            fd = os.open(path.name, flags | os.O_NONBLOCK, 0o600, dir_fd=folder)
        except OSError as problem:
            if problem.errno not in (errno.ELOOP, errno.ENXIO):
                raise
        else:
            if is_plain(fd):
                os.set_blocking(fd, True)
                return fd
            os.close(fd)
        os.unlink(path.name, dir_fd=folder)
        return os.open(path.name, flags | os.O_EXCL, 0o600, dir_fd=folder)
    finally:
        os.close(folder)


def _child(
    plan: TaskPlan, sandbox: Sandbox | None, group: int | None, parent: int, streams: Sequence[int]
) -> None:
    """Set up the forked child and run its program. Raises Become, or ends the process."""
    try:
        for target, fd in enumerate(streams):
            os.dup2(fd, target, inheritable=True)
        if group is not None:
            cgroup.enter(group)
        if sandbox is not None:
            sandbox.enter()
            plan.python.make()  # here, because a program could have put links to other files into this folder
        die_with_parent(parent)
        os.setpgid(0, 0)
        reset_signals()
        close_all_but(plan.keep)
        if sandbox is not None:
            hide(False)  # only now: nothing of the runner is open any more
            give_way()
        may_be_killed(JOB_SCORE)
        if plan.elastic:
            become_subreaper()
        os.chdir(plan.directory)
        if plan.step is None:
            _execute(plan)
        show_title(plan.title)
    except OSError as problem:
        os.write(2, f"cannot start {plan.argv[0]}: {problem.strerror}\n".encode(errors="replace"))
        os._exit(127 if isinstance(problem, FileNotFoundError) else 126)
    assert plan.step is not None
    raise Become(plan.step)


def _execute(plan: TaskPlan) -> None:
    if plan.keep is not None:
        os.set_inheritable(plan.keep, True)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.execvpe(plan.argv[0], plan.argv, plan.environment)


def close_all_but(keep: int | None) -> None:
    """Close every descriptor above the standard three, except `keep`."""
    most = os.sysconf("SC_OPEN_MAX")
    if keep is None:
        os.closerange(3, most)
    else:
        os.closerange(3, keep)
        os.closerange(keep + 1, most)


def reset_signals() -> None:
    """Reset signal handlers and mask to what the system gives a new program; signals that Python ignores stay
    ignored."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
