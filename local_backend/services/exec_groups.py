"""Groups of execs with equal values: of a parameter, or of a field such as their name. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import quantiles
from typing import Any

from dlicmd.contract import wire
from dlicmd.contract.curve_groups import group_text, group_value, mean_of
from local_backend import run_values
from local_backend.errors import Invalid
from local_backend.run_values import PARAMETER, ValueName
from local_backend.store.execs import ExecRow

#: Maximum number of values that make a group.
MOST_NAMES = 5


@dataclass(frozen=True)
class ExecGroup:
    """Execs with equal values. `values` has the value of each name that makes the group, None if the execs have no
    such value."""

    values: Mapping[str, Any]
    rows: Sequence[ExecRow]

    @property
    def title(self) -> str:
        """The values as text: `lr=0.1, optimizer=adam`."""
        return ", ".join(f"{name.removeprefix(f'{PARAMETER}.')}={group_text(value)}"
                         for name, value in self.values.items())


@dataclass(frozen=True)
class Distribution:
    """How the values of a group are distributed."""

    count: int
    mean: float
    least: float
    lower: float
    median: float
    upper: float
    most: float


def known(row: ExecRow) -> dict[str, Any]:
    """Return the values by which an exec can be grouped: `param.NAME`, name and user."""
    parameters = run_values.parameters(row.workload.program)
    return {**{str(ValueName(PARAMETER, name)): group_value(value) for name, value in parameters.items()},
            wire.NAME: row.app_name, "user": row.creator}


def names(rows: Sequence[ExecRow]) -> list[str]:
    """Return the names of the values that make more than one group, and fewer groups than execs."""
    found = [known(row) for row in rows]
    counted = {name: len({one.get(name) for one in found}) for one in found for name in one}
    return [name for name, count in counted.items() if 1 < count < len(rows)]


def grouped(rows: Sequence[ExecRow], by: Sequence[str]) -> list[ExecGroup]:
    """Return the execs with equal values of these names, in the order of their values: numbers before texts, and no
    value at the end. Raises Invalid (`query.value`)."""
    if len(by) > MOST_NAMES:
        raise Invalid("query.value", f"group: {len(by)} names are given; give at most {MOST_NAMES}")
    found: dict[tuple[Any, ...], list[ExecRow]] = {}
    for row in rows:
        values = known(row)
        found.setdefault(tuple(values.get(name) for name in by), []).append(row)
    ordered = sorted(found.items(), key=lambda one: [_order(value) for value in one[0]])
    return [ExecGroup(dict(zip(by, values, strict=True)), members) for values, members in ordered]


def distribution(values: Sequence[float]) -> Distribution | None:
    """Return how values are distributed; None without values."""
    if not values:
        return None
    # Quantiles of quarters: four times a large value has no place in a float.
    found = quantiles([value / 4 for value in values], n=4, method="inclusive") if len(values) > 1 else []
    lower, median, upper = [4 * one for one in found] or [values[0]] * 3
    return Distribution(len(values), mean_of(values), min(values), lower, median, upper, max(values))


def _order(value: Any) -> tuple[int, float, str]:
    if value is None:
        return 2, 0.0, ""
    return (0, value, "") if isinstance(value, float) else (1, 0.0, str(value))
