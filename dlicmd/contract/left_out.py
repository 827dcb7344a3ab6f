"""The rules that exclude files of a submitted folder: default patterns, and patterns of its ignore file, in gitignore
syntax. Clients that pack a folder and servers that get one from a browser use the same rules. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

#: Name of the file in a folder with the patterns of its excluded files.
IGNORE_FILE = ".dlicmdignore"
#: Patterns left out of every folder; `!pattern` in the ignore file includes one again.
DEFAULT_IGNORES = (
    ".git/", ".hg/", ".svn/", "__pycache__/", "*.py[co]", ".venv/", ".ipynb_checkpoints/", ".pytest_cache/",
    ".mypy_cache/", ".ruff_cache/", "node_modules/", ".DS_Store", "._*", IGNORE_FILE,
)
#: Private keys and stored passwords, which no program needs from its own folder: left out in the same way, with a
#: warning.
SECRET_IGNORES = (
    ".ssh/", ".gnupg/", ".aws/", ".kube/", ".netrc", ".pgpass", ".git-credentials", "id_rsa", "id_dsa", "id_ecdsa",
    "id_ed25519", "/.dlicmd", "/.dlicmd.*",
)
GIT_IGNORE, INCLUDE = ".gitignore", "#!include:"
#: A folder with this file is a virtual environment, which is left out.
VIRTUAL_ENVIRONMENT = "pyvenv.cfg"


def own_lines(read: Callable[[str], str], name: str = IGNORE_FILE) -> Iterator[tuple[str, str]]:
    """Yield the lines of an ignore file, each with the name of its file. In place of a line `#!include:NAME`, yield the
    lines of that file of the folder. `read` returns the text of a file of the folder. Raises ValueError if the file
    includes itself."""
    for line in read(name).splitlines():
        if line.startswith(INCLUDE) and name == IGNORE_FILE:
            included = line.removeprefix(INCLUDE).strip()
            if included == IGNORE_FILE:
                raise ValueError(f"the line {line!r} includes the file itself")
            yield from own_lines(read, included)
        else:
            yield line, name
