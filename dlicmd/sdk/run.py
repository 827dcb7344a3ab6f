"""From a program or a function to a submission, for `Client.run` and for the verb `run`."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from dlicmd.contract import program_kinds, wire
from dlicmd.contract.program_kinds import FRAMEWORKS, USUAL_WORKERS, ProgramKind
from dlicmd.contract.verbs import COMMAND, DDP, ELASTIC, SINGLE
from dlicmd.sdk import hints
from dlicmd.sdk.errors import Unreachable, UsageProblem
from dlicmd.sdk.exec_calls import ExecCalls
from dlicmd.sdk.launch import find_main, kind_of
from dlicmd.sdk.messages import debug, inert
from dlicmd.sdk.objects import Exec, SlotView
from dlicmd.sdk.selection import select
from dlicmd.sdk.submission import MAIN, META, SOURCE, Submission, SubmitOptions
from dlicmd.sdk.submit import submit

DEVICES = "--workerDeviceNum"


class MainProgram(NamedTuple):
    """What to run: its kind with the reason, the folder to pack, and the program in it, or the words of a command,
    which may need no folder."""

    kind: ProgramKind
    folder: Path | None
    main: str
    command: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        """The name of the program in messages."""
        return inert(self.main or (self.command[0] if self.command else COMMAND))

    @property
    def name(self) -> str:
        """The name of the job: the name of the program without its suffix."""
        return Path(self.main or (self.command[0] if self.command else "")).stem or COMMAND


class RunPlan(NamedTuple):
    """How to run a program: its kind, the number of workers to request, and the number of devices of a command, which
    is 1 process. None requests the default."""

    program: MainProgram
    kind: str
    workers: int | None
    devices: int | None = None

    @property
    def framework(self) -> str:
        """The framework of the submission."""
        return FRAMEWORKS[self.kind]

    @property
    def sentence(self) -> str:
        """The line that says how the program runs, why, and how to change that."""
        program, workers = self.program, self.workers or 1
        if self.kind == COMMAND:
            how, other = "a command" + (f" with {self.devices} devices" if self.devices else ""), ""
            if program.folder is None:
                other = f"; no files of {inert(os.getcwd())} are sent"
        elif self.kind == SINGLE:
            several = "--workers N" if program.kind.needs_workers else f"--as {DDP}"
            how, other = "1 process", f"; for several processes: {several}"
            if program.kind.starts_processes:
                other = f"; for several devices: {DEVICES} N"
        else:
            how = f"elastic training with up to {workers} worker{'s' * (workers > 1)}" if self.kind == ELASTIC else (
                f"distributed training with {workers} process{'es' * (workers > 1)}")
            other = f"; for 1 process: --as {SINGLE}"
        return f"{program.shown} runs as {how}: it {program.kind.reason}{other}"


class SlotCalls(Protocol):
    """The calls of a client about slots."""

    def extensions(self) -> frozenset[str]: ...

    def slot_view(self) -> SlotView: ...


def usual_workers(client: SlotCalls) -> int:
    """Return the number of workers of a program that can use several: 2, or 1 if the server has a single slot."""
    try:
        if wire.EXT_SLOT_VIEW not in client.extensions():
            return USUAL_WORKERS
        return program_kinds.usual_workers(len(client.slot_view().slots))
    except Unreachable:
        return USUAL_WORKERS  # the submission reports it; a dry run needs no server


def run_plan(program: MainProgram, workers: int | None, usual: Callable[[], int]) -> RunPlan:
    """Return how to run a program on `workers` workers. For None, `usual` returns the number for a program that can use
    several. Raises UsageProblem when several workers would all do the same work."""
    kind = program.kind.kind
    if program.kind.needs_workers and (workers or 1) == 1:
        kind = SINGLE
    if kind == COMMAND:
        # A command runs once: its 1 process gets all devices.
        return RunPlan(program, kind, None, workers if workers is not None and workers > 1 else None)
    if kind == SINGLE and (workers or 1) > 1:
        several = hints.either(f"--as {DDP}", f"kind='{DDP}'")
        devices = hints.either(f"{DEVICES} {workers}", f"options={{'{DEVICES.strip('-')}': {workers}}}")
        raise UsageProblem(
            f"{program.shown} {program.kind.reason}, so {workers} workers would all do the same work. Omit the number "
            f"of workers, or use {several} if the program divides its work by RANK. For {workers} devices in 1 "
            f"process: {devices}")
    return RunPlan(program, kind, usual() if kind in (ELASTIC, DDP) and workers is None else workers)


def find_program(
    named: str | None, chosen: str | None, words: Sequence[str] | None = None, main: str | None = None,
) -> MainProgram:
    """Return the program that a user names: a file, the main program of a folder, or the command in `words`. Without a
    name, the current folder. `chosen` is the kind, if the user gives one. Raises UsageProblem."""
    if named is None and words and chosen in (None, COMMAND) and main is None:
        kind = ProgramKind(COMMAND, "comes after --")
        # A command such as pip needs no files.
        folder = None if _has_more(Path()) or not select(Path()).files else Path()
        return MainProgram(kind, folder, "", tuple(words))
    path = Path(os.path.expanduser(named or "."))
    if path.is_dir():
        folder = _packable(path, named=named is not None)
        if chosen == COMMAND:
            if not words:
                raise UsageProblem(hints.either(
                    f"--as {COMMAND}: give the command after --, as in: dlicmd run {path} -- make train",
                    f"kind='{COMMAND}': give the words of the command as arguments, such as ['make', 'train']"))
            return MainProgram(ProgramKind(COMMAND, ""), folder, "")
        main = main or find_main(folder)
        return MainProgram(_kind(folder / main, chosen), folder, main)
    if not path.is_file():
        raise UsageProblem(_missing(path, named or ""))
    if path.suffix.lower() in (".yaml", ".yml"):
        raise UsageProblem(f"{path} is a job file, not a program: dlicmd run -f {path}")
    if path.suffix == ".ipynb":
        raise UsageProblem(f"{path} is a notebook; convert it to a script first, for example with jupyter nbconvert")
    kind, folder = _kind(path, chosen), _packable(path.parent, named=False)
    if kind.kind != COMMAND:
        return MainProgram(kind, folder, path.name)
    return MainProgram(kind, folder, path.name, _command_of(path))


def _kind(file: Path, chosen: str | None) -> ProgramKind:
    return kind_of(file) if chosen is None else ProgramKind(chosen, f"runs as '{chosen}'")


def _command_of(file: Path) -> tuple[str, ...]:
    """Return the command that runs a file in its folder. Raises UsageProblem for a file that no program can run."""
    if file.suffix == ".py":
        return ("python", file.name)
    is_script = file.suffix in (".sh", ".bash")
    if os.access(file, os.X_OK):
        # As a shell, run a text without a first line that names its program: the system cannot.
        return (f"./{file.name}",) if _names_its_program(file) else ("bash" if is_script else "sh", file.name)
    if is_script:
        return ("bash", file.name)
    command = hints.either("give the command: dlicmd run -- COMMAND", f"run the folder with kind='{COMMAND}'")
    raise UsageProblem(f"{file} is neither a Python program nor executable; chmod +x {shlex.quote(str(file))}, or "
                       f"{command}")


def _names_its_program(file: Path) -> bool:
    """Return whether the system can start a file: it is not text, or its first line names the program that runs it."""
    try:
        with file.open("rb") as opened:
            head = opened.read(512)
    except OSError:
        return True  # the packing reports it
    return head.startswith(b"#!") or b"\0" in head


def _missing(path: Path, named: str) -> str:
    """Return the message about a file that does not exist, with the file that may be meant. `named` is its name as
    given."""
    import difflib  # only for wrong names

    try:
        names = os.listdir(path.parent)
    except OSError:
        names = []
    near = difflib.get_close_matches(path.name, names, n=1, cutoff=0.6)
    text = f"there is no file or folder '{path}'"
    if near:
        return f"{text}; did you mean{hints.replaced(named, str(path.parent / near[0]))}"
    if "/" not in named and shutil.which(named) and (command := hints.as_command(named)):
        return f"{text}; to run the command {inert(named)}: {command}"
    folder = inert(os.path.abspath(path.parent))
    if not os.path.isdir(folder):
        return f"{text}, and no folder {folder}"
    programs = sorted(name for name in names if name.endswith(".py"))
    shown = inert(", ".join(programs[:10])) + (", ..." if len(programs) > 10 else "")
    return f"{text}; the Python files in {folder} are {shown}" if programs else f"{text}; {folder} has no Python file"


def _packable(folder: Path, named: bool) -> Path:
    """Return the folder to pack. Raises UsageProblem for a folder with much more than a program, such as a home folder,
    unless the user named the folder itself."""
    if not named and _has_more(folder):
        naming = hints.either(f": dlicmd run {folder.absolute()} {MAIN} FILE", " in place of the program")
        raise UsageProblem(f"dlicmd packs the folder of the program, and {folder.resolve()} contains more than a "
                           f"program; move the program to a folder of its own, or name the folder{naming}")
    return folder


def _has_more(folder: Path) -> bool:
    """Return whether a folder is the home folder, one above it, or the one for temporary files."""
    home = Path.home().resolve()
    return folder.resolve() in (home, *home.parents, Path(tempfile.gettempdir()).resolve())


def data_option(text: str) -> tuple[str, str]:
    """Return the option for the data of a job, and its value: a file or folder of this machine, JSON, or a value of
    --cs-datastore-meta. Raises UsageProblem."""
    local = os.path.expanduser(text)
    if text.lstrip().startswith(("[", "{")):
        return SOURCE, text if text.lstrip().startswith("[") else f"[{text}]"
    if os.path.exists(local):
        if "," in local:
            raise UsageProblem(f"{hints.option('--data')}: '{text}' has a comma in its name; use "
                               f"{hints.either(SOURCE, 'a list of data sources')}")
        here = local if os.path.isabs(local) or local.startswith(("./", "../")) else f"./{local}"
        return META, f"type=fs,data_path={here}"
    return META, text if "=" in text else f"type=fs,data_path={text}"


def run(
    client: ExecCalls, program: str | os.PathLike[str] | Callable[[], Any], *, arguments: Sequence[object],
    workers: int | None, gpus: int | None, kind: str | None,
    data: str | os.PathLike[str] | Sequence[Mapping[str, Any]] | None, options: SubmitOptions,
    usual: Callable[[], int],
) -> Exec:
    """Submit a program or a function, see `Client.run`. `usual`: see `run_plan`. Raises DlicmdError."""
    if kind is not None and kind not in FRAMEWORKS:
        raise UsageProblem(f"kind must be one of {', '.join(FRAMEWORKS)}, not '{kind}'")
    if isinstance(arguments, str | bytes):
        raise UsageProblem("arguments must be a list, such as ['--epochs', '2'], not a text")
    if gpus is not None and workers not in (None, gpus):
        raise UsageProblem(f"workers={workers} and gpus={gpus} differ: each worker uses 1 GPU, so give gpus alone")
    given: SubmitOptions = {**options}
    if gpus is not None:
        workers, given["workerDeviceType"] = gpus, "gpu"
    if data is not None:
        _give_data(given, data)
    if callable(program):
        return _run_function(client, program, arguments, workers, kind, given)
    words = [str(word) for word in arguments]
    plan = run_plan(find_program(os.fspath(program), kind, words), workers, usual)
    debug(plan.sentence)
    given.setdefault("appName", plan.program.name)
    if plan.program.folder is not None:
        given["model-dir"] = plan.program.folder
    _give_workers(given, plan.workers, plan.devices)
    if plan.kind == COMMAND:
        given["user-cmd"] = True
    else:
        given["model-main"] = plan.program.main
    return submit(client, Submission.of(plan.framework, given, [*plan.program.command, *words]))


def _run_function(  # noqa: PLR0917
    client: ExecCalls, called: Callable[[], Any], arguments: Sequence[object], workers: int | None, kind: str | None,
    given: SubmitOptions,
) -> Exec:
    from dlicmd.sdk import function  # pickles

    if arguments:
        raise UsageProblem("a function takes no program arguments; use functools.partial(FUNCTION, ARGUMENT)")
    if kind not in (None, SINGLE, DDP):
        raise UsageProblem(f"kind '{kind}': a function runs as '{SINGLE}' or '{DDP}'")
    # Without a kind, a function runs once: its 1 process gets all devices.
    _give_workers(given, *((workers, None) if kind == DDP else (None, workers)))
    given.setdefault("appName", function.name_of(called))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "function")
        folder.mkdir()
        function.write_call(called, folder)
        given["model-dir"], given["model-main"] = folder, function.PROGRAM
        return submit(client, Submission.of(FRAMEWORKS[kind or SINGLE], given))


def _give_workers(given: SubmitOptions, workers: int | None, devices: int | None) -> None:
    if workers is not None:
        given["numWorker"] = workers
    if devices is not None:
        given["workerDeviceNum"] = devices


def _give_data(given: SubmitOptions, data: str | os.PathLike[str] | Sequence[Mapping[str, Any]]) -> None:
    if not isinstance(data, str | os.PathLike):
        given["data-source"] = data
        return
    option, text = data_option(os.fspath(data))
    if option == META:
        given["cs-datastore-meta"] = text
        return
    try:
        given["data-source"] = json.loads(text)
    except (ValueError, RecursionError):
        raise UsageProblem("data: the text is not JSON") from None
