"""The facts by which a driver recognizes its trainings among those that a killed driver has recorded.

The script runs again from the top, but it may skip trainings whose results it finds in its own files. So a training has
a record if it begins with the same state, data and options. The number of trainings before it does not matter.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from logging import Logger
from pathlib import Path, PurePath
from threading import Thread
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from local_backend.elastic.script import hooked
from local_backend.elastic.script.job import TrainingJob
from local_backend.elastic.state.fingerprints import leaves, of_tensors, of_text
from local_backend.elastic.worker.agreement import table_of

#: Files in the folder of a training: its facts; a file that exists when training has ended.
FACTS, ENDED = "training.json", "ended"
#: Facts that may come from the clock, or change with an update.
_DRAWN = {"seed": 0, "generators": "", "versions": {}, "script_seed": 0, "count": 0, "state": "", "data": ""}


@dataclass(frozen=True)
class Recorded:
    """A training that an earlier driver has recorded."""

    number: int
    facts: dict[str, Any]
    #: Whether training has ended.
    ended: bool


def facts_of(job: TrainingJob) -> dict[str, Any]:
    """Return the facts of a training before its first step: its state, and the values that its data, functions and
    options refer to."""
    return {
        "script_seed": torch.initial_seed(),
        "state": f"{table_of(job).digest % (1 << 64):016x}",
        "data": f"{_values_in(job):016x}",
    }


def recorded(root: Path, after: int) -> list[Recorded]:
    """Return the recorded trainings whose numbers are above `after`, in order."""
    numbers = (path.name.removeprefix("train-") for path in root.glob("train-*"))
    found = []
    for number in sorted(int(text) for text in numbers if text.isdecimal()):
        folder = root / f"train-{number}"
        facts = _read(folder / FACTS)
        if number > after and facts is not None:
            found.append(Recorded(number, facts, (folder / ENDED).exists()))
    return found


def find(trainings: list[Recorded], following: int, facts: Mapping[str, Any]) -> Recorded | None:
    """Return the recorded training that has these facts.

    `following`: the number of the next training if the script skips none. Its state may differ if the script takes its
    seed from the clock, and its values if it has not ended, because the script may refer to a time.
    """
    alike = [replace(one, facts={**_since(facts), **one.facts}) for one in trainings]
    alike = [one for one in alike if {**one.facts, **_DRAWN} == {**facts, **_DRAWN}]
    for one in alike:
        if _same(one, facts, "state") and _same(one, facts, "data"):
            return one
    for one in alike:
        state = _same(one, facts, "state") or one.facts["script_seed"] != facts["script_seed"]
        if one.number == following and state and (_same(one, facts, "data") or not one.ended):
            return one
    return None


def _same(one: Recorded, facts: Mapping[str, Any], name: str) -> bool:
    return bool(one.facts[name] == facts[name])


def _since(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts that records of earlier releases lack."""
    return {name: facts[name] for name in ("versions", "script_seed", "count", "state", "data")}


def _values_in(job: TrainingJob) -> int:
    """Return a fingerprint of the values that functions and options of a training refer to."""
    recipe = replace(job.recipe, lr_scheduler={}, state={}, resume_from=None)
    functions = [
        job.datasets_function, job.fn_batch_collate, job.fn_step_train, job.fn_test, job.loss_function, recipe.sampler,
    ]
    values = [recipe, job.fn_args, job.metrics, *functions, *map(hooked.named_values, functions)]
    texts: list[str] = []
    tensors: list[Tensor] = []
    apart = {id(item) for item in (*job.modules, *job.optimizers.values(), *job.callbacks)}
    try:
        for path, leaf in leaves(values, "", lambda item: _name(item, apart)):
            texts.append(path if isinstance(leaf, Tensor) else f"{path} {leaf}")
            if isinstance(leaf, Tensor):
                tensors.append(leaf)
    except Exception:
        return secrets.randbits(64)  # an object that raises when it is read counts as another one in each driver
    return of_text("\n".join([*texts, *map(str, of_tensors(tensors))]))


def _name(item: Any, apart: set[int]) -> str | None:
    """Return the name of an object that counts by its name only, such as parts of the state; None for other objects."""
    if isinstance(item, PurePath):
        return str(item)
    by_type = id(item) in apart or isinstance(item, (nn.Module, Optimizer, ModuleType, Logger, Thread))
    return type(item).__qualname__ if by_type else None


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
