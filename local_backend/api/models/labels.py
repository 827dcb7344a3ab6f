"""Labels of execs."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from typing_extensions import TypedDict

from dlicmd.contract import wire
from local_backend.api.models.common import Body, Refusal, described
from local_backend.services.labels import MOST_IDS, MOST_TAGS


def _tags(name: str) -> Refusal:
    return Refusal(f'"{name}" must be a list of at most {MOST_TAGS} tags')


class NewLabels(Body):
    """A change of the labels of execs."""

    ids: Annotated[list[str], Field(max_length=MOST_IDS),
                   Refusal(f'The body must be a JSON object with a list "{wire.IDS}" of at most {MOST_IDS} strings')]
    """IDs of the execs"""
    add: Annotated[list[str], Field(max_length=MOST_TAGS), _tags(wire.ADD)] = Field(default_factory=list)
    """Tags to add"""
    remove: Annotated[list[str], Field(max_length=MOST_TAGS), _tags(wire.REMOVE)] = Field(default_factory=list)
    """Tags to remove"""
    note: Annotated[str | None, Refusal(f'"{wire.NOTE}" must be a string')] = None
    """The new note; an empty one removes the note; without it, the note stays"""
    favorite: Annotated[bool | None, Refusal(f'"{wire.FAVORITE}" must be true or false')] = None
    """Whether the execs are favorites of the caller; without it, they stay what they are"""


@described
class LabelObject(TypedDict):
    """The labels of an exec."""

    id: str
    """ID of the exec"""
    tags: list[str]
    """Tags, in the order of their letters"""
    note: str
    """Note; empty without one"""
    favorite: bool
    """Whether the exec is a favorite of the caller"""


@described
class UsedTag(TypedDict):
    """A tag that execs have."""

    tag: str
    """The tag"""
    count: int
    """Number of the execs with this tag"""
