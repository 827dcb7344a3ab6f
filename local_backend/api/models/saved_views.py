"""Saved views of lists of execs."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from typing_extensions import TypedDict

from dlicmd.contract import wire
from local_backend.api.models.common import Body, Refusal, described


def _text(key: str) -> Refusal:
    return Refusal(f'"{key}" is not a string')


class NewView(Body):
    """A view to save. It replaces the caller's view of this name."""

    name: Annotated[str, _text(wire.NAME)]
    """Name of the view"""
    find: Annotated[str, _text(wire.FIND)] = ""
    """Words that find execs"""
    state: Annotated[str, _text(wire.STATE)] = ""
    """A state or a comma-separated list; empty for all"""
    sort_by: Annotated[str, _text(wire.SORT_BY)] = ""
    """`field[:asc|desc]`; empty for the newest first"""
    all: Annotated[bool, Refusal(f'"{wire.ALL}" is not true or false')] = False
    """Whether the view has the execs of all users, for administrators"""
    columns: Annotated[list[str], Refusal(f'"{wire.COLUMNS}" is not a list of strings')] = Field(default_factory=list)
    """Metrics and parameters, such as `metric.f1` and `param.lr`; empty for the usual columns"""


@described
class ViewObject(TypedDict):
    """A saved view. The keys beside `name` and `columns` are those of the query of `GET /execs`."""

    name: str
    """Name of the view"""
    find: str
    """Words that find execs"""
    state: str
    """A state or a comma-separated list; empty for all"""
    sort_by: str
    """`field[:asc|desc]`; empty for the newest first"""
    all: bool
    """Whether the view has the execs of all users, for administrators"""
    columns: list[str]
    """Metrics and parameters, such as `metric.f1` and `param.lr`; empty for the usual columns"""
