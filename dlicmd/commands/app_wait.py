"""Waiting for an application: one line for each poll, until the application has ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dlicmd.client import Client
from dlicmd.console import inert
from dlicmd.follow import Clock, is_over, patiently
from dlicmd.show.apps import cell

#: Seconds between two polls: at first, and at most.
POLL_FIRST, POLL_LAST = 0.5, 10.0
_COLUMNS, _GAP = ("state", "age"), "    "


def wait(client: Client, app_id: str, clock: Clock, tell: Callable[[str], None]) -> dict[str, Any]:
    """Wait until an application has ended, and return it. Each poll passes a line to `tell`.

    Raises WaitTimeout, NoSuchApplication, Unreachable. A server that becomes unreachable after the first answer is
    tried again.
    """
    found = client.application(app_id)
    client = client.impatient()
    pause = POLL_FIRST
    while True:
        tell(_GAP.join((inert(app_id), *(inert(cell(found, column)) for column in _COLUMNS))))
        if is_over(found):
            return found
        clock.sleep(pause)
        pause = min(POLL_LAST, pause * 2)
        found = patiently(clock, lambda: client.application(app_id))
