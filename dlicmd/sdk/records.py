"""The base of the contract's objects: a mapping of keys to JSON values, with attributes that read them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar, overload

from dlicmd.contract.reading import items, number, objects, words

T = TypeVar("T")
R = TypeVar("R", bound="Record")


class Record(Mapping[str, Any]):
    """An object as a server sent it: a mapping of keys to JSON values.

    Args:
        json: The JSON object. The record keeps this dictionary and does not copy it.

    Attributes:
        json: The whole object as a dictionary.

    Examples:
        >>> run = Exec({"id": "wmla-1", "numWorker": "2"})
        >>> run.num_worker, run["numWorker"], run.end_time
        (2, '2', '')
    """

    def __init__(self, json: dict[str, Any]) -> None:
        self.json = json

    def __getitem__(self, key: str) -> Any:
        return self.json[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.json)

    def __len__(self) -> int:
        return len(self.json)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.json!r})"


class Key(Generic[T]):
    """The attribute for a key of a Record.

    Args:
        name: Key of the JSON object.
        read: Function that converts any JSON value, and None for an absent key. The function never raises.
    """

    def __init__(self, name: str, read: Callable[[Any], T]) -> None:
        self.name, self.read = name, read

    @overload
    def __get__(self, record: None, owner: type[Record]) -> Key[T]: ...

    @overload
    def __get__(self, record: Record, owner: type[Record]) -> T: ...

    def __get__(self, record: Record | None, owner: type[Record]) -> T | Key[T]:
        return self if record is None else self.read(record.json.get(self.name))


def whole_number(value: Any) -> int | None:
    """Return a whole number, or None."""
    found = number(value)
    return None if found is None else int(found)


def truth(value: Any) -> bool | None:
    """Return a truth value. Some servers send it as text."""
    return {"true": True, "false": False}.get(str(value).lower())


def texts(value: Any) -> list[str]:
    """Return the texts in a list."""
    return [words(item) for item in items(value)]


def an_object(value: Any) -> dict[str, Any]:
    """Return an object unchanged, any other value as an empty one."""
    return value if isinstance(value, dict) else {}


def all_of(kind: type[R]) -> Callable[[Any], list[R]]:
    """Return the reader of a list of records."""
    return lambda value: [kind(one) for one in objects(value)]
