"""`last` in place of an exec's id: the newest exec of the calling user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dlicmd.cli.show.execs import application_id
from dlicmd.cli.show.times import epoch
from dlicmd.contract import wire
from dlicmd.contract.options import LAST
from dlicmd.sdk.client import Client
from dlicmd.sdk.errors import NoExecYet
from dlicmd.sdk.messages import info

#: The query for the newest exec alone, for our own server. Other servers may sort ids as text: wmla-9 would be newer
#: than wmla-10, and the wrong exec might be stopped.
_NEWEST_ALONE = "limit=1&sort_by=id:desc"


def resolved(client: Client, ids: Sequence[str], of_applications: bool = False) -> list[str]:
    """Return the ids with `last` replaced by the id of the newest exec, or of its application, and report that id.
    Raises NoExecYet."""
    if LAST not in ids:
        return list(ids)
    found = newest(client)
    named = (application_id(found) if of_applications else None) or str(found[wire.ID])
    info(f"{LAST} is {named}")
    return [named if name == LAST else name for name in ids]


def newest(client: Client) -> Mapping[str, Any]:
    """Return the newest exec of the calling user. Raises NoExecYet when there is none."""
    found = client.execs(_NEWEST_ALONE if client.extensions() else None)
    named = [item for item in found if isinstance(item.get(wire.ID), str) and item[wire.ID]]
    if not named:
        raise NoExecYet
    return max(named, key=_age)


def _age(found: Mapping[str, Any]) -> tuple[float, int, str]:
    """Return the sort key for age, the newest last. Scripts submit several execs in a second: then the number in the
    id decides."""
    name = str(found[wire.ID])
    return epoch(found.get(wire.CREATE_TIME)) or 0.0, len(name), name
