"""All kinds of connections. Each module of this package lists its kinds in `KINDS`; a new module adds a new family.
Other packages add such modules through entry points of the group `dlicmd.data_kinds`."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from functools import lru_cache
from importlib.metadata import entry_points

from local_backend.data.errors import DataError
from local_backend.data.kinds.base import Kind

#: Entry point group of other packages.
GROUP = "dlicmd.data_kinds"
_MAKERS = frozenset({"amazon", "apache", "google", "ibm", "microsoft"})


@lru_cache(maxsize=1)
def every() -> dict[str, Kind]:
    """Return name → kind, sorted by name."""
    modules = [importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
    modules += [found.load() for found in entry_points(group=GROUP)]
    kinds = [kind for module in modules for kind in getattr(module, "KINDS", ())]
    return {kind.name: kind for kind in sorted(kinds, key=lambda kind: kind.name)}


def find(name: str) -> Kind:
    """Return the kind with this name or alias. Case, spaces, underscores and the maker's name do not matter. Raises
    DataError."""
    names = {_plain(alias): kind for kind in every().values() for alias in (kind.name, *kind.aliases, kind.title)}
    kind = names.get(_plain(name)) or {_bare(alias): kind for alias, kind in names.items()}.get(_bare(_plain(name)))
    if kind is None:
        near = difflib.get_close_matches(_plain(name), names, 1)
        hint = f"; did you mean '{names[near[0]].name}'?" if near else f"; the kinds are {', '.join(every())}"
        raise DataError(f"unknown kind of connection '{name[:80]}'{hint}")
    return kind


def _bare(name: str) -> str:
    """Return a name without its maker: consoles list both "RDS for Oracle" and "Amazon RDS for Oracle"."""
    maker, _, rest = name.partition("-")
    return rest if maker in _MAKERS and rest else name


def _plain(name: str) -> str:
    return name.strip().lower().replace("_", "-").replace(" ", "-")
