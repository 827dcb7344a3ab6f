"""Reads the searches of the first product generation, whose definitions have no command line."""

from __future__ import annotations

import json
from typing import Any

from dlicmd.contract.argv import join_args
from local_backend.fields import shown
from local_backend.hypersearch import literal, refusals

#: Frameworks of `resDef`, in one process and with `distribute`.
_FRAMEWORKS = {"tensorflow": "tensorflow", "pytorch": "PyTorch", "pytorchonelastic": "edtPyTorch"}
_DISTRIBUTED = {"tensorflow": "disttensorflow", "pytorch": "distPyTorch"}
#: Members of `resDef` → variables of the program.
_VARIABLES = {"maxiteration": "MAXITERATION", "batchsize": "BATCHSIZE", "initWeightPath": "INITWEIGHTPATH"}
_SYNCHRONOUS = "SYNC"
_WITH_LEAST = frozenset({"hyperband", "asha"})


def words_of(text: str | None) -> str | None:
    """Return the command line for the `resDef` of a definition; None if it has none."""
    try:
        definition = literal.read(text or "")
    except ValueError:
        return None
    found: Any = definition.get("resDef") if isinstance(definition, dict) else None
    if not isinstance(found, dict):
        return None
    framework = str(found.get("framework", ""))
    names = _FRAMEWORKS | (_DISTRIBUTED if str(found.get("distribute")).strip().lower() == "true" else {})
    words = ["--exec-start", names.get(framework.strip().lower(), framework)]
    for key, option in (("workerNum", "--numWorker"), ("gpuNum", "--gpuPerWorker")):
        if found.get(key):
            words += [option, str(found[key])]
    for key, variable in _VARIABLES.items():
        if found.get(key):
            words += ["--msd-env", f"{variable}={found[key]}"]
    return join_args(words)


def completed(text: str) -> str:
    """Return the text of a definition of this generation, with what `resDef` says besides the command line:
    `miniteration` is the smallest resource, and `resourceInstanceId` stands for `sigName`. Raises Invalid for training
    that is not synchronous."""
    try:
        definition = literal.read(text)
    except ValueError:
        return text  # the reader of definitions says what is wrong
    found: Any = definition.get("resDef") if isinstance(definition, dict) else None
    if not isinstance(found, dict):
        return text
    mode = str(found.get("syncMode") or _SYNCHRONOUS).strip().upper()
    if mode != _SYNCHRONOUS:
        raise refusals.definition(f"resDef: syncMode {shown(mode)} is not available, because workers train "
                                  f"synchronously here; use {_SYNCHRONOUS}")
    changed = {**definition}
    algorithm = definition.get("algoDef")
    if isinstance(algorithm, dict) and found.get("miniteration"):
        changed["algoDef"] = _with_least(algorithm, str(found["miniteration"]).strip())
    model = definition.get("modelSpec", {"args": words_of(text)})
    if found.get("resourceInstanceId") and isinstance(model, dict):
        changed["modelSpec"] = {"sigName": str(found["resourceInstanceId"]), **model}
    return json.dumps(changed)


def _with_least(algorithm: dict[str, Any], least: str) -> dict[str, Any]:
    """Return the algorithm with its smallest resource, if it has one that is not the default 1. Clients fill unused
    members with 0."""
    given = algorithm.get("algoParams") or []
    name = str(algorithm.get("algorithm", "")).strip().lower()
    if least in {"0", "1"} or name not in _WITH_LEAST or not isinstance(given, list):
        return algorithm
    return {**algorithm, "algoParams": [*given, {"name": "MinResource", "value": least}]}
