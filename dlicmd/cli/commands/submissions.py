"""The commands that submit jobs: `--exec-start`, its dry run, `--demo` and `--exec-verify`."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Collection
from typing import Any

from dlicmd.cli.commands.watch import follow_to_end
from dlicmd.cli.console import aside
from dlicmd.cli.render import emit, emit_value
from dlicmd.cli.session import Session
from dlicmd.cli.show.progress import bar
from dlicmd.contract import wire
from dlicmd.contract.argv import CommandLine, join_args, parse_argv
from dlicmd.contract.exits import Exit
from dlicmd.contract.options import OPTIONS, Local, Travel
from dlicmd.contract.secret import masked_sources, masked_words
from dlicmd.sdk import hints
from dlicmd.sdk.data import check_sources, read_json
from dlicmd.sdk.errors import DlicmdError, Unreachable, UsageProblem
from dlicmd.sdk.messages import inert, info
from dlicmd.sdk.objects import Exec
from dlicmd.sdk.paths import samples_dir
from dlicmd.sdk.submission import META, SOURCE, Submission
from dlicmd.sdk.submit import Upload, prepared, submit
from dlicmd.sdk.transport import FilePart, Request

_EXAMPLE = '[{"type": "fs", "location": {"paths": "mnist"}}]'
#: Similarity from which a word may be a misspelled option.
_NEAR = 0.85
DEMO_PROGRAM = ("--epochs", "10")
_CHUNK = 2**20
TOKEN_HEADER = "Authorization"


def start(session: Session) -> int:
    """Submit the job that the command line describes, and watch it if the command line says so."""
    if session.line.flag("--dry-run"):
        _show_request(session, _submission(session))
        return Exit.DONE
    if not _watching(session) and session.line.number("--wait-timeout") is not None:
        info("--wait-timeout has no effect without --wait or --follow")
    say = aside if session.output.is_data else emit
    return _submitted(session, submit(session.client, _submission(session), say, bar))


def _submission(session: Session) -> Submission:
    """Return the job that the command line describes. For scripts of the original client, it is not strict."""
    found = submission_of(session.line)
    found.strict = not session.output.is_original
    return found


def demo(session: Session) -> int:
    """Submit a sample to the local backend, and follow it."""
    words = demo_words(list(session.words), session.line)
    with Session(words, parse_argv(words), session.output) as started:
        started.watched = session.watched
        return start(started)


def verify(session: Session) -> int:
    """Submit an elastic exec again, to verify its first steps."""
    if wire.EXT_VERIFY not in session.client.extensions():
        raise DlicmdError(f"this server cannot verify execs (it lacks the extension '{wire.EXT_VERIFY}'): submit the "
                          "model again with --msd-attr verify=20")
    return _submitted(session, session.client.verify_exec(session.operand, session.line.number("--steps") or 20))


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
    ids = {"execId": found[wire.ID], "appId": found[wire.APP_ID]}
    if not (_watching(session) and session.output.is_data):
        emit_value(ids, session.output)
    else:
        info(f"submitted {found[wire.ID]}")
    return follow_to_end(session, str(found[wire.ID])) if _watching(session) else Exit.DONE


def say_mistyped(line: CommandLine) -> None:
    """Report the words that `mistyped` returns."""
    for word, meant in mistyped(line):
        info(f"unknown option {word}: passed to your program; did you mean {meant}?")


def mistyped(line: CommandLine) -> list[tuple[str, str]]:
    """Return the words before any `--` that look like a misspelled option, each with the option that may be meant.

    The comparison ignores leading dashes, and it is strict: `--output-dir` and `--num-workers` are options of
    programs. Another spelling of an option, or its letters in another order, is similar however short the option is.
    """
    known = {option.name.lstrip("-"): option.name for option in OPTIONS
             if not option.hidden and option.local in (Local.ACTS, Local.CLIENT)
             and (option.multiple or option.name not in line.values)}
    found = []
    for word in line.before_dashes:
        name = word.partition("=")[0]
        near = _near(name[2:], known) if name.startswith("--") else None
        found += [(name, known[near])] if near else []
    return found


def _near(name: str, known: Collection[str]) -> str | None:
    """Return the name that may be meant, or None."""
    plain = _plain(name)
    near = (
        [one for one in known if _plain(one) == plain]
        or [one for one in known if sorted(_plain(one)) == sorted(plain)]
        or difflib.get_close_matches(name, known, n=1, cutoff=_NEAR)
    )
    return near[0] if near else None


def _plain(name: str) -> str:
    """Return a name in lower case, without the characters that separate its words."""
    return name.replace("-", "").replace("_", "").lower()


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
        META: f"type=fs,data_path={sample / 'data'}",
    }
    for option, value in defaults.items():
        if option not in line.values and not (option == META and SOURCE in line.values):
            chosen += [option, value]
    if not line.flag("--wait") and not line.flag("--follow"):
        chosen.append("--follow")
    end = words.index("--") if "--" in words else len(words)
    own = [word for word in words[:end] if word != "--demo"]
    return [*chosen, *own, *(words[end:] if line.program else ["--", *DEMO_PROGRAM])]


def _show_request(session: Session, submission: Submission) -> None:
    """Print the request that a submission would send, without its token and other secrets.

    The command asks the server for its extensions, as a submission does, but never starts the local backend.
    """
    with prepared(submission, lambda: _extensions(session), bar) as upload:
        found = _described(session, upload)
    if session.output.is_data:
        emit_value(found, session.output)
    else:
        emit(inert(_text(found)))


def _extensions(session: Session) -> frozenset[str]:
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
        "headers": _headers(real),
        "parts": [_part(part) for part in upload.parts],
        "data": data or None,
    }


def _headers(request: Request) -> dict[str, str]:
    length = {"Content-Length": str(len(request.body or b""))}
    return {name: value for name, value in {**request.headers, **length}.items() if name != TOKEN_HEADER}


def _part(part: FilePart) -> dict[str, Any]:
    """Return the description of a file of the upload, with its SHA-256 in hexadecimal digits."""
    digest = hashlib.sha256()
    while chunk := part.file.read(_CHUNK):
        digest.update(chunk)
    return {"name": part.name, "filename": part.filename, "size": part.size, "sha256": digest.hexdigest()}


def _text(found: dict[str, Any]) -> str:
    lines = [f"{found['method']} {found['path']}", *(f"{name}: {value}" for name, value in found["headers"].items())]
    for part in found["parts"]:
        lines += ["", f"part {part['name']}: {part['filename']}, {part['size']} bytes, sha256 {part['sha256']}"]
    if found["data"] is not None:
        lines += ["", f"part {wire.PART_DATA}: {json.dumps(found['data'], indent=2)}"]
    return "\n".join(lines)
