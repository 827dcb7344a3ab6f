"""Types that the models of several topics share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar, cast, get_args

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, with_config
from pydantic_core import CoreSchema
from typing_extensions import TypedDict

from local_backend.store.states import SHOWN

T = TypeVar("T")
M = TypeVar("M", bound=Mapping[str, Any])

#: Makes the texts below the fields of a TypedDict their descriptions.
described = with_config(ConfigDict(use_attribute_docstrings=True))


class _NeverNull:
    """Leaves null out of the schema of a value that is absent if it is unknown."""

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        shown = handler(core_schema)
        (kept,) = (kind for kind in shown["anyOf"] if kind != {"type": "null"})
        return dict(kept)


#: A value of an answer under construction. `present` removes the key if the value is None.
Known = Annotated[T | None, _NeverNull()]


def present(answer: M) -> M:
    """Return an answer without the keys whose value is None."""
    return cast("M", {key: value for key, value in answer.items() if value is not None})


def one_of(*values: str) -> Any:
    """Return the description of a text that has one of these values."""
    return Field(json_schema_extra={"enum": list(values)})


#: State of an exec or application.
State = Annotated[str, one_of(*sorted(SHOWN))]
#: `YYYY-MM-DDTHH:MM:SSZ`
Time = Annotated[str, Field(json_schema_extra={"format": "date-time"})]


class Refusal(str):
    """The sentence that refuses a wrong value of a field."""


class Body(BaseModel):
    """A JSON body that the route checks. Unknown keys are ignored. Each field has the sentence that refuses a wrong
    value, as a Refusal."""

    model_config = ConfigDict(strict=True, frozen=True, use_attribute_docstrings=True)

    @classmethod
    def refusal(cls, name: str | None) -> str:
        """Return the sentence that refuses a field. None means that the body is not an object; the sentence of the
        first field says so."""
        field = cls.model_fields[name or next(iter(cls.model_fields))]
        return next(one for one in field.metadata if isinstance(one, Refusal))

    @classmethod
    def items_of(cls, name: str | None) -> type[Body] | None:
        """Return the bodies that a field is a list of; None if it is no such list."""
        field = cls.model_fields[name or next(iter(cls.model_fields))]
        found = next(iter(get_args(field.annotation)), None)
        return found if isinstance(found, type) and issubclass(found, Body) else None


@described
class ErrorObject(TypedDict):
    """An error, for a client that accepts application/json but no text."""

    status: int
    """The status of the answer"""
    code: str
    """The stable code"""
    message: str
    """What happened, and what to do next"""


@described
class ProblemObject(TypedDict):
    """An error, for a client that accepts application/problem+json (RFC 9457)."""

    status: int
    """The status of the answer"""
    code: str
    """The stable code"""
    detail: str
    """What happened, and what to do next"""
