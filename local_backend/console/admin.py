"""GET /console/admin: the pages for administrators: their tabs, the audit log, and the health of the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Request
from starlette.responses import RedirectResponse, Response

from local_backend.api.administration import audit_filter
from local_backend.api.bulk import bulk
from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.queries import whole
from local_backend.console import places
from local_backend.console.rendering import HEADERS, page
from local_backend.console.route import PageRoute
from local_backend.services.audit import OUTCOMES
from local_backend.services.load import READING
from local_backend.services.services import Services

#: Records on one page of the audit log.
_SIZE = 50
#: Outcome of a record → what it means, where its word does not say it.
_OUTCOMES = dict(zip(OUTCOMES, ("", "wrong or not allowed", "the server failed", "the server was interrupted"),
                     strict=True))


@dataclass(frozen=True)
class AdminTab:
    """A page for administrators."""

    name: str
    path: str
    #: Whether only a server for a team has it.
    several: bool = False


TABS = (
    AdminTab("Plans", places.ADMIN_PLANS), AdminTab("Usage", places.ADMIN_USAGE),
    AdminTab("Users", places.ADMIN_USERS, several=True), AdminTab("Tokens", places.ADMIN_TOKENS),
    AdminTab("Audit log", places.ADMIN_AUDIT), AdminTab("Health", places.ADMIN_HEALTH),
)


async def _admitted(caller: TheCaller) -> None:
    caller.check_admin("open the administration")


def admin_router() -> APIRouter:
    """Return a router for pages that only administrators open."""
    return APIRouter(route_class=PageRoute, dependencies=[Depends(_admitted)])


def admin_page(request: Request, services: Services, template: str, status: int = 200, **values: Any) -> Response:
    """Return a page for administrators, with the tabs."""
    embedded = services.base.settings.embedded
    tabs = [tab for tab in TABS if not (tab.several and embedded)]
    return page(request, template, status, tabs=tabs, **values)


router = admin_router()


@router.get(places.ADMIN)
async def first() -> Response:
    """Lead to the first tab."""
    return RedirectResponse(TABS[0].path, 303, HEADERS)


@router.get(places.ADMIN_AUDIT)
@bulk(READING, stream=False)
def audit(
    *, request: Request, services: TheServices, caller: TheCaller, user: str = "", action: str = "", outcome: str = "",
    begin: str = "", end: str = "", start: str = "0",
) -> Response:
    """Show the records of the audit log, newest first."""
    wanted = audit_filter(user.strip(), action.strip(), outcome, begin, end)
    first = whole(start, "start", 0)
    found = services.audit.records(caller, wanted, first, _SIZE + 1)
    given = {"user": user, "action": action, "outcome": outcome, "begin": begin, "end": end}
    query = urlencode({name: value for name, value in given.items() if value})
    link = f"{places.ADMIN_AUDIT}?{query}{'&' if query else ''}start="
    return admin_page(
        request, services, "admin_audit.html", records=found[:_SIZE], given=given, outcomes=_OUTCOMES,
        earlier=f"{link}{first + _SIZE}" if len(found) > _SIZE else "",
        later=f"{link}{max(0, first - _SIZE)}" if first else "",
    )


@router.get(places.ADMIN_HEALTH)
def health(request: Request, services: TheServices, caller: TheCaller) -> Response:
    """Show the loops and the state of the server. The page then asks for the findings, which take some seconds."""
    return admin_page(
        request, services, "admin_health.html", loops=services.health.loop_states(caller),
        troubles=services.machine.troubles(), machine=services.machine.status(), uptime=services.machine.uptime,
        counts=services.machine.shown_counts(caller),
    )


@router.get(places.ADMIN_FINDINGS)
@bulk(READING, stream=False)
def findings(request: Request, services: TheServices, caller: TheCaller) -> Response:
    """Show what the checks find, as a part of the page."""
    return page(request, "admin_findings.html", findings=services.health.findings(caller))
