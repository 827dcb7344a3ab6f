"""Fetching the trained model: checked against the server's checksum, and never written over something else."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import secrets
from pathlib import Path

from dlicmd.contract import wire
from dlicmd.errors import ResultError, UsageProblem
from dlicmd.paths import safe_name
from dlicmd.progress import bar
from dlicmd.transport import Answer


def save(answer: Answer, exec_id: str, folder: Path, force: bool) -> Path:
    """Store a result in `folder` under the name that the server gives it; returns the file.

    It is written beside its place as `.part` file and moved there when it is whole. Raises ResultError.
    """
    target = folder / file_name(answer.headers.get("content-disposition", ""), exec_id)
    if os.path.lexists(target) and (not force or not target.is_file() or target.is_symlink()):
        cure = "is in the way; move it" if force else "exists already; overwrite it with --force, or choose --to DIR"
        raise ResultError(f"{target} {cure}")
    part = target.with_name(f"{target.name}.{secrets.token_hex(4)}.part")
    try:
        with open(part, "xb") as file:
            digest, size = hashlib.sha256(), 0
            with bar("downloading", announced_size(answer)) as shown:
                for chunk in answer.chunks():
                    file.write(chunk)
                    digest.update(chunk)
                    size += len(chunk)
                    if shown is not None:
                        shown(size)
            file.flush()
            os.fsync(file.fileno())
        _verify(answer, size, digest.digest())
        _place(part, target, force)
    except OSError as problem:
        raise ResultError(f"cannot store the result as {target}: {problem.strerror}") from None
    finally:
        part.unlink(missing_ok=True)
    return target


def check_folder(text: str | None) -> Path:
    """The folder that `--to` names, or the current one. Raises UsageProblem when it is none."""
    folder = Path() if text is None else Path(text)
    if not folder.is_dir():
        raise UsageProblem(f"--to: '{text}' is not a folder")
    return folder


def _place(part: Path, target: Path, force: bool) -> None:
    """Move `part` to `target`; without `force` only where nothing has appeared in the meantime."""
    if force or not hasattr(os, "link"):
        os.replace(part, target)
        return
    try:
        os.link(part, target)
    except FileExistsError:
        raise ResultError(f"{target} exists already; overwrite it with --force, or choose --to DIR") from None
    except OSError:
        # A file system without hard links.
        os.replace(part, target)


def file_name(header: str, exec_id: str) -> str:
    """The name in a Content-Disposition header, made harmless; one of our own when there is none."""
    name = ""
    found = re.search(r"(?i);\s*filename\s*=\s*(\"(?:[^\"\\]|\\.)*\"|[^;]*)", header)
    if found:
        text = found[1].strip()
        name = safe_name(re.sub(r"\\(.)", r"\1", text[1:-1]) if text.startswith('"') and len(text) > 1 else text)
    return name or f"dlpd-model-{safe_name(exec_id) or 'exec'}-result.zip"


def announced_size(answer: Answer) -> int | None:
    """How many bytes the server says that it sends, or None."""
    found = re.search(r"(?i);\s*size\s*=\s*\"?([0-9]{1,18})", answer.headers.get("content-disposition", ""))
    text = found[1] if found else answer.headers.get("content-length", "")
    return int(text) if re.fullmatch("[0-9]{1,18}", text) else None


def _verify(answer: Answer, size: int, digest: bytes) -> None:
    """Raise ResultError unless size and checksum are what the server announced, where it did."""
    announced = announced_size(answer)
    if announced is not None and announced != size:
        raise ResultError(f"the result is damaged: {size} bytes came, {announced} were announced; try again")
    found = re.search(r"sha-256=:([A-Za-z0-9+/=]+):", answer.headers.get(wire.DIGEST_HEADER.lower(), ""))
    if found and found[1] != base64.b64encode(digest).decode():
        raise ResultError("the result is damaged: its checksum is not the server's; try again")
