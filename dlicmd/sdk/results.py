"""Fetching the trained model, or one file of an exec: check the content against the server's checksum, and overwrite no
other file unasked.

An interrupted download is kept (see `dlicmd.sdk.partial`), and the next call resumes it.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import tempfile
import unicodedata
from collections.abc import Collection
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from dlicmd.contract import wire
from dlicmd.contract.sizes import show_size
from dlicmd.sdk import hints, partial
from dlicmd.sdk.cancel import sleep
from dlicmd.sdk.errors import ConnectionLost, ResultError, ServerError, Unreachable, UsageProblem
from dlicmd.sdk.exec_calls import ExecCalls
from dlicmd.sdk.messages import Progress, inert, info, silent
from dlicmd.sdk.partial import Label, Partial
from dlicmd.sdk.paths import safe_name, safe_path
from dlicmd.sdk.transport import Answer

#: Seconds before a cut download is resumed: first, second, and every later time. The count restarts when more data has
#: arrived.
RESUME_DELAYS = (0.2, 1.0, 3.0)
PARTIAL, NOT_SATISFIABLE = 206, 416
#: The most names in a message.
MOST_NAMES = 5
#: Git runs programs that the files in such a folder name. The second one is its short name on Windows.
_REPOSITORY = (".git", "git~1")
#: Strong ETags alone: weak ones do not promise the same bytes.
_ETAG = re.compile(r'"[!#-~]{1,200}"')


class Wanted(NamedTuple):
    """A content to fetch: the result of an exec, or its file `path`. `name` is that of the new file; "" for the name
    that the server gives."""

    exec_id: str
    path: str = ""
    name: str = ""

    def ask(self, client: ExecCalls, start: int = 0, etag: str = "") -> Answer:
        """Request the content from byte `start` on."""
        if self.path:
            return client.file(self.exec_id, self.path, start, etag)
        return client.result(self.exec_id, start, etag)

    def file_name(self, answer: Answer) -> str:
        """Return the name of the new file."""
        return self.name or file_name(answer.headers.get("content-disposition", ""), self.exec_id)


def fetch(client: ExecCalls, wanted: Wanted, folder: Path, force: bool, progress: Progress = silent) -> Path:
    """Store the wanted content in `folder`, which is created if necessary, and return the file.

    An unfinished download of this content is resumed. An existing file with exactly the same bytes is not fetched
    again. Raises DlicmdError. After an error a resumable download is kept, unless it is damaged or cannot be stored.
    """
    download = _Download(client, wanted, folder, force, progress)
    try:
        target = download.run()
        download.finish(target)
    except _AlreadyThere as found:
        download.remove()
        return found.target
    except _Useless:
        download.remove()
        raise
    except BaseException as problem:
        kept = download.leave()
        if kept and isinstance(problem, Unreachable):
            raise type(problem)(f"{problem}; {kept}") from None
        if kept and isinstance(problem, KeyboardInterrupt):
            info(kept)
        raise
    return target


def fetch_file(client: ExecCalls, exec_id: str, path: str, to: str | Path, force: bool) -> Path:
    """Store a file that the program of an exec wrote in the folder `to`, and return its path. Raises DlicmdError."""
    name = safe_path(path)
    if name is None:
        raise UsageProblem(f"'{path}' is not a path from the list of files")
    return fetch(client, Wanted(exec_id, path, name.name), check_folder(str(to)), force)


class _Useless(ResultError):
    """The received data can never become the result."""


class _AlreadyThere(Exception):
    """The file to fetch exists already."""

    def __init__(self, target: Path) -> None:
        super().__init__(str(target))
        self.target = target


class _Download:
    """One call of `fetch`."""

    def __init__(self, client: ExecCalls, wanted: Wanted, folder: Path, force: bool, progress: Progress) -> None:
        self._client, self._wanted, self._folder, self._force = client, wanted, folder, force
        self._progress = progress
        self._part = partial.find(folder, wanted.exec_id, wanted.path)

    def run(self) -> Path:
        """Fetch everything, over as many connections as needed, and return the path to store it under."""
        failures, best, answered = 0, self._have(), False
        while True:
            try:
                answer = self._ask()
                target = self._start(answer)
                if answer.status == PARTIAL and not answered:
                    info(f"resuming the download after {show_size(self._have())}")
                answered = True
                self._copy(answer)
                return target
            except Unreachable as problem:
                failures, best = failures + 1 if self._have() <= best else 1, max(best, self._have())
                part = self._part
                if not answered or part is None or not part.label.resumable or failures > self._client.retries:
                    raise
                info(f"{problem}; resuming")
                sleep(RESUME_DELAYS[min(failures, len(RESUME_DELAYS)) - 1])

    def finish(self, target: Path) -> None:
        """Check the whole file, and move it to its place."""
        part = self._part
        assert part is not None
        if part.label.digest and part.label.digest != base64.b64encode(part.sha256()).decode():
            raise _Useless("the result was damaged and is removed: its checksum differs from the server's; try again")
        try:
            part.seal()
            place(part.path, target, self._force)
            part.remove()
        except OSError as problem:
            raise _not_stored(target, problem) from None

    def _have(self) -> int:
        return self._part.size if self._part else 0

    def leave(self) -> str | None:
        """Keep a resumable download and return where it is; remove any other and return None."""
        part = self._part
        if part is None:
            return None
        if not part.label.resumable or not part.size:
            part.remove()
            return None
        part.close()
        return f"{part.path} holds the received part; run the same command again to resume"

    def remove(self) -> None:
        """Remove the download."""
        if self._part is not None:
            self._part.remove()

    def _ask(self) -> Answer:
        part = self._part
        if part is None or not part.size or not part.label.resumable:
            return self._wanted.ask(self._client)
        try:
            answer = self._wanted.ask(self._client, part.size, part.label.etag)
        except ServerError as problem:
            if problem.status != NOT_SATISFIABLE:
                raise
            return self._wanted.ask(self._client)
        if answer.status != PARTIAL or _continues(answer, part):
            return answer
        return self._wanted.ask(self._client)

    def _start(self, answer: Answer) -> Path:
        """Prepare to store the content of the answer, the rest or the whole. Return the path for the whole."""
        name = self._wanted.file_name(answer)
        target = self._folder / name
        plain = target.is_file() and not target.is_symlink()
        if plain and _is_whole(target, answer):
            raise _AlreadyThere(target)
        if os.path.lexists(target) and not (self._force and plain):
            cure = "exists already and is not a regular file; move it" if self._force else (
                f"exists already; {hints.overwriting()}")
            raise ResultError(f"{target} {cure}")
        part = self._part
        if answer.status == PARTIAL:
            if part is None or not _continues(answer, part):
                raise ResultError("the server sent the wrong part of the result; try again")
            return target
        try:
            if part is not None and part.path.name != name + partial.PART:
                self._part = None
                part.remove()
            if self._part is None:
                self._folder.mkdir(parents=True, exist_ok=True)
                self._part = partial.claim(self._folder, name, self._wanted.exec_id)
            self._part.begin(_label(answer, self._wanted))
        except OSError as problem:
            raise _not_stored(target, problem) from None
        return target

    def _copy(self, answer: Answer) -> None:
        """Store the body. Raises ConnectionLost when the body ends too early."""
        part = self._part
        assert part is not None
        whole = part.label.size
        with self._progress("downloading", whole) as shown:
            for chunk in answer.chunks():
                try:
                    part.write(chunk)
                except OSError as problem:
                    raise _not_stored(part.path, problem) from None
                if whole is not None and part.size > whole:
                    raise _Useless(f"the result is damaged: the server sent more than {whole} bytes; try again")
                if shown is not None:
                    shown(part.size)
        if whole is not None and part.size < whole:
            raise ConnectionLost(f"the connection broke after {part.size} of {whole} bytes")


def check_folder(text: str | None) -> Path:
    """Return the folder for a result, by default the current one. It may be missing. Raises UsageProblem when it is not
    a folder."""
    folder = Path() if text is None else Path(text)
    if os.path.lexists(folder) and not folder.is_dir():
        raise UsageProblem(f"{hints.either('--to', 'folder')}: '{text}' is not a folder")
    return folder


def check_hidden(names: Collection[PurePosixPath], folder: Path, exec_id: str) -> None:
    """Raise ResultError for hidden files that the program of an exec chose, and that must not be stored unasked.

    Shells, Git and editors obey hidden files: a folder with other files gets none of them, unless it is named after the
    exec, and a `.git` is stored nowhere.
    """
    own = unpacking(folder, exec_id).name
    is_own = folder.name == safe_name(exec_id) or not folder.is_dir() or {one.name for one in folder.iterdir()} <= {own}
    obeyed = [str(name) for name in names if not os.path.lexists(folder / name) and _is_obeyed(name, folder, is_own)]
    if obeyed:
        shown = inert(", ".join(obeyed[:MOST_NAMES])) + (" ..." if len(obeyed) > MOST_NAMES else "")
        raise ResultError(f"nothing was stored: other programs obey hidden files ({shown}); {hints.hidden()}")


def _is_obeyed(name: PurePosixPath, folder: Path, is_own: bool) -> bool:
    """Return whether a path has a part that programs obey: a `.git`; in a folder of the user that exists, any hidden
    part."""
    def is_among_others(at: int) -> bool:
        return not is_own and folder.joinpath(*name.parts[:at]).is_dir()

    return any(part.lower() in _REPOSITORY or (part.startswith(".") and is_among_others(at))
               for at, part in enumerate(name.parts))


def check_distinct(names: Collection[PurePosixPath], folder: Path) -> None:
    """Raise ResultError when `folder` takes two of the names for the same name, so that one file would replace the
    other."""
    folded: dict[str, PurePosixPath] = {}
    for name in names:
        first = folded.setdefault(unicodedata.normalize("NFC", str(name)).casefold(), name)
        if first != name and folds_names(folder):
            raise ResultError(f"nothing was stored: {folder} cannot hold both {first} and {name}; fetch one of them at "
                              f"a time, and {hints.another_folder()}")


def unpacking(folder: Path, exec_id: str) -> Path:
    """Return the folder in which the result of an exec is unpacked before its files go to `folder`."""
    return folder / f".{safe_name(exec_id) or 'exec'}.unpack"


def folds_names(folder: Path) -> bool:
    """Return whether the file system of a folder takes names that differ in case for the same name."""
    present = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir())
    try:
        with tempfile.NamedTemporaryFile(dir=present, prefix=".dlicmd-") as probe:
            return os.path.lexists(probe.name.replace(".dlicmd-", ".DLICMD-"))
    except OSError:
        return True


def _not_stored(target: Path, problem: OSError) -> ResultError:
    return _Useless(f"cannot store the result as {target}: {problem.strerror}")


def place(part: Path, target: Path, force: bool) -> None:
    """Move `part` to `target`; without `force`, only if no file has appeared there in the meantime.

    Raises ResultError, OSError.
    """
    if force or not hasattr(os, "link"):
        os.replace(part, target)
        return
    try:
        os.link(part, target)
    except FileExistsError:
        raise ResultError(f"{target} exists already; {hints.overwriting()}") from None
    except OSError:
        # A file system without hard links.
        os.replace(part, target)


def file_name(header: str, exec_id: str) -> str:
    """Return the name in a Content-Disposition header, made harmless; a name of our own when there is none."""
    name = ""
    found = re.search(r"(?i);\s*filename\s*=\s*(\"(?:[^\"\\]|\\.)*\"|[^;]*)", header)
    if found:
        text = found[1].strip()
        name = safe_name(re.sub(r"\\(.)", r"\1", text[1:-1]) if text.startswith('"') and len(text) > 1 else text)
    if name.lower().endswith((partial.PART, partial.NOTE)):
        # Such a name would be taken for an unfinished download.
        name += ".zip"
    return name or f"dlpd-model-{safe_name(exec_id) or 'exec'}-result.zip"


def announced_size(answer: Answer) -> int | None:
    """Return the size of the whole result in bytes, as the server announces it, or None."""
    found = re.search(r"(?i);\s*size\s*=\s*\"?([0-9]{1,18})", answer.headers.get("content-disposition", ""))
    text = found[1] if found else answer.headers.get("content-length", "")
    return int(text) if re.fullmatch("[0-9]{1,18}", text) else None


def _label(answer: Answer, wanted: Wanted) -> Label:
    """Return the label of a whole content that the server sends."""
    etag = answer.headers.get("etag", "").strip()
    return Label(wanted.exec_id, etag if _ETAG.fullmatch(etag) else "", _checksum(answer), announced_size(answer),
                 wanted.path)


def _checksum(answer: Answer) -> str:
    """Return the SHA-256 that the server announces, as base64; "" for none."""
    found = re.search(r"sha-256=:([A-Za-z0-9+/=]{1,100}):", answer.headers.get(wire.DIGEST_HEADER.lower(), ""))
    return found[1] if found else ""


def _is_whole(path: Path, answer: Answer) -> bool:
    """Return whether a file has exactly the bytes that the server announces."""
    digest = _checksum(answer)
    if not digest or path.stat().st_size != announced_size(answer):
        return False
    found = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            found.update(chunk)
    return base64.b64encode(found.digest()).decode() == digest


def _continues(answer: Answer, part: Partial) -> bool:
    """Return whether a 206 answer has exactly the bytes that `part` lacks."""
    whole = part.label.size or 0
    return (
        answer.headers.get("content-range", "").strip() == f"bytes {part.size}-{whole - 1}/{whole}"
        and answer.headers.get("etag", "").strip() == part.label.etag
        and _checksum(answer) == part.label.digest
    )
