"""Files that an option names and that are read as a whole."""

from __future__ import annotations

from dlicmd.errors import UsageProblem


def read(option: str, name: str, largest: int) -> bytes:
    """The content of a file of at most `largest` bytes (whole MiB). Raises UsageProblem, which names the option."""
    try:
        with open(name, "rb") as file:
            content = file.read(largest + 1)
    except OSError as problem:
        raise UsageProblem(f"{option} {name}: {problem.strerror}") from None
    if len(content) > largest:
        raise UsageProblem(f"{option} {name}: it is larger than {largest >> 20} MiB")
    return content
