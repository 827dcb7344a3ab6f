"""The values of an exec by name, by which runs are compared, found and sorted: the parameters of its program, and the
last values of its metrics. Pure functions of what the exec has stored."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from dlicmd.contract import metric_names, wire
from dlicmd.contract.argv import split_args
from dlicmd.contract.secret import masked_arguments
from dlicmd.contract.submission_values import PROGRAM, program_values
from local_backend.workload import Program

#: Kinds of values, as they precede a name: `metric.f1`, `param.lr`.
METRIC, PARAMETER = KINDS = ("metric", "param")
#: Maximum number of values of each kind of one exec, and of characters of a name. Further ones are left out. Texts are
#: sorted by so many characters.
MOST, LONGEST_NAME, LONGEST_TEXT = 200, 100, 100
#: Numbers are smaller: columns of numbers hold no integer beyond the range of floats.
_MOST_AMOUNT = 1e300
#: A word of a program that sets a parameter, as Hydra reads it: `lr=0.1`, `+optimizer.lr=0.1`.
_SET = re.compile(r"\+{0,2}([^\W\d][\w./@-]*)=(.*)", re.DOTALL)


class ValueName(NamedTuple):
    """The kind and the name of a value. The kind is "" if it is not known yet."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}.{self.name}" if self.kind else self.name


def named(text: str) -> ValueName:
    """Return the name that a text means: `metric.f1`, `param.lr`, or a name without its kind."""
    usable = text.replace("\0", "")  # which PostgreSQL does not take
    kind, _, name = usable.partition(".")
    return ValueName(kind, name) if kind in KINDS and name else ValueName("", usable)


def key(name: str) -> str:
    """Return a text that is equal for names that differ only in the case of letters."""
    return name.lower()[:LONGEST_NAME]


def amount(value: object) -> float | None:
    """Return a value as a finite number; None if it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if -_MOST_AMOUNT < found < _MOST_AMOUNT else None


def parameters(program: Program) -> dict[str, str | int | float | bool]:
    """Return the parameters of a program: its options without their dashes (true for an option without a value), its
    words of the form NAME=VALUE, and the parameters of an experiment. Secret-looking values are masked."""
    found: dict[str, str | int | float | bool] = {}
    for label, value in program_values(masked_arguments(program.user_cmd or program.arguments)).items():
        option = label.removeprefix(PROGRAM).strip().lstrip("-")
        if option:
            found.setdefault(option, value)
        else:
            pairs = filter(None, map(_SET.fullmatch, split_args(value)))
            found |= {pair[1]: pair[2] for pair in pairs if pair[1] not in found}
    return _limited(found | (program.parameters or {}))


def metrics(progress: Mapping[str, Any]) -> dict[str, float]:
    """Return the last values of the metrics in a progress that are finite numbers: the loss and the accuracy of the
    engine, then the others in the order of their importance."""
    engine = _present({name: amount(progress.get(name)) for name in (wire.LOSS, wire.ACCURACY)})
    last = progress.get(wire.LAST_METRICS) or {}
    others = {name: amount(one.get(wire.VALUE)) for name, one in last.items() if name not in engine}
    return _limited(_present(engine | others))


def with_main(found: Mapping[str, float]) -> dict[str, float]:
    """Return metrics by which runs are found and sorted: `loss` is the first loss of an exec without a metric of this
    name, and `accuracy` its first accuracy."""
    return {**{main: found[name] for main, name in main_names(found).items()}, **found}


def main_names(found: Mapping[str, float]) -> dict[str, str]:
    """Return the names of the metrics that stand for `loss` and `accuracy`."""
    losses = [name for name in found if metric_names.is_loss(name)]
    accuracies = [name for name in found if metric_names.kind(name) == wire.ACCURACY]
    return {main: main if main in found else names[0]
            for main, names in ((wire.LOSS, losses), (wire.ACCURACY, accuracies)) if main in found or names}


def rows(number: int, kind: str, values: Mapping[str, object]) -> list[dict[str, Any]]:
    """Return the rows of the values of an exec in the table `exec_values`."""
    found = [(name, value, amount(value)) for name, value in values.items()]
    return [{"number": number, "kind": kind, "name": name, "key": key(name), "value": number_of,
             "text": str(value)[:LONGEST_TEXT] if number_of is None else None} for name, value, number_of in found]


def _present(found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if value is not None}


def _limited(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first values whose names can be shown, at most MOST."""
    usable = [(name, value) for name, value in found.items() if name.isprintable() and len(name) <= LONGEST_NAME]
    return dict(usable[:MOST])
