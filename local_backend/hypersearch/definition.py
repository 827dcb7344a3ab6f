"""What a search asks for, checked and complete; and what its algorithm sees and answers. Data only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

#: Version of the JSON form.
VERSION = 1
#: The built-in algorithms in the order in which they are listed; those of WMLA first.
BUILT_IN = ("Random", "TPE", "Bayesian", "Hyperband", "ExperimentGridSearch", "ASHA", "Grid", "CMAES", "NSGA2")
#: Algorithms that limit the resource of experiments by rungs.
WITH_RUNGS = ("Hyperband", "ASHA")
#: Algorithms whose suggestions come from the process with Optuna.
ASKING = ("TPE", "Bayesian", "CMAES", "NSGA2")

#: A value of one parameter.
Value = int | float | str
DataType = Literal["INT", "DOUBLE", "STR"]
#: How a metric becomes one number for an experiment.
Mode = Literal["minimize", "maximize", "latest"]


@dataclass(frozen=True)
class Parameter:
    """One parameter of the space: a range from `low` to `high`, or a choice."""

    name: str
    data: DataType
    low: int | float = 0
    high: int | float = 0
    #: Distance between neighbors of a range, None for any value. With `power`, between neighboring exponents.
    step: int | float | None = None
    #: Base: the values are power**low to power**high, uniform in this range.
    power: float | None = None
    #: Draw uniformly in the logarithm of the values.
    log: bool = False
    #: The values of a choice; empty for a range.
    choices: tuple[Value, ...] = ()
    #: Names of other parameters, and the values one of which each must have; otherwise experiments do not have this
    #: parameter.
    when: tuple[tuple[str, tuple[Value, ...]], ...] = ()


class Listed(NamedTuple):
    """An experiment that the definition of an ExperimentGridSearch lists."""

    id: int
    parameters: dict[str, Value]
    #: Its parameters as WMLA shows them.
    given: list[dict[str, Any]]


class Constraint(NamedTuple):
    """Bounds of a metric. Experiments outside of them are not wanted."""

    metric: str
    least: float | None
    most: float | None


@dataclass(frozen=True)
class Definition:
    """A search: the program, the space, the algorithm, and its limits."""

    #: None if the server chooses a name.
    name: str | None
    #: The submission of each experiment, as the words of a command line.
    args: str
    sig_name: str | None
    #: One of BUILT_IN, or the name of a plugin.
    algorithm: str
    #: The first objective.
    metric: str
    maximize: bool
    #: Metric → minimize, maximize or latest.
    additional: dict[str, Mode] = field(default_factory=dict)
    #: All objectives, the first included: metric, and whether to maximize it.
    objectives: tuple[tuple[str, bool], ...] = ()
    #: Minutes, experiments, and failed experiments, after which the search ends; None for no limit.
    max_minutes: float | None = None
    max_experiments: int | None = None
    max_failed: int | None = None
    #: Most experiments that run at the same time.
    parallel: int = 1
    parameters: tuple[Parameter, ...] = ()
    #: The experiments of an ExperimentGridSearch, in order.
    given: tuple[Listed, ...] = ()
    #: The algoParams: of built-in algorithms under their documented names, of plugins as given.
    params: dict[str, str] = field(default_factory=dict)
    refill: Literal["batch", "async"] = "batch"
    resume: bool = False
    #: Name of the parameter that limits an experiment, and its largest and smallest value. Of WITH_RUNGS only.
    resource: str | None = None
    most_resource: int | None = None
    least_resource: int = 1
    eta: float = 3.0
    #: RandomSeed, None if the server chooses one.
    seed: int | None = None
    #: Name of an earlier search whose results the algorithm knows from the beginning.
    warm_start: str | None = None
    constraints: tuple[Constraint, ...] = ()
    terminator: bool = False
    #: `algoDef`, `hyperParams` and `experiments`, as answers show them.
    raw: dict[str, Any] = field(default_factory=dict)

    @property
    def plugin(self) -> bool:
        """Whether a plugin decides."""
        return self.algorithm not in BUILT_IN

    @property
    def wanted(self) -> dict[str, Mode]:
        """The metrics that each experiment must have, and how each becomes one number."""
        bounds: dict[str, Mode] = {one.metric: self.additional.get(one.metric, "latest") for one in self.constraints}
        return bounds | {metric: "maximize" if most else "minimize" for metric, most in self.objectives}

    def to_json(self) -> str:
        """Return the definition as one JSON object."""
        return json.dumps({"version": VERSION} | asdict(self) | {"given": [one._asdict() for one in self.given]})

    @classmethod
    def from_json(cls, text: str) -> Definition:
        """Return the definition of a JSON text: the inverse of `to_json`. Raises ValueError, TypeError or KeyError."""
        value = json.loads(text)
        version = value.pop("version")
        if version != VERSION:
            raise ValueError(f"version {version!r} of a search is unknown")
        return cls(**value | {
            "objectives": tuple((metric, most) for metric, most in value["objectives"]),
            "parameters": tuple(Parameter(**one | {
                "choices": tuple(one["choices"]),
                "when": tuple((name, tuple(values)) for name, values in one["when"]),
            }) for one in value["parameters"]),
            "given": tuple(Listed(**one) for one in value["given"]),
            "constraints": tuple(Constraint(*one) for one in value["constraints"]),
        })


@dataclass(frozen=True)
class Known:
    """An experiment as the algorithms see it. The parameters do not include the resource."""

    id: int
    parameters: Mapping[str, Value]
    #: Waiting for its start, running, resting at a rung without slots, or ended.
    state: Literal["waiting", "running", "resting", "done", "failed"]
    resource: int | None = None
    bracket: int = 0
    rung: int = 0
    #: The first objective. None while it is unknown, and of failed experiments.
    value: float | None = None
    #: Position in the order in which results became known to the algorithm. None until then.
    told: int | None = None
    #: Id of the experiment whose parameters this one trains again with more of the resource. Never with `resume`.
    origin: int | None = None
    #: The metrics of `Definition.wanted`; needed with several objectives or with constraints.
    metrics: Mapping[str, float] = field(default_factory=dict)
    #: With `resume`, the values at the rungs that the experiment has passed, in order; `value` is that of its last.
    values: tuple[float, ...] = ()


@dataclass(frozen=True)
class Beginning:
    """An experiment to create."""

    parameters: Mapping[str, Value]
    resource: int | None = None
    bracket: int = 0
    rung: int = 0
    origin: int | None = None
    #: The id that an ExperimentGridSearch names; None for the next one.
    id: int | None = None


@dataclass(frozen=True)
class Step:
    """What to do now. If nothing, and it is not `over`: wait until an experiment ends."""

    start: tuple[Beginning, ...] = ()
    #: With `resume`: id of a resting experiment, its next rung, and the resource there.
    promote: tuple[tuple[int, int, int], ...] = ()
    #: Number of suggestions to ask the suggester or the plugin for. Each becomes an experiment.
    ask: int = 0
    #: No experiment runs, and none will start.
    over: bool = False
