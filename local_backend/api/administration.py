"""The audit log, and the health of the server. Only for administrators."""

from __future__ import annotations

from typing import Annotated, cast

from fastapi import APIRouter, Query

from dlicmd.contract import wire
from local_backend.api.as_json import JsonAnswer
from local_backend.api.bulk import bulk
from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.description import ADMINISTRATORS, UNNAMED, about
from local_backend.api.models.administration import AuditRecordObject, FindingObject
from local_backend.api.models.common import one_of
from local_backend.api.queries import moment, whole
from local_backend.api.route import Route
from local_backend.errors import Invalid
from local_backend.services.audit import MOST, OUTCOMES, AuditFilter
from local_backend.services.load import READING

router = APIRouter(tags=["administration"], route_class=Route)

_LENGTH = 100


def audit_filter(user: str, action: str, outcome: str, begin: str, end: str) -> AuditFilter:
    """Return the filter that the texts of a query mean. Raises Invalid (`query.outcome`, `query.time`)."""
    if outcome and outcome not in OUTCOMES:
        raise Invalid("query.outcome", f"outcome: unknown value {outcome[:40]!r}; use {', '.join(OUTCOMES)}")
    return AuditFilter(user, action, outcome, moment(begin, wire.FROM) if begin else None,
                       moment(end, wire.TO) if end else None)


@router.get(wire.AUDIT)
@about(ADMINISTRATORS, extension=UNNAMED, errors={
    400: "query.number query.outcome query.time", 403: "auth.admin_only", 507: "audit.unreadable",
})
@bulk(READING, stream=False)
def audit(
    *,
    services: TheServices,
    caller: TheCaller,
    user: Annotated[str, Query(description="user of the records")] = "",
    action: Annotated[str, Query(description="beginning of the action, such as `exec.`")] = "",
    outcome: Annotated[str, Query(description="outcome of the records"), one_of(*OUTCOMES)] = "",
    begin: Annotated[str, Query(alias=wire.FROM, description="ISO 8601 or epoch seconds")] = "",
    end: Annotated[str, Query(alias=wire.TO, description="ISO 8601 or epoch seconds")] = "",
    start: Annotated[str, Query(description="number of records to skip")] = "0",
    length: Annotated[str, Query(description=f"maximum number of records, at most {MOST}; {_LENGTH} by default")] = "",
) -> JsonAnswer[list[AuditRecordObject]]:
    """Return records of the audit log, newest first."""
    wanted = audit_filter(user, action, outcome, begin, end)
    found = services.audit.records(
        caller, wanted, whole(start, "start", 0), min(MOST, whole(length or str(_LENGTH), "length", 0)),
    )
    return JsonAnswer(cast("list[AuditRecordObject]", found))


@router.get(wire.DOCTOR)
@about(ADMINISTRATORS, extension=UNNAMED, errors={403: "auth.admin_only"})
@bulk(READING, stream=False)
def doctor(services: TheServices, caller: TheCaller) -> JsonAnswer[list[FindingObject]]:
    """Return what the checks of `local-backend doctor` find on the running server. The checks take some seconds, and
    run at most every 10 seconds."""
    return JsonAnswer([
        {"check": one.check, "level": one.level, "what": one.what, "do": one.do}
        for one in services.health.findings(caller)
    ])
