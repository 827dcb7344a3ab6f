"""Attributes of objects, also of classes with slots.

Workers get the classes of a script by value. There, objects of a class with slots have their attributes in `__dict__`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MemberDescriptorType
from typing import Any


def has_attributes(value: Any) -> bool:
    """Return whether an object has attributes of its own. The answer is the same in the script and in workers."""
    slotted = any("__slots__" in vars(kind) for kind in type(value).__mro__)
    return slotted or isinstance(getattr(value, "__dict__", None), dict)


def attributes_of(value: Any) -> dict[str, Any]:
    """Return a new dict of the attributes of an object."""
    found = dict(getattr(value, "__dict__", {}))
    found.update({name: getattr(value, name) for name in _slots(value) if hasattr(value, name)})
    return found


def put_attributes(value: Any, new: Mapping[str, Any]) -> None:
    """Set these attributes of an object without calls of its methods."""
    slots = _slots(value)
    for name, item in new.items():
        if name in slots:
            object.__setattr__(value, name, item)
        else:
            vars(value)[name] = item


def replace_attributes(value: Any, new: Mapping[str, Any]) -> None:
    """Make these the only attributes of an object."""
    getattr(value, "__dict__", {}).clear()
    for name in _slots(value):
        if hasattr(value, name):
            object.__delattr__(value, name)
    put_attributes(value, new)


def _slots(value: Any) -> list[str]:
    return [
        name for kind in type(value).__mro__ if "__slots__" in vars(kind)
        for name, member in vars(kind).items() if isinstance(member, MemberDescriptorType)
    ]
