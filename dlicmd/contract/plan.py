"""The tree of resource plans, as servers describe it: nodes with an id and with child nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from dlicmd.contract import wire
from dlicmd.contract.reading import number, objects, words

_PARENT = "pid"
#: Key of our own servers: the slots that a plan gets before other plans get more than their own.
_RESERVED = "reserved"


class Node(NamedTuple):
    """A plan: its depth, its name, its tag (`/` and the names from the outermost plan down), its limits."""

    depth: int
    name: str
    tag: str
    limits: dict[str, Any]


def nodes(tree: Mapping[str, Any]) -> Iterator[Node]:
    """Yield all plans, each before the plans below it. The tree may have any depth, because this function is not
    recursive."""
    waiting: list[tuple[int, str, Mapping[str, Any]]] = [(0, "", tree)]
    while waiting:
        depth, above, found = waiting.pop()
        name = words(found.get(wire.ID))
        limits = {key: value for key, value in found.items() if key not in (wire.ID, _PARENT, wire.CHILDREN)}
        node = Node(depth, name, f"{above}/{name}", limits)
        yield node
        waiting += [(depth + 1, node.tag, child) for child in reversed(objects(found.get(wire.CHILDREN)))]


def reserved(tree: Mapping[str, Any]) -> int:
    """Return the slots that the plans of a tree can claim at once. A plan claims its own slots, or the sum of the
    claims below it if that is more."""
    claims: dict[int, int] = {}
    for node in reversed(list(nodes(tree))):
        own = int(number(node.limits.get(_RESERVED)) or 0)
        claims[node.depth] = claims.get(node.depth, 0) + max(own, claims.pop(node.depth + 1, 0))
    return claims.get(0, 0)
