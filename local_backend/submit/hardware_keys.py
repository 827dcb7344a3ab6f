"""Keys of a `hardwareSpec`: those that this server reads, those without an effect here, and misspelled ones. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dlicmd.contract.slips import meant
from local_backend.errors import Invalid
from local_backend.submit.values import whole_number

_READ = frozenset({"num_nodes", "mem.size", "gpu.num_gpu", "gpu.gpu_profile", "gpu.mig_profile"})
#: Keys of WMLA without an effect here → why.
_UNUSED = {
    "cpu.units": "a worker gets whole slots, and the cores of the machine are divided by them",
    "num_drivers": "an elastic job has 1 driver, and other jobs have none",
    "drivers.cpu.units": "a driver needs no slot",
    "drivers.mem.size": "the memory of a driver has no limit",
}
_KNOWN = _READ | _UNUSED.keys()
#: Keys of a specification beside the keys of its nodes.
_OUTER = frozenset({"nodes", "name", "id", "href", "description"})


def check_keys(spec: Mapping[str, Any]) -> None:
    """Raise Invalid (`submission.hardware`) for a key that WMLA does not have."""
    for path in _unknown(spec):
        near = meant(path, _KNOWN)
        raise Invalid("submission.hardware", f"hardwareSpec: '{path[:60]}' is not known" +
                      (f"; did you mean {near}?" if near else f"; known keys are {', '.join(sorted(_KNOWN))}"))


def remarks(spec: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each key without an effect. Raises Invalid (`submission.hardware`) for a wrong number of
    drivers."""
    found = [f"hardwareSpec: '{path[:60]}' is not known, and has no effect" for path in _unknown(spec)]
    for path, value in _leaves(_nodes(spec)):
        if path == "num_drivers" and whole_number(value, "hardwareSpec num_drivers", 0, "submission.hardware") == 1:
            continue
        if path in _UNUSED:
            found.append(f"hardwareSpec {path} has no effect: {_UNUSED[path]}")
    return found


def _unknown(spec: Mapping[str, Any]) -> list[str]:
    found = [path for path, _ in _leaves(_nodes(spec)) if path not in _KNOWN]
    if "nodes" in spec:
        found += [path for path, _ in _leaves({key: spec[key] for key in spec.keys() - _OUTER})]
    return found


def _nodes(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the nodes of a specification; nothing for one that only names another one."""
    if "nodes" in spec:
        return spec["nodes"] if isinstance(spec["nodes"], dict) else {}
    return {} if spec.keys() & {"name", "id", "href"} else spec


def _leaves(value: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted path and the value of everything in the objects of WMLA's form that has a value."""
    for key, inner in value.items():
        path = f"{before}{key}"
        if isinstance(inner, dict) and any(one.startswith(f"{path}.") for one in _KNOWN):
            yield from _leaves(inner, f"{path}.")
        elif inner is not None and inner != "":
            yield path, inner
