"""Arguments of train() by which notebooks describe their workers, besides `engines_number`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

#: Keyword arguments of train() that notebooks pass. Memory arguments have no effect: the submitted job sets the memory.
ARGUMENTS = frozenset({"worker_memory", "driver_memory", "worker_num", "worker_device_num", "hardware_spec"})


def workers(engines: Any, given: Mapping[str, Any], whole: Callable[[str, Any, int], int]) -> int | None:
    """Return the largest number of workers, one per device; None if no argument gives it.

    `hardware_spec` comes first, then `engines` (the engines_number), then `worker_num` and `worker_device_num`.
    `whole(name, value, least)` checks a number. Raises TypeError and ValueError naming the argument.
    """
    specified = _specified(given.get("hardware_spec"), whole)
    if specified is not None:
        return specified
    if engines is not None:
        return whole("engines_number", engines, 1)
    if given.get("worker_num") is None:
        return None
    devices = given.get("worker_device_num")
    return whole("worker_num", given["worker_num"], 1) * _devices("worker_device_num", devices, whole)


def _specified(spec: Any, whole: Callable[[str, Any, int], int]) -> int | None:
    """Return the devices of all nodes of a hardware specification, None if it does not give the number of nodes."""
    if spec is None:
        return None
    if not isinstance(spec, Mapping):
        raise TypeError(f"hardware_spec must be a dict such as {{'nodes': {{'num_nodes': 2}}}}, not {spec!r}")
    nodes = spec.get("nodes")
    if not isinstance(nodes, Mapping):
        warnings.warn(
            "train() ignores hardware_spec: hardware specifications cannot be looked up by name or id; give a dict "
            "with 'nodes', or use engines_number",
            stacklevel=4,
        )
        return None
    if nodes.get("num_nodes") is None:
        return None
    gpu = nodes.get("gpu") or {}
    if not isinstance(gpu, Mapping):
        raise TypeError(f"gpu of hardware_spec must be a dict such as {{'num_gpu': 1}}, not {gpu!r}")
    count = whole("num_nodes of hardware_spec", _number(nodes["num_nodes"]), 1)
    return count * _devices("num_gpu of hardware_spec", _number(gpu.get("num_gpu")), whole)


def _devices(name: str, value: Any, whole: Callable[[str, Any, int], int]) -> int:
    """Return the number of devices of a worker. A worker without devices counts as one."""
    return max(1, 0 if value is None else whole(name, value, 0))


def _number(value: Any) -> Any:
    """Return a number that a specification may give as text."""
    return int(value) if isinstance(value, str) and value.isdecimal() else value
