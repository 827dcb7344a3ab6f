"""Runs a search without processes: experiments end in a random order, with values of a function."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from local_backend.hypersearch.definition import Definition, Known, Value
from local_backend.hypersearch.reading import parse
from local_backend.hypersearch.strategy import next_step

RATE = {"name": "rate", "type": "Range", "dataType": "DOUBLE", "minDbVal": 0, "maxDbVal": 1}
#: Value of an experiment with these parameters and this resource; None if it fails.
Score = Callable[[dict[str, Value], int | None], float | None]


def text_of(algorithm: str, *params: tuple[str, str], space: Sequence[dict[str, Any]] = (RATE,), **algo: Any) -> str:
    """Return the text of a definition."""
    return json.dumps({
        "modelSpec": {"args": "--exec-start PyTorch --model-main train.py"},
        "algoDef": {"algorithm": algorithm, "objectiveMetric": "loss", "objective": "minimize",
                    "algoParams": [{"name": name, "value": value} for name, value in params], **algo},
        "hyperParams": list(space),
    })


def definition(algorithm: str, *params: tuple[str, str], **more: Any) -> Definition:
    return parse(text_of(algorithm, *params, **more))


def rung_search(algorithm: str, most: int, eta: float = 3, **more: Any) -> Definition:
    return definition(algorithm, ("ResourceName", "epochs"), ("ResourceValue", str(most)), ("eta", str(eta)), **more)


class Simulation:
    """A search whose experiments end as `advance` says."""

    def __init__(self, one: Definition, score: Score, seed: int = 7) -> None:
        self.definition, self.score, self.seed = one, score, seed
        self.known: list[Known] = []
        self.told = 0
        self.most_active = 0
        self.over = False

    def act(self) -> int:
        """Do the next step of the strategy. Return the number of experiments that start or continue."""
        step = next_step(self.definition, self.seed, self.known)
        assert step == next_step(self.definition, self.seed, self.known)
        self.over = step.over
        for one in step.start:
            number = len(self.known) if one.id is None else one.id
            self.known.append(Known(number, dict(one.parameters), "running", one.resource, one.bracket, one.rung,
                                    origin=one.origin))
        for number, rung, resource in step.promote:
            old = self.known[number]
            assert old.state == "resting" and old.rung == rung - 1 and old.value is not None
            self.known[number] = replace(old, state="running", rung=rung, resource=resource, value=None, told=None)
        self.most_active = max(self.most_active, len(self.running()))
        return len(step.start) + len(step.promote)

    def running(self) -> list[int]:
        return [index for index, one in enumerate(self.known) if one.state == "running"]

    def end(self, index: int) -> None:
        """End or set aside a running experiment."""
        one = self.known[index]
        value = self.score(dict(one.parameters), one.resource)
        rests = self.definition.resume and one.resource != self.definition.most_resource
        state = "failed" if value is None else "resting" if rests else "done"
        values = (*one.values, value) if self.definition.resume and value is not None else one.values
        self.known[index] = replace(one, state=state, value=value, values=values, told=self.told)  # type: ignore[arg-type]
        self.told += 1

    def run(self, order: random.Random, most: int = 2000) -> list[Known]:
        """Run until the search is over. Return its experiments."""
        for _ in range(most):
            self.act()
            if self.over:
                return self.known
            if running := self.running():
                self.end(order.choice(running))
        raise AssertionError("the search does not end")
