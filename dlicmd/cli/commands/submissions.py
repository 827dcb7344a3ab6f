"""The commands that submit jobs: `--exec-start`, its dry run, `--demo`, `--exec-verify` and `--exec-again`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from dlicmd.cli.commands.watch import follow_to_end
from dlicmd.cli.console import aside
from dlicmd.cli.mistyped import say_mistyped
from dlicmd.cli.render import emit, emit_value
from dlicmd.cli.session import Session
from dlicmd.cli.show.progress import bar
from dlicmd.cli.show.request import file_part, model_folder, request_headers, request_text
from dlicmd.contract import wire
from dlicmd.contract.argv import CommandLine, join_args, parse_argv
from dlicmd.contract.data_sources import FS, LOCATION, PATHS, TYPE
from dlicmd.contract.exits import Exit
from dlicmd.contract.options import Travel
from dlicmd.contract.secret import masked_sources, masked_words
from dlicmd.contract.sizes import recorded_size, show_size
from dlicmd.sdk import hints
from dlicmd.sdk.data import check_sources, read_json
from dlicmd.sdk.errors import DlicmdError, NeverSchedulable, Unreachable, UsageProblem
from dlicmd.sdk.messages import inert, info
from dlicmd.sdk.objects import Exec
from dlicmd.sdk.paths import samples_dir
from dlicmd.sdk.submission import ALLOW_CPU, META, SOURCE, Submission
from dlicmd.sdk.submit import Upload, prepared, submit

_EXAMPLE = '[{"type": "fs", "location": {"paths": "mnist"}}]'
DEMO_PROGRAM = ("--epochs", "10")
NO_FOLLOW = "--no-follow"


def start(session: Session) -> int:
    """Submit the job that the command line describes, and watch it if the command line says so."""
    if session.line.verb == "run":
        from dlicmd.cli.commands.run import plain_line  # reads the program, which only this verb does
        from dlicmd.sdk.run import usual_workers

        follows = sys.stdout.isatty() and not session.output.is_data
        session.line = plain_line(session.line, follows, lambda: usual_workers(session.client))
    if session.line.flag("--dry-run"):
        _show_request(session, _submission(session))
        return Exit.DONE
    if not _watching(session) and session.line.number("--wait-timeout") is not None:
        info("--wait-timeout has no effect without --wait or --follow")
    submission = _submission(session)

    def tell(upload: Upload) -> None:
        if session.line.verb is not None:  # the id alone is on standard output, so that a script can use it
            where = f" of {os.path.abspath(submission.folder)}" if submission.folder is not None else ""
            if upload.staged is not None:
                info(f"copied the files{where}: {show_size(upload.size)}; the local backend stores them ...")
            elif submission.folder is not None or upload.parts:
                info(f"packed the files{where}: {show_size(upload.size)}")
            return
        say = aside if session.output.is_data else emit
        say(f"Copying files and directories ...\nContent size: {recorded_size(upload.size)}")

    try:
        return _submitted(session, submit(session.client, submission, tell, bar))
    except NeverSchedulable as problem:
        line = hints.repeated(ALLOW_CPU) if ALLOW_CPU in str(problem) else None
        if line is None:
            raise
        raise NeverSchedulable(f"{problem} Without GPUs: {line}", problem.status, problem.code, problem.body) from None


def _submission(session: Session) -> Submission:
    """Return the job that the command line describes. For scripts of the original client, it is not strict."""
    found = submission_of(session.line)
    found.strict = not session.output.is_original
    return found


def demo(session: Session) -> int:
    """Submit a sample to the local backend, and follow it."""
    line = session.line
    if line.flag("--follow") and line.flag(NO_FOLLOW):
        raise UsageProblem("give --follow or --no-follow, not both")
    plain = list(session.words) if line.verb is None else ["--demo", *plain_options(line)]
    words = demo_words([word for word in plain if word != NO_FOLLOW] if line.flag(NO_FOLLOW) else plain, line)
    submission = parse_argv(words)
    submission.verb = line.verb
    with Session(words, submission, session.output) as started:
        started.watched = session.watched
        return start(started)


def verify(session: Session) -> int:
    """Submit an elastic exec again, to verify its first steps."""
    if wire.EXT_VERIFY not in session.client.extensions():
        raise DlicmdError(f"this server cannot verify execs (it lacks the extension '{wire.EXT_VERIFY}'): submit the "
                          "model again with --msd-attr verify=20")
    return _submitted(session, session.client.verify_exec(session.operand, session.line.number("--steps") or 20))


def again(session: Session) -> int:
    """Submit an exec once more, as it was or with changes."""
    line = session.line
    if wire.EXT_AGAIN not in session.client.extensions():
        raise DlicmdError(f"this server cannot run execs again (it lacks the extension '{wire.EXT_AGAIN}'): submit the "
                          "program again")
    if line.before_dashes:
        raise UsageProblem(f"unexpected word '{line.before_dashes[0]}'; write the arguments of the program after --")
    if line.verb is not None and not _watching(session) and not line.flag(NO_FOLLOW) and sys.stdout.isatty():
        line.values["--follow"] = True
    return _submitted(session, session.client.run_again(
        session.operand, name=line.text("--appName"), workers=line.number("--numWorker"),
        arguments=line.after_dashes, data=_other_data(session)))


def _other_data(session: Session) -> list[Any] | None:
    """Return the data sources for an exec that is run again; None for those of the exec. Raises UsageProblem."""
    line = session.line
    text = line.text("--data") if line.verb is not None else None
    if text is None:
        return data_sources(line) or None
    if text.lstrip().startswith(("[", "{")):
        found = read_json(text, "--data")
        sources = found if isinstance(found, list) else [found]
        check_sources(sources, "--data")
        return sources
    path = Path(text).expanduser()
    local = session.client.is_own and path.exists()
    return [{TYPE: FS, LOCATION: {PATHS: str(path.absolute()) if local else text}}]


def submission_of(line: CommandLine) -> Submission:
    """Return the job that a command line describes. Report words that look like misspelled options. Raises
    UsageProblem."""
    say_mistyped(line)
    given = [one for one in line.given if one.option.travel is Travel.ARGS]
    found = Submission(line.operand or "", given, line.after_dashes, line.before_dashes)
    found.sources = data_sources(line)
    return found


def data_sources(line: CommandLine) -> list[Any]:
    """Return the data sources of all `--data-source` options, in order. Report when another option has no effect
    beside them. Raises UsageProblem."""
    sources: list[Any] = []
    for text in line.many(SOURCE):
        found = read_json(text, SOURCE)
        if not isinstance(found, list):
            raise UsageProblem(f"{SOURCE} must be a list, such as {_EXAMPLE}")
        sources += found
    if sources:
        check_sources(sources, SOURCE)
        if line.text(META) is not None:
            info(f"{META} has no effect together with {SOURCE}")
    elif line.many(SOURCE):
        info(f"{SOURCE} names no data and is ignored: DATA_DIR "
             + ("is the data folder of the server" if line.text(META) is None else f"comes from {META}"))
    return sources


def _watching(session: Session) -> bool:
    return session.line.flag("--follow") or session.line.flag("--wait")


def _submitted(session: Session, found: Exec) -> int:
    """Report the submitted exec; follow it or wait for it if the command line says so. Return the exit code."""
    session.watched.update(found)
    # The long options print the recorded names, verbs the names that an exec has.
    name = wire.ID if session.line.verb is not None else wire.EXEC_ID
    ids = {name: found[wire.ID], wire.APP_ID: found[wire.APP_ID]}
    if session.line.verb is not None and not session.output.is_data:
        emit(found[wire.ID])
    elif not (_watching(session) and session.output.is_data):
        emit_value(ids, session.output)
    else:
        info(f"submitted {found[wire.ID]}")
    if _watching(session):
        return follow_to_end(session, str(found[wire.ID]))
    if session.line.verb is not None and (sys.stdout.isatty() or not session.output.is_data):
        info(f"submitted; watch it with: {hints.command('--follow', str(found[wire.ID]))}")
    return Exit.DONE


def plain_options(line: CommandLine) -> list[str]:
    """Return the options of a verb's command line as words of the long grammar, with the words after `--`."""
    options = [word for given in line.given for word in given.words]
    return [*options, *([] if line.after_dashes is None else ["--", *line.after_dashes])]


