"""GET /console: the slots with their runs, the queue, the shares of plans and users, services, and running jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fastapi import Request
from markupsafe import Markup
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.slots_view import slots_view
from local_backend.console import places
from local_backend.console.rendering import now, page, template
from local_backend.console.route import router as pages
from local_backend.console.shared import shared_parts
from local_backend.scheduler.forecast import PlanShare
from local_backend.services.access import Caller
from local_backend.services.services import Services

router = pages()

#: Number of colors for runs, and most rows of a table.
_COLORS, _SHOWN = 8, 50


@router.get(places.HOME)
async def overview(request: Request, services: TheServices, caller: TheCaller) -> Response:
    """Show the whole page."""
    offered = await run_in_threadpool(services.example.is_offered, caller)
    return page(request, "overview.html", part=Markup(await part(request, services, caller)), example=offered)


async def part(request: Request, services: Services, caller: Caller) -> str:
    """Return the part that changes, as users with the sight of this caller see it."""
    base_url = str(request.base_url)

    def rendering(memory: dict[str, Any]) -> str:
        colors = memory.setdefault("colors", {})
        return template("overview_part.html").render(_found(services, caller, base_url, colors))

    return await shared_parts(request).text(services, caller, "overview", rendering)


def _found(services: Services, caller: Caller, base_url: str, colors: dict[str, int]) -> dict[str, Any]:
    view = slots_view(services, caller, base_url)
    for one in view["queue"]:
        # The page shows this time in a column of its own, as a local time.
        one["message"] = one.get("message", "").removesuffix(f", not before {one.get('expectedStart')}")
    color(colors, (one["id"] for one in view["running"]))
    return {
        "view": view,
        # Services have a table of their own.
        "running": [one for one in view["running"] if "model" not in one],
        "names": {one["id"]: one.get("appName", one["id"]) for one in (*view["running"], *view["queue"])},
        "colors": colors,
        "free": sum(slot["state"] == "free" for slot in view["slots"]),
        "starts": {one["id"]: _epoch(str(one["expectedStart"])) for one in view["queue"] if "expectedStart" in one},
        "shares": bars(services.plans.shares(caller), Counter(slot["kind"] for slot in view["slots"])),
        "models": services.models.list(caller),
        "held": {one["id"]: one.get("slots", 0) for one in view["running"] if "model" in one},
        "now": now(),
        "shown": _SHOWN,
    }


def color(known: dict[str, int], present: Iterable[str]) -> None:
    """Give each run that is present a color, and keep it. A color is used twice only when all are in use."""
    there = dict.fromkeys(present)
    for gone in known.keys() - there.keys():
        del known[gone]
    for one in there:
        if one not in known:
            taken = [*known.values()]
            known[one] = min(range(1, _COLORS + 1), key=lambda number: (taken.count(number), number))


@dataclass(frozen=True)
class ShareBar:
    """A share as a row of the table. `depth` is the number of plans above it; widths are percents of all slots."""

    share: PlanShare
    name: str
    depth: int
    used: float
    due: float


def bars(shares: Sequence[PlanShare], slots: Mapping[str, int]) -> Mapping[str, list[ShareBar]]:
    """Return the rows for each kind of slot: all plans, and the users that have or could use slots. `slots` is the
    number of slots of each kind."""
    found: dict[str, list[ShareBar]] = {}
    for one in shares:
        total = max(1, slots.get(one.kind, 0))
        if one.wanted or one.used or not one.user:
            depth = one.plan.count("/") - 1 + bool(one.user)
            name = one.user or one.plan.rpartition("/")[2]
            found.setdefault(one.kind, []).append(ShareBar(
                one, name, depth, min(100.0, 100 * one.used / total), min(100.0, 100 * one.due / total)))
    return found


def _epoch(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
