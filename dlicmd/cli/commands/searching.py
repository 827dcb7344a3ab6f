"""The start of a search, from a file or from options."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from dlicmd.cli.commands.search_watch import follow
from dlicmd.cli.commands.submissions import data_sources, server_extensions
from dlicmd.cli.config import small_file
from dlicmd.cli.console import aside
from dlicmd.cli.render import emit, emit_value
from dlicmd.cli.session import Session
from dlicmd.cli.show.progress import bar
from dlicmd.cli.show.request import file_part, model_folder, request_headers, request_text
from dlicmd.contract import wire
from dlicmd.contract.argv import ArgvError, CommandLine, Given, join_args, split_args
from dlicmd.contract.exits import Exit
from dlicmd.contract.options import BY_NAME, SEARCH_OPTIONS, Travel
from dlicmd.contract.reading import at, number
from dlicmd.contract.secret import masked_words
from dlicmd.contract.sizes import recorded_size, show_size
from dlicmd.contract.verbs import COMMAND
from dlicmd.sdk import package
from dlicmd.sdk.errors import UsageProblem
from dlicmd.sdk.messages import inert, info
from dlicmd.sdk.run import MainProgram, RunPlan, data_option, find_program, run_plan, usual_workers
from dlicmd.sdk.search_space import Short, pairs
from dlicmd.sdk.search_start import SearchUpload, StoredCode, described, name_in, send
from dlicmd.sdk.submission import COMMAND as USER_COMMAND
from dlicmd.sdk.submission import FOLDER, MAIN, Submission
from dlicmd.sdk.submit import Upload
from dlicmd.sdk.transport import FilePart

START = "--hpo-start"
#: The most bytes of a definition.
_LARGEST = 16 << 20
_YAML = (".yaml", ".yml")
#: Keys of a definition with numbers. YAML reads `1e-4` as a text.
_NUMBERS = frozenset({"minDbVal", "maxDbVal", "discreteDbVal", "step", "power"})
_WORKERS = "--numWorker"
#: Options of `dlicmd run` about a program that is not stored.
_OF_RUNS = ("--as", "--data")


def start(session: Session) -> int:
    """Start the search that the command line names, and watch it if the command line says so."""
    line = session.line
    given = [option.name for option in SEARCH_OPTIONS if option.name in line.values]
    if line.verb is not None and not (line.operands or given or line.after_dashes or _describes_a_job(line)):
        from dlicmd.cli.commands.searches import get_all  # `dlicmd search` alone lists the searches

        return get_all(session)
    if line.verb is None and line.operands:
        if given or line.after_dashes is not None:
            raise UsageProblem(f"{START} {line.operand}: the file defines the search; leave out "
                               f"{', '.join(given) or 'the words after --'}")
        made = _of_file(session)
    elif line.verb is None and not given:
        raise ArgvError(f"{START} needs a value: {START} FILE, or {START} --hpo-param NAME=VALUES")
    else:
        made = _of_options(session)
    if line.verb is not None and line.flag("--follow") and line.flag("--no-follow"):
        raise UsageProblem("give --follow or --no-follow, not both")
    with made as found:
        if line.flag("--dry-run"):
            return _show_request(session, found)
        return _started(session, found)


def _describes_a_job(line: CommandLine) -> bool:
    """Return whether a line has options of a job."""
    return any(one.option.travel is Travel.ARGS for one in line.given) or line.flag("--dry-run") or any(
        line.text(name) is not None for name in ("--as", "--data"))


def _started(session: Session, found: SearchUpload) -> int:
    """Send a search, print its name, and watch it if the command line says so."""
    line, output = session.line, session.output
    if line.verb is None:
        say = aside if output.is_data else emit
        say(f"Copying files and directories ...\nContent size: {recorded_size(found.upload.size)}")
    elif found.upload.parts:
        info(f"packed the files: {show_size(found.upload.size)}")
    answer = send(session.client, found, bar)
    follows = line.verb is not None and sys.stdout.isatty() and not (output.is_data or line.flag("--no-follow"))
    watches = follows or line.flag("--follow") or line.flag("--wait")
    if watches and output.is_data:
        info(f"started {name_in(answer)}")
    elif output.is_data:
        emit_value(answer.json(), output)
    elif line.verb is not None:
        emit(name_in(answer))
    else:
        emit(f"Start hypersearch with id: {inert(answer.text()).strip()}")
    if watches:
        line.values.setdefault("--follow", not line.flag("--wait"))
        return follow(session, name_in(answer))
    return Exit.DONE


# The search of a file


@contextmanager
def _of_file(session: Session) -> Iterator[SearchUpload]:
    """Yield the search in a file with the model of the command line. Raises UsageProblem, PackageError."""
    line = session.line
    strict = not session.output.is_original
    folder, main = line.text(FOLDER), line.text(MAIN)
    if not strict:
        _check_as_recorded(session.operand, folder)
    definition = _definition(session.operand)
    if folder is None and main is None:
        if isinstance(at(definition, wire.MODEL_SPEC, "exec") or at(definition, wire.MODEL_SPEC, "definition"), str):
            yield SearchUpload(definition, Upload([], [], {}, [], strict=strict))
            return
        raise UsageProblem(f"{START}: no model folder given; add {FOLDER} DIR")
    with ExitStack() as stack:
        parts: list[FilePart] = []
        stack.callback(package.close_all, parts)
        if folder is None:
            parts.append(package.single_file(str(main), MAIN))
            yield SearchUpload(definition, Upload([], parts, {}, [], strict=strict))
            return
        selection = package.selected(package.check_folder(folder))
        parts.append(package.pack(selection, bar))
        yield SearchUpload(definition, Upload([], parts, {}, [], strict=strict, selection=selection))


def _check_as_recorded(file: str, folder: str | None) -> None:
    """Raise UsageProblem with the recorded sentences unless the file and the folder exist."""
    if not Path(file).is_file():
        raise UsageProblem(f"Invalid parameter for {START}, a file in json format with search definition is required")
    if folder is None or not Path(folder).is_dir():
        raise UsageProblem(f"Invalid parameter for {FOLDER}, a directory with model files in it is required")


def _definition(name: str) -> dict[str, Any]:
    """Return the definition in a JSON or YAML file. Raises UsageProblem when the file holds none."""
    if name.lower().endswith(_YAML):
        from dlicmd.sdk.yaml_file import read  # only for this format

        place = read(Path(name))
        found = None if place is None else _with_numbers(place.json("the definition"))
    else:
        found = _json(name)
    if not isinstance(found, dict):
        raise UsageProblem(f"{START} {name}: the definition of a search must be a JSON object")
    return found


def _json(name: str) -> Any:
    text = small_file.read(START, name, _LARGEST)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as problem:
        where = f" in line {problem.lineno}" if isinstance(problem, json.JSONDecodeError) else ""
        raise UsageProblem(f"{START} {name}: invalid JSON{where}") from None


def _with_numbers(value: Any, key: str = "") -> Any:
    """Return a value of YAML with the texts that are numbers in the keys for numbers."""
    if isinstance(value, dict):
        return {name: _with_numbers(one, name) for name, one in value.items()}
    if isinstance(value, list):
        return [_with_numbers(one, key) for one in value]
    found = number(value) if key in _NUMBERS and isinstance(value, str) else None
    return value if found is None else found


# The search of options


def _of_options(session: Session) -> Any:
    """Return the context of the search that the options describe."""
    line = session.line
    short = Short(
        pairs(line.many("--hpo-param")), line.many("--hpo-metric"), line.number("--hpo-trials"),
        line.number("--hpo-parallel"), line.number("--hpo-minutes"), line.text("--hpo-algorithm"),
        line.text("--hpo-resource"), line.flag("--hpo-resume"), line.number("--hpo-seed"), line.text("--hpo-name"))
    if (code := _stored(session)) is not None:
        words = None if line.after_dashes is None else list(line.after_dashes)
        return nullcontext(code.search(short, words, line.number(_WORKERS)))
    submission = _job(line, lambda: usual_workers(session.client))
    check = None if line.flag("--dry-run") else session.client.check_exec
    return described(submission, short, lambda: server_extensions(session), bar, check)


def _stored(session: Session) -> StoredCode | None:
    """Return the stored code that the options name; None if they name a program. Raises UsageProblem, NoExecYet."""
    line = session.line
    job, name, version = line.text("--hpo-job"), line.text("--hpo-definition"), line.number("--hpo-of-version")
    if job is None and name is None:
        if version is not None:
            raise UsageProblem("--hpo-of-version needs --hpo-definition")
        return None
    names = [one.option.name for one in line.given if one.option.travel is Travel.ARGS or one.option.name in _OF_RUNS]
    odd = [*line.operands, *(name for name in names if name != _WORKERS)]
    if odd:
        option = "--hpo-job" if job is not None else "--hpo-definition"
        raise UsageProblem(f"{option} runs code as it is stored; leave out {', '.join(dict.fromkeys(odd))}")
    if job is not None:
        from dlicmd.cli.commands.newest import named  # few searches name a job

        [job] = named(lambda: session.client, [job]).ids
    return StoredCode(job, name, version)


def _job(line: CommandLine, usual: Callable[[], int]) -> Submission:
    """Return the job of each experiment. Say how its program is run."""
    program = _program(line)
    plan = run_plan(program, line.number(_WORKERS), usual)
    info(plan.sentence)
    given = [one for one in line.given if one.option.travel is Travel.ARGS and one.option.name not in (MAIN, FOLDER)]
    if (data := line.text("--data")) is not None:
        option, text = data_option(data)
        given.append(Given(BY_NAME[option], text))
    given = [*_model(line, plan), *given]
    if plan.workers is not None and _WORKERS not in line.values:
        given.append(Given(BY_NAME[_WORKERS], str(plan.workers)))
    words = [*program.command, *(line.after_dashes or ())]
    return Submission(plan.framework, given, words or None, sources=data_sources(line))


def _program(line: CommandLine) -> MainProgram:
    folder, main, chosen = line.text(FOLDER), line.text(MAIN), line.text("--as")
    if line.verb is not None:
        return find_program(line.operand, chosen, main=main)
    if folder is not None:
        return find_program(str(package.check_folder(folder)), chosen, main=main)
    if main is None:
        raise UsageProblem(f"{START}: no model folder given; add {FOLDER} DIR")
    return find_program(main, chosen)._replace(folder=None)


def _model(line: CommandLine, plan: RunPlan) -> list[Given]:
    """Return the options that name the program and its folder."""
    folder, main = plan.program.folder, plan.program.main
    found = [] if folder is None else [Given(BY_NAME[FOLDER], str(folder))]
    if plan.kind == COMMAND:
        return [*found, Given(BY_NAME[USER_COMMAND], None)]
    return [*found, Given(BY_NAME[MAIN], str(line.text(MAIN)) if folder is None else main)]


# The request without sending it


def _show_request(session: Session, found: SearchUpload) -> int:
    """Print the request of a search without its token and other secrets."""
    real = session.client.search_request(found.body(), strict=found.upload.strict)
    upload = found.upload
    described_request = {
        "method": real.method, "path": real.target, "headers": request_headers(real),
        "parts": [file_part(part) for part in upload.parts], "data": _masked(found.definition),
        "folder": None if upload.selection is None else model_folder(upload.selection, is_staged=False),
    }
    if session.output.is_data:
        emit_value(described_request, session.output)
    else:
        emit(inert(request_text(described_request)))
    return Exit.DONE


def _masked(definition: dict[str, Any]) -> dict[str, Any]:
    args = at(definition, wire.MODEL_SPEC, wire.ARGS)
    if not isinstance(args, str):
        return definition
    return {**definition, wire.MODEL_SPEC: {
        **definition[wire.MODEL_SPEC], wire.ARGS: join_args(masked_words(split_args(args)))}}
