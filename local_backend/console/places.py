"""Paths of pages, and the sections of the navigation."""

from __future__ import annotations

from dataclasses import dataclass

#: The address of the server alone leads to the overview.
ROOT = "/"
HOME = "/console"
LOGON, LOGOFF, ENTER = f"{HOME}/logon", f"{HOME}/logoff", f"{HOME}/enter"
STATIC, LIVE, DESIGN = f"{HOME}/static", f"{HOME}/live", f"{HOME}/design"
RUNS, EXAMPLE = f"{HOME}/runs", f"{HOME}/example"
ADMIN = f"{HOME}/admin"
ADMIN_PLANS, ADMIN_USAGE, ADMIN_USERS = f"{ADMIN}/plans", f"{ADMIN}/usage", f"{ADMIN}/users"
ADMIN_TOKENS, ADMIN_AUDIT, ADMIN_HEALTH = f"{ADMIN}/tokens", f"{ADMIN}/audit", f"{ADMIN}/health"
ADMIN_FINDINGS = f"{ADMIN_HEALTH}/findings"
DATA = f"{HOME}/data"
DATA_FILES, DATA_PREVIEW, DATA_PICTURE = f"{DATA}/files", f"{DATA}/preview", f"{DATA}/picture"
DATA_UPLOAD = f"{DATA}/upload"
CONNECTION_NEW, CONNECTION_EDIT = f"{DATA}/connections/new", f"{DATA}/connections/edit"
CONNECTION_TEST, CONNECTION_REMOVE = f"{DATA}/connections/test", f"{DATA}/connections/remove"
#: No search has the name `-/new`.
NEW_SEARCH = f"{HOME}/searches/-/new"
SEARCHES, SERVICES = f"{HOME}/searches", f"{HOME}/services"
#: Models of the model store. No model has the name `-`.
SAVED = f"{SERVICES}/-/saved"
#: Maximum bytes of the form that tries a model.
LARGEST_TRIAL = 8 << 20
EXPERIMENTS = f"{HOME}/experiments"
NEW_EXPERIMENT, EXPERIMENT_FORM = f"{EXPERIMENTS}/new", f"{EXPERIMENTS}/-/form"
DEFINITIONS, HARDWARE = f"{EXPERIMENTS}/-/definitions", f"{EXPERIMENTS}/-/hardware"
#: Pages whose forms contain files.
UPLOADS: frozenset[str] = frozenset({DEFINITIONS, DATA_UPLOAD})


@dataclass(frozen=True)
class NavigationEntry:
    """An entry of the navigation. `key` is the key that opens it after `g`."""

    name: str
    path: str
    key: str
    #: Whether only administrators see it.
    admin: bool = False


#: In the order in which pages show them.
SECTIONS = (
    NavigationEntry("Overview", HOME, "o"),
    NavigationEntry("Runs", RUNS, "r"),
    NavigationEntry("Experiments", EXPERIMENTS, "e"),
    NavigationEntry("Searches", SEARCHES, "s"),
    NavigationEntry("Services", SERVICES, "v"),
    NavigationEntry("Data", DATA, "d"),
    NavigationEntry("Administration", ADMIN, "a", admin=True),
)


def is_page(path: str) -> bool:
    """Return whether a path belongs to the console."""
    return path in (ROOT, HOME) or path.startswith(f"{HOME}/")


def is_trial(path: str) -> bool:
    """Return whether a path takes the form that tries a model."""
    return path.startswith(f"{SERVICES}/") and path.endswith("/try")


def is_open(path: str) -> bool:
    """Return whether a page needs no session."""
    return path in (ROOT, LOGON, ENTER) or path.startswith(f"{STATIC}/")


def current(path: str) -> NavigationEntry | None:
    """Return the section of a path."""
    found = [one for one in SECTIONS if path == one.path or (one.path != HOME and path.startswith(f"{one.path}/"))]
    return max(found, key=lambda one: len(one.path), default=None)
