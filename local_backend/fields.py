"""Takes typed members out of JSON objects of users, and refuses wrong ones with a sentence."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from local_backend.errors import Invalid

#: Makes the error for a sentence.
Refusal = Callable[[str], Invalid]
#: Most characters of a name, and of any other text.
NAME, TEXT = 200, 20_000
#: The largest number with a fraction.
_MOST = sys.float_info.max
#: Unknown members that are compared with the known ones: each comparison takes time.
_COMPARED = 100
#: Characters of a wrong value that a sentence shows.
_SHOWN = 60


def shown(value: object) -> str:
    """Return a value as sentences show it."""
    text = " ".join(repr(value).split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def number_of(value: object) -> float | int | None:
    """Return a number, also of a numeric text; None for anything else."""
    if isinstance(value, str):
        try:
            value = int(value)
        except ValueError:
            try:
                value = float(value)
            except ValueError:
                return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _MOST:
        return None
    return value


class Fields:
    """The members of one object, which sentences call `where`."""

    def __init__(self, value: object, where: str, refuse: Refusal) -> None:
        if not isinstance(value, dict):
            raise refuse(f"{where} must be an object with members, but it is {shown(value)}")
        self._value: Mapping[str, Any] = value
        self._where, self._refuse = where, refuse

    def refuse(self, key: str, problem: str) -> Invalid:
        """Return the error for a member."""
        return self._refuse(f"{self._where}: {key} {problem}")

    def get(self, *keys: str) -> Any:
        """Return the first of some members that is there and not null; None without them."""
        return next((self._value[key] for key in keys if self._value.get(key) is not None), None)

    def check_names(self, known: Iterable[str], elsewhere: Mapping[str, str] | None = None) -> None:
        """Refuse members that look like a misspelled one of `known`, and those that belong `elsewhere` (name → place).
        Other unknown members do not matter: clients send some."""
        names = list(known)
        for key in [key for key in self._value if key not in names][:_COMPARED]:
            if elsewhere and key in elsewhere:
                raise self.refuse(key, f"belongs into {elsewhere[key]}")
            near = difflib.get_close_matches(key.lower(), [name.lower() for name in names], 1, 0.85)
            if near:
                right = next(name for name in names if name.lower() == near[0])
                raise self.refuse(key, f"is unknown; write {right}")

    def text(self, *keys: str, most: int = TEXT) -> str | None:
        value = self.get(*keys)
        if value is not None and (not isinstance(value, str) or len(value) > most):
            raise self.refuse(keys[0], f"must be a text of at most {most} characters, but it is {shown(value)}")
        return value

    def required(self, *keys: str, most: int = TEXT) -> str:
        value = self.text(*keys, most=most)
        if not value or not value.strip():
            raise self.refuse(keys[0], "is required; it must be a text that is not empty")
        return value

    def name(self, *keys: str) -> str:
        """Return a name: of a parameter, a metric, or the like."""
        value = self.required(*keys, most=NAME).strip()
        if not value.isprintable():
            raise self.refuse(keys[0], f"must have printable characters only, but it is {shown(value)}")
        return value

    def names(self, key: str, most: int) -> dict[str, Any]:
        """Return an object whose keys are names."""
        found = self.object(key)
        wrong = next((name for name in found if len(name) > NAME or not name.strip() or not name.isprintable()), None)
        if wrong is not None:
            raise self.refuse(key, f"must have names with 1 to {NAME} printable characters, but one is {shown(wrong)}")
        if len(found) > most:
            raise self.refuse(key, f"has {len(found)} entries; the limit is {most}")
        return found

    def word(self, key: str, allowed: Sequence[str], default: str | None = None) -> str:
        """Return one of the `allowed` words, found without regard to case."""
        value = self.text(key, most=NAME) or default
        found = {word.lower(): word for word in allowed}.get((value or "").strip().lower())
        if found is None:
            raise self.refuse(key, f"must be {' or '.join(allowed)}, but it is {shown(value)}")
        return found

    def number(self, *keys: str) -> float | int | None:
        value = self.get(*keys)
        found = number_of(value)
        if value is not None and found is None:
            raise self.refuse(keys[0], f"must be a number, but it is {shown(value)}")
        return found

    def whole(self, *keys: str) -> int | None:
        found = self.number(*keys)
        if found is not None and int(found) != found:
            raise self.refuse(keys[0], f"must be a whole number, but it is {shown(found)}")
        return None if found is None else int(found)

    def limit(self, *keys: str) -> int | None:
        """Return a limit: None for -1, 0, or nothing."""
        found = self.whole(*keys)
        if found is not None and found < -1:
            raise self.refuse(keys[0], f"must be -1 (no limit) or more, but it is {found}")
        return found if found and found > 0 else None

    def switch(self, key: str) -> bool:
        value = self.get(key)
        if isinstance(value, str) and value.strip().lower() in ("true", "false"):
            value = value.strip().lower() == "true"
        if value is not None and not isinstance(value, bool):
            raise self.refuse(key, f"must be true or false, but it is {shown(value)}")
        return bool(value)

    def list(self, *keys: str, most: int) -> list[Any]:
        """Return the first of some lists that is not empty: clients send empty ones for what they do not use."""
        value = self.get(*[key for key in keys if self._value.get(key) != []])
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.refuse(keys[0], f"must be a list, but it is {shown(value)}")
        if len(value) > most:
            raise self.refuse(keys[0], f"has {len(value)} entries; the limit is {most}")
        return value

    def object(self, key: str) -> dict[str, Any]:
        value = self.get(key)
        if value is not None and not isinstance(value, dict):
            raise self.refuse(key, f"must be an object, but it is {shown(value)}")
        return value or {}
