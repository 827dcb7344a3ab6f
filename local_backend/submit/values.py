"""Values in submissions, from any place in them. Each function raises Invalid with a sentence that names the place."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from dlicmd.contract.argv import MAX_NUMBER
from dlicmd.contract.sizes import parse_size
from local_backend.errors import Invalid

#: Smallest fraction of a device that a submission can ask for.
LEAST_PART = 0.001
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def pairs(option: str, items: Iterable[str]) -> list[tuple[str, str]]:
    """Return (name, value) of every `NAME=VALUE`. Raises Invalid, without showing a value that may be a secret."""
    result = []
    for item in items:
        name, equals, value = item.partition("=")
        if not equals or not _VARIABLE.fullmatch(name):
            shown = f"'{name[:80]}' is not a valid variable name" if equals else "'=' is missing"
            raise Invalid("submission.option", f"{option}: {shown}; write {option} NAME=VALUE")
        result.append((name, value))
    return result


def whole_number(value: Any, what: str, least: int, code: str = "submission.option") -> int:
    """Return a number that clients send as a number or as text. Raises Invalid."""
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,10}(\.0*)?", value.strip()):
        value = float(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise Invalid(
            code, f"{what}: '{str(value)[:40]}' is not a whole number between {least} and {MAX_NUMBER}"
        )
    if not least <= value <= MAX_NUMBER:
        raise Invalid(code, f"{what}: {str(value)[:40]} is not between {least} and {MAX_NUMBER}")
    return value


class Hardware:
    """The `hardwareSpec` of a submission; it supplies what the command line leaves open."""

    def __init__(self, spec: dict[str, Any]) -> None:
        if spec and "nodes" not in spec and "id" in spec:
            raise Invalid(
                "submission.hardware",
                "hardwareSpec: the local backend does not support 'id'; use the 'name' of a specification, or its "
                "'nodes' instead",
            )
        nodes = spec.get("nodes", spec)
        if not isinstance(nodes, dict):
            raise Invalid("submission.hardware", "hardwareSpec: 'nodes' is not a JSON object")
        self._nodes = nodes

    def number(self, path: str, least: int) -> int | None:
        """Return a whole number at a dotted path; None if it is missing."""
        value = self._at(path)
        return None if value is None else whole_number(value, f"hardwareSpec {path}", least, "submission.hardware")

    def amount(self, path: str) -> float | None:
        """Return a whole number, or a fraction below 1, at a dotted path; None if it is missing."""
        value = self._at(path)
        fraction = re.fullmatch(r"0?\.[0-9]{1,6}", str(value).strip())
        if fraction and 0 < float(fraction[0]) < LEAST_PART:
            raise Invalid("submission.hardware", f"hardwareSpec {path}: {fraction[0]} is less than {LEAST_PART}")
        return float(fraction[0]) if fraction and float(fraction[0]) else self.number(path, 0)

    def size(self, path: str) -> int | None:
        """Return a memory size at a dotted path, in bytes; None if it is missing."""
        value = self._at(path)
        if value is None:
            return None
        if not isinstance(value, str | int) or isinstance(value, bool):
            raise Invalid("submission.hardware", f"hardwareSpec {path}: '{str(value)[:40]}' is not a memory size")
        try:
            return parse_size(str(value))
        except ValueError as problem:
            raise Invalid("submission.hardware", f"hardwareSpec {path}: {problem}") from None

    def text(self, path: str) -> str:
        """Return a text at a dotted path; empty if it is missing."""
        value = self._at(path)
        if value is not None and not isinstance(value, str):
            raise Invalid("submission.hardware", f"hardwareSpec {path}: '{str(value)[:40]}' is not a string")
        return value or ""

    def _at(self, path: str) -> Any:
        value: Any = self._nodes
        for key in path.split("."):
            if not isinstance(value, dict):
                raise Invalid(
                    "submission.hardware", f"hardwareSpec: the value that contains '{key}' is not a JSON object"
                )
            value = value.get(key)
            if value is None or value == "":
                return None
        return value
