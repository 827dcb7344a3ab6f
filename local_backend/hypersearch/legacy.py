"""Reads the searches of the first product generation, whose definitions have no command line."""

from __future__ import annotations

from typing import Any

from dlicmd.contract.argv import join_args
from local_backend.hypersearch import literal

#: Frameworks of `resDef`, in one process and with `distribute`.
_FRAMEWORKS = {"tensorflow": "tensorflow", "pytorch": "PyTorch", "pytorchonelastic": "edtPyTorch"}
_DISTRIBUTED = {"tensorflow": "disttensorflow", "pytorch": "distPyTorch"}


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
    for key, variable in (("maxiteration", "MAXITERATION"), ("batchsize", "BATCHSIZE")):
        if found.get(key):
            words += ["--msd-env", f"{variable}={found[key]}"]
    return join_args(words)
