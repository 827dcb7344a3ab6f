"""Metrics and parameters of jobs by the names that users type: `f1`, `metric.f1`, `param.lr`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from dlicmd.cli.show.numbers import shown
from dlicmd.cli.show.views import last_metrics
from dlicmd.contract import wire
from dlicmd.contract.metric_names import best_first, meant, spelled
from dlicmd.contract.reading import number
from dlicmd.sdk.messages import inert

METRIC, PARAMETER = KINDS = ("metric", "param")
J = TypeVar("J", bound=Mapping[str, Any])


class NamedValue(NamedTuple):
    """The kind and the name of a value."""

    kind: str
    name: str

    @property
    def heading(self) -> str:
        """The heading of its column: the name of a metric, `param.lr` for a parameter."""
        return self.name if self.kind == METRIC else f"{PARAMETER}.{self.name}"


def metrics_of(job: Mapping[str, Any]) -> dict[str, float]:
    """Return the last values of the main metrics that a job reported, by name, in the order of the server. For a server
    that sends only loss and accuracy, return those."""
    found = {name: number(job.get(name)) for name in (wire.LOSS, wire.ACCURACY)}
    return last_metrics(job) or {name: value for name, value in found.items() if value is not None}


def values_of(job: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return all metrics or all parameters of a job."""
    sent = job.get(wire.ALL_METRICS if kind == METRIC else wire.PARAMETERS)
    found = dict(sent) if isinstance(sent, Mapping) else {}
    if kind == PARAMETER:
        return found
    return metrics_of(job) | {name: value for name, one in found.items() if (value := number(one)) is not None}


def meant_value(text: str, jobs: Iterable[Mapping[str, Any]]) -> NamedValue | None:
    """Return the value that a user means by a text: a metric if a job has it, otherwise a parameter; None if no job has
    such a value."""
    prefix, _, rest = text.partition(".")
    wanted = [(prefix, rest)] if prefix in KINDS and rest else []
    for kind, name in [*wanted, *((kind, text) for kind in KINDS)]:
        known = dict.fromkeys(one for job in jobs for one in values_of(job, kind))
        if found := meant(name, known):
            return NamedValue(kind, found[0])
    return None


def value_of(job: Mapping[str, Any], value: NamedValue) -> Any:
    """Return a value of a job; its name may differ in the case of letters. None if the job lacks it."""
    found = values_of(job, value.kind)
    return found.get(spelled(value.name, found) or "")


def value_text(job: Mapping[str, Any], value: NamedValue) -> str:
    """Return a value of a job as text; "" if the job lacks it."""
    found = value_of(job, value)
    if found is None or isinstance(found, str):
        return inert(found or "")
    return "true" if found is True else shown(found)


def in_order(jobs: Sequence[J], value: NamedValue, down: bool) -> list[J]:
    """Return jobs in the order of a value: of a metric the best first, of a parameter the smallest first and texts
    after numbers; with `down`, in the reverse order. Jobs without the value come last."""
    if value.kind == METRIC:
        return best_first(jobs, lambda job: value_of(job, value), value.name, worst=down)
    found: list[tuple[Any, J]] = [(value_of(job, value), job) for job in jobs]
    numbers = [(one, job) for text, job in found if (one := number(text)) is not None]
    texts = [(str(one), job) for one, job in found if one is not None and number(one) is None]
    ordered = [job for some in (numbers, texts) for _, job in sorted(some, key=lambda pair: pair[0], reverse=down)]
    return [*ordered, *(job for one, job in found if one is None)]
