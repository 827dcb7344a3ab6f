"""The newest exec of a user, on servers that sort execs and on servers that do not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dlicmd.contract import wire
from dlicmd.contract.reading import epoch, words
from dlicmd.sdk.errors import NoExecYet
from dlicmd.sdk.exec_calls import ExecCalls
from dlicmd.sdk.objects import Exec

#: The order of our own server. Other servers may sort ids as text: wmla-9 would be newer than wmla-10, and the wrong
#: exec might be stopped.
NEWEST_FIRST = "sort_by=id:desc"


def newest(client: ExecCalls) -> Exec:
    """Return the newest exec of the calling user. Raises NoExecYet when there is none."""
    found = client.execs(f"limit=1&{NEWEST_FIRST}" if client.extensions() else None)
    named = [item for item in found if isinstance(item.get(wire.ID), str) and item[wire.ID]]
    if not named:
        raise NoExecYet
    return max(named, key=age)


def age(found: Mapping[str, Any]) -> tuple[float, int, str]:
    """Return the sort key for age, the newest last. Scripts submit several execs in a second: then the number in the
    id decides."""
    name = words(found.get(wire.ID))
    return epoch(found.get(wire.CREATE_TIME)) or 0.0, len(name), name
