"""Paths of pages, and the sections of the navigation."""

from __future__ import annotations

from dataclasses import dataclass

#: The address of the server alone leads to the overview.
ROOT = "/"
HOME = "/console"
LOGON, LOGOFF, ENTER = f"{HOME}/logon", f"{HOME}/logoff", f"{HOME}/enter"
STATIC, LIVE, DESIGN = f"{HOME}/static", f"{HOME}/live", f"{HOME}/design"
RUNS = f"{HOME}/runs"
#: Pages whose forms contain files.
UPLOADS: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Section:
    """An entry of the navigation. `key` is the key that opens it after `g`."""

    name: str
    path: str
    key: str
    #: Whether only administrators see it.
    admin: bool = False


#: In the order in which pages show them.
SECTIONS = (
    Section("Overview", HOME, "o"),
)


def is_page(path: str) -> bool:
    """Return whether a path belongs to the console."""
    return path in (ROOT, HOME) or path.startswith(f"{HOME}/")


def is_open(path: str) -> bool:
    """Return whether a page needs no session."""
    return path in (ROOT, LOGON, ENTER) or path.startswith(f"{STATIC}/")


def current(path: str) -> Section | None:
    """Return the section of a path."""
    found = [one for one in SECTIONS if path == one.path or (one.path != HOME and path.startswith(f"{one.path}/"))]
    return max(found, key=lambda one: len(one.path), default=None)
