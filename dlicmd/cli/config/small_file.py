"""Files that an option names, read or written as a whole."""

from __future__ import annotations

import os

from dlicmd.sdk.errors import UsageProblem


def read(option: str, name: str, largest: int) -> bytes:
    """Return the content of a file of at most `largest` bytes (whole MiB). Raises UsageProblem, which names the
    option."""
    try:
        with open(name, "rb") as file:
            content = file.read(largest + 1)
    except OSError as problem:
        raise UsageProblem(f"{option} {name}: {problem.strerror}") from None
    if len(content) > largest:
        raise UsageProblem(f"{option} {name}: the file is larger than {largest >> 20} MiB")
    return content


def check_writable(option: str, name: str) -> None:
    """Raise UsageProblem, which names the option, when `name` evidently cannot be written."""
    folder = os.path.dirname(name) or "."
    if not name or os.path.isdir(name):
        raise UsageProblem(f"{option}: '{name}' is not a file name")
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        raise UsageProblem(f"{option} {name}: {folder} is not a writable folder")


def write(option: str, name: str, content: bytes) -> None:
    """Write `content` to a file, all of it or nothing. Raises UsageProblem, which names the option."""
    temporary = f"{name}.{os.urandom(4).hex()}.tmp"
    try:
        try:
            with open(temporary, "xb") as file:
                file.write(content)
            os.replace(temporary, name)
        except BaseException:
            if os.path.lexists(temporary):
                os.unlink(temporary)
            raise
    except OSError as problem:
        raise UsageProblem(f"{option} {name}: {problem.strerror}") from None
