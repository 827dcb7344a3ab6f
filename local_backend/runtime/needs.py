"""What a submission needs of this machine: slots of which kind, how many, and which part of each. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection

from local_backend.jobspec import ANY_SLICE, JobSpec
from local_backend.scheduler.model import CPU, GPU, WHOLE

#: Part of a slot that a worker in a pack takes which names no limit.
PACKED = 0.5


def kind(spec: JobSpec, kinds: Collection[str]) -> str:
    """Kind of slot, of those that there are: what it asks for where there is such a thing; else GPUs, slices of them,
    or the CPU, the first that there is."""
    if spec.device_type == CPU:
        return CPU
    slices = sorted(set(kinds) - {CPU, GPU}, key=_size)
    if spec.mig_profile and slices:
        return slices[0] if spec.mig_profile == ANY_SLICE else spec.mig_profile
    return GPU if GPU in kinds else slices[0] if slices else CPU


def share(spec: JobSpec, of_kind: str) -> int:
    """Parts of a slot of this kind that a worker takes, of WHOLE."""
    part = spec.device_share
    if spec.pack:
        limit = spec.cpu_limit if of_kind == CPU else spec.gpu_limit
        part = limit if limit is not None else part if part < 1 else PACKED
    return max(1, min(WHOLE, int(part * WHOLE + 0.5)))


def slots(spec: JobSpec) -> tuple[int, int, int]:
    """Slots per worker, workers without which it cannot run, workers that it can use.

    An elastic job has one worker on each slot; one that shares its slot has that one.
    """
    if spec.shares:
        least = 1 if spec.elastic else spec.num_worker
        return 1, least, least
    if spec.elastic:
        return 1, spec.min_workers, spec.engines
    return max(1, spec.device_num), spec.num_worker, spec.num_worker


def remarks(spec: JobSpec, kinds: Collection[str]) -> list[str]:
    """What the launcher log says about what the job does not get as it was asked for."""
    found, got = [], kind(spec, kinds)
    if spec.device_type == GPU and got == CPU:
        found.append("asked for GPUs; this machine has none, so it runs on CPU slots")
    if spec.mig_profile and got in (CPU, GPU):
        found.append(f"asked for a MIG slice; this machine has none, so it runs on {got.upper()} slots")
    if spec.elastic and spec.shares:
        found.append("shares its slot with others, so it trains with one worker")
    return found


def _size(profile: str) -> list[int]:
    """Orders MIG profiles, `1g.10gb` before `2g.20gb`."""
    return [int(digits) for digits in re.findall("[0-9]+", profile)]
