"""All kinds of connections, found by the entry points of the group `dlicmd.data_kinds`: those of this package and those
of other packages.

An entry point has the name of its kind and refers to a `Kind`. A module is imported when its kind is needed.
"""

from __future__ import annotations

import difflib
import logging
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from local_backend.data.errors import DataError, KindUnusable
from local_backend.data.kind import Kind

#: Entry point group, and the package whose kinds no other package can replace.
GROUP, _OURS = "dlicmd.data_kinds", "dlicmd"
#: What to do about a kind of another package that cannot be used.
CURE = "uninstall its package, or install another version of it"
_MAKERS = frozenset({"amazon", "apache", "google", "ibm", "microsoft"})
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Registry:
    """The kinds by name, and by every spelling that means them: name, aliases and title. `unusable` has kinds of other
    packages that cannot be used, by name, each with the reason."""

    kinds: dict[str, Kind]
    spellings: dict[str, Kind]
    unusable: dict[str, str]


def every() -> dict[str, Kind]:
    """Return name → kind, sorted by name. Imports the modules of all kinds."""
    return _registry().kinds


def unusable() -> dict[str, str]:
    """Return the kinds of other packages that cannot be used: name → reason. Imports the modules of all kinds."""
    return _registry().unusable


def find(name: str) -> Kind:
    """Return the kind with this name or alias. Case, spaces, underscores and the maker's name do not matter. Raises
    DataError; KindUnusable for a kind of another package that cannot be used."""
    plain = _plain(name)
    # The name of a kind of this package means that kind, whatever other packages contain.
    if plain in _built_in():
        return _built_in_kind(plain)
    found = _registry()
    kind = found.spellings.get(plain) or {_bare(one): kind for one, kind in found.spellings.items()}.get(_bare(plain))
    if kind is None and plain in found.unusable:
        raise KindUnusable(f"{found.unusable[plain]}; {CURE}")
    if kind is None:
        near = difflib.get_close_matches(plain, found.spellings, 1)
        hint = f"; did you mean '{found.spellings[near[0]].name}'?" if near else f"; the kinds are {', '.join(every())}"
        raise DataError(f"unknown kind of connection '{name[:80]}'{hint}")
    return kind


def clear() -> None:
    """Forget all kinds: packages were installed or removed."""
    for cached in (_points, _built_in, _built_in_kind, _registry):
        cached.cache_clear()


@cache
def _points() -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=GROUP))


@cache
def _built_in() -> dict[str, EntryPoint]:
    found = {point.name: point for point in _points() if _package(point) == _OURS}
    if not found:
        raise DataError("the installation of dlicmd lists no kinds of connections, because it is older than its files; "
                        "install it again with pip")
    return found


@cache
def _built_in_kind(name: str) -> Kind:
    kind: Kind = _built_in()[name].load()
    return kind


@cache
def _registry() -> Registry:
    kinds = {name: _built_in_kind(name) for name in _built_in()}
    spellings = {spelling: kind for kind in kinds.values() for spelling in _spellings(kind)}
    unusable: dict[str, str] = {}
    others: dict[str, list[EntryPoint]] = {}
    for point in _points():
        if _package(point) != _OURS:
            others.setdefault(_plain(point.name), []).append(point)
    for name, points in sorted(others.items()):
        try:
            kind = _foreign_kind(points, spellings)
        except KindUnusable as problem:
            unusable[name] = str(problem)
            _log.warning("%s", problem)
        else:
            kinds[kind.name] = kind
            spellings |= dict.fromkeys(_spellings(kind), kind)
    return Registry(dict(sorted(kinds.items())), spellings, unusable)


def _foreign_kind(points: list[EntryPoint], taken: dict[str, Kind]) -> Kind:
    """Return the kind that another package has under one name. Raises KindUnusable."""
    name, packages = points[0].name, " and ".join(sorted(map(_package, points)))
    start = f"the kind of connection '{name[:80]}' of the package {packages} cannot be used"
    if len(points) > 1:
        raise KindUnusable(f"{start}: only one package may have a kind of this name")
    try:
        kind = points[0].load()
    except Exception as problem:  # a module of another package raises any type
        text = " ".join(str(problem).split())[:200]
        raise KindUnusable(f"{start}: {points[0].value} fails with {type(problem).__name__}: {text}") from None
    if not isinstance(kind, Kind) or kind.name != name or name != _plain(name):
        raise KindUnusable(f"{start}: {points[0].value} is not a Kind with the name '{_plain(name)[:80]}'")
    both = next((spelling for spelling in _spellings(kind) if spelling in taken), None)
    if both is not None:
        raise KindUnusable(f"{start}: its name '{both}' already means the kind '{taken[both].name}'")
    return kind


def _package(point: EntryPoint) -> str:
    return _plain(point.dist.name) if point.dist is not None else ""


def _spellings(kind: Kind) -> list[str]:
    return [_plain(one) for one in (kind.name, *kind.aliases, kind.title)]


def _bare(name: str) -> str:
    """Return a name without its maker: consoles list both "RDS for Oracle" and "Amazon RDS for Oracle"."""
    maker, _, rest = name.partition("-")
    return rest if maker in _MAKERS and rest else name


def _plain(name: str) -> str:
    return name.strip().lower().replace("_", "-").replace(" ", "-")