def demo_words(words: list[str], line: CommandLine) -> list[str]:
    """Return the words of the command line for `--demo`, with the user's additions."""
    if line.text("--rest-host") is not None:
        raise UsageProblem("--demo runs only on the local backend; omit --rest-host")
    sample = samples_dir() / "digits"
    if not sample.is_dir():
        raise DlicmdError(f"--demo trains an installed sample on the local backend: {hints.REMOTE_ALONE}")
    chosen = ["--exec-start", "edtPyTorch"]
    defaults = {
        "--model-dir": str(sample), "--model-main": "train.py", "--numWorker": "2",
        META: f"type=fs,data_path={sample / 'data'}", "--appName": "demo",
    }
    for option, value in defaults.items():
        if option not in line.values and not (option == META and SOURCE in line.values):
            chosen += [option, value]
    chosen += ["--msd-env", "DLI_QUIET=1"]
    if not any(line.flag(name) for name in ("--wait", "--follow", NO_FOLLOW)):
        chosen.append("--follow")
    end = words.index("--") if "--" in words else len(words)
    own = [word for word in words[:end] if word != "--demo"]
    return [*chosen, *own, *(words[end:] if line.program else ["--", *DEMO_PROGRAM])]


def _show_request(session: Session, submission: Submission) -> None:
    """Print the request that a submission would send, without its token and other secrets.

    The command asks the server for its extensions, as a submission does, but never starts the local backend.
    """
    with prepared(submission, lambda: server_extensions(session), bar, is_own=session.client.is_own) as upload:
        found = _described(session, upload)
    if session.output.is_data:
        emit_value(found, session.output)
    else:
        emit(inert(request_text(found)))


def server_extensions(session: Session) -> frozenset[str]:
    """Return the extensions of the server, also while the local backend does not run. Raises Unreachable."""
    try:
        return session.client.extensions()
    except Unreachable:
        if session.line.text("--rest-host") is not None:
            raise
        return wire.EMBEDDED_EXTENSIONS


def _described(session: Session, upload: Upload) -> dict[str, Any]:
    """Return the request as JSON. Its secrets are masked. The lengths are those of the real request."""
    real = session.client.submission(join_args(upload.sent), upload.body(), strict=upload.strict)
    masked = masked_words(upload.sent)
    data = masked_sources({key: masked if key == wire.ARGV else value for key, value in upload.data.items()})
    return {
        "method": real.method,
        "path": session.client.submission(join_args(masked)).target.replace("%2A%2A%2A", "***"),
        "headers": request_headers(real),
        "parts": [file_part(part) for part in upload.parts],
        "data": data or None,
        "folder": None if upload.selection is None else model_folder(upload.selection, upload.staged is not None),
    }
