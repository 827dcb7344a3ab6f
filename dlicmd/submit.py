"""`--exec-start` and `--demo`: turn a command line and a model folder into one request."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from dlicmd import hints, package
from dlicmd.console import aside, info, warn
from dlicmd.contract import wire
from dlicmd.contract.argv import CommandLine, join_args, parse_argv, replace_value
from dlicmd.contract.options import OPTIONS, Local
from dlicmd.contract.sizes import show_size
from dlicmd.data_paths import change_meta, change_source, local_path, named_in, names_place, nearer
from dlicmd.data_sources import META, OPTION, data_sources
from dlicmd.errors import ConnectionLost, DlicmdError, ServerError, UsageProblem
from dlicmd.paths import samples_dir
from dlicmd.render import emit
from dlicmd.rest.body import FilePart, Multipart
from dlicmd.session import Session
from dlicmd.show.progress import bar

#: Options that name a file to upload beside the model.
EXTRA_FILES = ("--conda-env-yaml", "--conda-package")
_NEAR = 0.85
DEMO_PROGRAM = ("--epochs", "10")


class Upload(NamedTuple):
    """The content of a submission: the words of `args`, the files, and the `data` part. `paths` are the paths of data,
    if they may refer to this machine."""

    sent: list[str]
    parts: list[FilePart]
    data: dict[str, Any]
    paths: list[str]

    def body(self, progress: Callable[[int], None] | None = None) -> Multipart | str | None:
        """Return the body that `Client.start_exec` takes."""
        text = json.dumps(self.data) if self.data else None
        if not self.parts:
            return text
        return Multipart(self.parts, [] if text is None else [(wire.PART_DATA, text)], progress)


def submit(session: Session, say: Callable[[str], None] | None = None) -> dict[str, Any]:
    """Submit the job that the command line describes, and return the exec in the answer. Report the upload with `say`,
    if given."""
    say = say or (aside if session.output.is_data else emit)
    with prepared(session, _asked) as upload:
        say("Copying files and directories ...")
        if upload.parts:
            say(f"Content size: {show_size(sum(part.size for part in upload.parts))}")
        with nearer(upload.paths):
            found = _send(session, upload)
    if not all(isinstance(found.get(key), str) for key in (wire.ID, wire.APP_ID)):
        raise ServerError("the server's answer to the submission contains no id and appId", 200)
    if isinstance(found.get(wire.WARNING), str):
        info(found[wire.WARNING])
    return found


def _asked(session: Session) -> frozenset[str]:
    return session.client.extensions()


@contextmanager
def prepared(session: Session, ask: Callable[[Session], frozenset[str]]) -> Iterator[Upload]:
    """Yield the submission, with open files; `ask` returns the extensions of the server.

    All checks that are possible here precede the first request to the server. All files are packed before anything is
    sent.
    """
    line = session.line
    say_mistyped(line)
    _check(line)
    sources = data_sources(line)
    with ExitStack() as stack:
        parts: list[FilePart] = []
        stack.callback(package.close_all, parts)
        _pack(line, parts)
        extensions = ask(session)
        if extensions:
            _mind_the_local_backend(line)
        yield _upload(line, parts, sources, extensions)


def _upload(line: CommandLine, parts: list[FilePart], sources: list[Any], extensions: frozenset[str]) -> Upload:
    """Return the submission for a server with these extensions."""
    sent, paths = list(line.sent), named_in(line.text(META) or "", sources)
    if wire.EXT_LOCAL_PATHS in extensions:
        sent = replace_value(sent, META, lambda text: change_meta(text, local_path))
        sources = [change_source(source, local_path) for source in sources]
    else:
        _mind_places(paths)
        paths = []
    folder = line.text("--model-dir")
    if folder is not None:
        base = package.base_name(Path(folder))
        sent = replace_value(sent, "--model-dir", lambda _: base)
    data: dict[str, Any] = {wire.DATA_SOURCE: sources} if sources else {}
    if wire.EXT_ARGV in extensions:
        data[wire.ARGV] = sent
    return Upload(sent, parts, data, paths)


def _mind_places(paths: list[str]) -> None:
    """Warn about data paths that seem to refer to this machine, when the server only looks in its own data
    directory."""
    if places := [path for path in paths if names_place(path)]:
        warn(f"data path {', '.join(places)}: paths refer to the data directory of the server, not to this machine; "
             "give the path below that directory")


def _check(line: CommandLine) -> None:
    """Raise UsageProblem unless the command line names something to run."""
    if line.flag("--user-cmd"):
        if not line.after_dashes or not line.after_dashes[0].strip():
            raise UsageProblem("--user-cmd: give the command after --, as in: --user-cmd -- torchrun train.py")
    elif not any(line.text(name) is not None for name in ("--model-main", "--model-dir", "--pbmodel-name")):
        raise UsageProblem("no program given; add --model-main FILE, and --model-dir DIR for a whole folder")
    for name in ("--model-main", "--model-dir", "--pbmodel-name"):
        if line.text(name) == "":
            raise UsageProblem(f"{name}: the name is empty")


def _pack(line: CommandLine, parts: list[FilePart]) -> None:
    """Fill `parts` with the files that the command line names."""
    main, folder = line.text("--model-main"), line.text("--model-dir")
    if folder is not None:
        checked = package.check_folder(folder)
        program = None if main is None else package.find_program(checked, main)
        with bar("packing") as shown:
            parts.append(package.pack(checked, program, shown))
    elif main is not None:
        parts.append(package.single_file(main, "--model-main"))
    for option in EXTRA_FILES:
        extra = line.text(option)
        if extra is not None:
            parts.append(package.single_file(extra, option))


def _mind_the_local_backend(line: CommandLine) -> None:
    """Report once which options have no effect on the local backend. Raise DlicmdError when the submission requires a
    prebuilt model."""
    if line.text("--pbmodel-name") is not None:
        raise DlicmdError("--pbmodel-name: the local backend has no prebuilt models; give your own with --model-main "
                          "or --model-dir")
    ignored = [option.name for option in OPTIONS if option.local is Local.IGNORED and option.name in line.values]
    if ignored:
        info(f"the local backend ignores {', '.join(ignored)}")


def _send(session: Session, upload: Upload) -> dict[str, Any]:
    args = join_args(upload.sent)
    try:
        if not upload.parts:
            return session.client.start_exec(args, upload.body())
        with bar("uploading", sum(part.size for part in upload.parts)) as shown:
            return session.client.start_exec(args, upload.body(shown))
    except ConnectionLost as problem:
        raise ConnectionLost(f"{problem}; {_in_doubt()}") from problem
    except KeyboardInterrupt:
        info(_in_doubt())
        raise


def _in_doubt() -> str:
    return f"to check whether the server accepted the exec: {hints.command('--exec-get-all')}"


def say_mistyped(line: CommandLine) -> None:
    """Report the words that `mistyped` returns."""
    for word, meant in mistyped(line):
        info(f"unknown option {word}: passed to your program; did you mean {meant}?")


def mistyped(line: CommandLine) -> list[tuple[str, str]]:
    """Return the words before any `--` that look like an option of ours which is not given otherwise, with that option.

    The comparison ignores leading dashes, and it is strict: `--output-dir` and `--num-workers` are options of
    programs. Another spelling of an option, or its letters in another order, is similar however short the option is.
    """

    known = {option.name.lstrip("-"): option.name for option in OPTIONS
             if not option.hidden and option.local in (Local.ACTS, Local.CLIENT)
             and (option.multiple or option.name not in line.values)}
    found = []
    for word in line.program[: len(line.program) - len(line.after_dashes or ())]:
        name = word.partition("=")[0]
        near = _near(name[2:], known) if name.startswith("--") else None
        found += [(name, known[near])] if near else []
    return found


def _near(name: str, known: Collection[str]) -> str | None:
    """Return the name that may be meant, or None."""
    import difflib

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
    """Return the command line that `--demo` with the user's own words stands for."""
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
        if option not in line.values and not (option == META and OPTION in line.values):
            chosen += [option, value]
    if not line.flag("--wait") and not line.flag("--follow"):
        chosen.append("--follow")
    end = words.index("--") if "--" in words else len(words)
    own = [word for word in words[:end] if word != "--demo"]
    return [*chosen, *own, *(words[end:] if line.program else ["--", *DEMO_PROGRAM])]


def demo_session(session: Session) -> Session:
    """Return the session of the `--exec-start` that `--demo` stands for."""
    words = demo_words(list(session.words), session.line)
    return Session(words, parse_argv(words), session.output)
