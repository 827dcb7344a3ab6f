"""Records of the audit log, and findings about the server."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field
from typing_extensions import NotRequired, TypedDict

from local_backend.api.models.common import described


def _of(text: str) -> Any:
    return Field(description=text)


#: What a user did, or tried to do. `from` is a keyword of the language, so this is not a class.
AuditRecordObject = TypedDict("AuditRecordObject", {
    "time": Annotated[str, _of("When it ended")],
    "user": Annotated[str, _of("The user")],
    "from": Annotated[str, _of("Address of the call; empty for a command on the machine of the server")],
    "token": NotRequired[Annotated[str, _of("Name of the token for a program")]],
    "action": Annotated[str, _of("The object and the verb, such as `exec.stop`")],
    "about": Annotated[list[str], _of("The objects")],
    "outcome": Annotated[str, _of("`done`, `refused`, `failed`, or `cut`: interrupted")],
    "code": NotRequired[Annotated[str, _of("Code of the error")]],
    "request": NotRequired[Annotated[str, _of("ID of the request")]],
    "count": NotRequired[Annotated[int, _of("Number of refused calls or logons that the record stands for")]],
    "first": NotRequired[Annotated[str, _of("Time of the first of them")]],
    "last": NotRequired[Annotated[str, _of("Time of the last of them")]],
})


@described
class FindingObject(TypedDict):
    """The result of a check."""

    check: str
    """Name of the check"""
    level: str
    """`ok`, `warning` or `problem`"""
    what: str
    """What was found"""
    do: str
    """The remedy; empty if nothing needs to be done"""
