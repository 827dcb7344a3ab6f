"""GET /console/admin/usage: slot-hours per user and month, as table, chart and CSV."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import Request
from starlette.responses import JSONResponse, Response

from local_backend.api.bulk import bulk
from local_backend.api.depends import TheCaller, TheServices
from local_backend.console import places
from local_backend.console.admin import admin_page, admin_router
from local_backend.console.csv_files import csv_file
from local_backend.console.rendering import HEADERS
from local_backend.services.holdings import MonthUsage
from local_backend.services.load import READING

router = admin_router()

_HOUR = 3600.0
#: Users with a curve of their own; the others are in the table.
_CURVES = 8


@router.get(places.ADMIN_USAGE)
@bulk(READING, stream=False)
def usage(request: Request, services: TheServices, caller: TheCaller) -> Response:
    """Show the slot-hours of the last 12 months."""
    found = services.holdings.monthly(caller)
    months = list(dict.fromkeys(one.month for one in found))
    hours = {(one.user, month): 0.0 for one in found for month in months}
    for one in found:
        hours[one.user, one.month] += one.seconds / _HOUR
    return admin_page(request, services, "admin_usage.html", months=months, users=_users(found), hours=hours)


@router.get(places.ADMIN_USAGE + ".json")
@bulk(READING, stream=False)
def curves(services: TheServices, caller: TheCaller) -> Response:
    """Return the curves of the users with the most hours."""
    found = services.holdings.monthly(caller)
    starts = [since for _, since in services.holdings.months()]
    series = []
    for number, user in enumerate(_users(found)[:_CURVES], 1):
        hours = {one.since: round(one.seconds / _HOUR, 3) for one in found if one.user == user}
        series.append({"name": user, "x": starts, "y": [hours.get(at, 0.0) for at in starts], "color": number})
    answer = {"x": {"label": "month", "kind": "time"}, "y": {"label": "slot-hours"}, "series": series, "marks": []}
    return JSONResponse(answer, headers=HEADERS)


@router.get(places.ADMIN_USAGE + ".csv")
@bulk(READING, stream=False)
def download(services: TheServices, caller: TheCaller) -> Response:
    """Return the table as a file."""
    hours = ([one.month, one.user, f"{one.seconds / _HOUR:.3f}"] for one in services.holdings.monthly(caller))
    return csv_file("usage.csv", [("month", "user", "slot_hours"), *hours])


def _users(found: Sequence[MonthUsage]) -> list[str]:
    """Return the users, that with the most hours first."""
    total: dict[str, float] = {}
    for one in found:
        total[one.user] = total.get(one.user, 0.0) + one.seconds
    return sorted(total, key=lambda user: (-total[user], user))
