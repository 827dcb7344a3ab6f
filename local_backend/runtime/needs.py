"""The resources that a submission needs on this machine: kind, number and fraction of slots; why it can never run.
Pure."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace

from local_backend.scheduler.model import CPU, GPU, WHOLE, Machine, SchedulerJob
from local_backend.scheduler.reasons import impossible, kind_name
from local_backend.workload import ANY_SLICE, Resources

#: Fraction of a slot that a worker in a pack takes if it sets no limit.
PACKED = 0.5


def kind(asked: Resources, kinds: Collection[str]) -> str:
    """Return the kind of slot that a job uses: CPU if it asks for CPU, its MIG profile if the machine has MIG slices.
    Otherwise return the first of GPU, MIG slice and CPU that is in `kinds`."""
    if asked.device_type == CPU:
        return CPU
    slices = sorted(set(kinds) - {CPU, GPU}, key=_size)
    if asked.mig_profile and slices:
        return slices[0] if asked.mig_profile == ANY_SLICE else asked.mig_profile
    return GPU if GPU in kinds else slices[0] if slices else CPU


def share(asked: Resources, of_kind: str) -> int:
    """Return the parts of a slot of this kind that a worker takes, of WHOLE."""
    part = asked.device_share
    if asked.pack:
        limit = asked.cpu_limit if of_kind == CPU else asked.gpu_limit
        part = limit if limit is not None else part if part < 1 else PACKED
    return max(1, min(WHOLE, int(part * WHOLE + 0.5)))


def slots(asked: Resources) -> tuple[int, int, int]:
    """Return the slots per worker, the minimum of workers, and the maximum of workers.

    An elastic job has one worker on each slot. An elastic job that shares its slot has one worker.
    """
    if asked.shares:
        least = 1 if asked.elastic else asked.num_worker
        return 1, least, least
    if asked.elastic:
        return 1, asked.min_workers, asked.engines
    return max(1, asked.device_num), asked.num_worker, asked.num_worker


def job(asked: Resources, kinds: Collection[str], user: str) -> SchedulerJob:
    """Return the request of a user as the scheduler sees it, without its place in the queue."""
    of_kind = kind(asked, kinds)
    per_worker, least, most = slots(asked)
    return SchedulerJob(
        exec_id="", user=user, kind=of_kind, plan=(), since=0.0, per_worker=per_worker, least=least, most=most,
        elastic=asked.elastic and not asked.shares, share=share(asked, of_kind),
        pack=f"{user}/{asked.pack}" if asked.pack else "", labels=tuple(asked.labels.items()),
        memory=asked.memory or 0,
    )


def service(asked: Resources, kernels_per_slot: int, kinds: Collection[str], user: str) -> SchedulerJob:
    """Return the request of a service as the scheduler sees it: an elastic job of slots, each with so many kernels. It
    needs 1 slot at least, because a service without kernels does not compete for slots. In a pack, it is an elastic job
    of kernels, which take parts of the pack's slot."""
    least = max(1, -(-asked.min_workers // kernels_per_slot))
    most = max(least, -(-asked.num_worker // kernels_per_slot))
    found = job(asked, kinds, user)
    if found.pack:
        most = max(least, min(most, WHOLE // found.share))
    return replace(found, serves=True, elastic=True, least=least, most=most, memory=found.memory * kernels_per_slot)


def wanting(
    service: SchedulerJob, kernels: int | None, minimum: int | None, kernels_per_slot: int, has: int | None = None
) -> SchedulerJob:
    """Return a service that wants this many `kernels` now, None for its minimum, and has a `minimum` of kernels, None
    for that of its submission. One that runs on fewer slots than its minimum, such as 0, goes on with what it `has`,
    because few kernels are better than none."""
    least = service.least if minimum is None else min(service.most, max(1, -(-minimum // kernels_per_slot)))
    slots = least if kernels is None else max(1, -(-kernels // kernels_per_slot))
    most = min(slots, service.most)
    least = least if has is None else min(least, max(1, has))
    return replace(service, least=min(least, most), most=most)


def refusal(asked: Resources, machine: Machine, user: str, allow_cpu: bool) -> str | None:
    """Return why a job can never run on this machine as it asks; None if it can. With `allow_cpu`, CPU slots replace
    GPUs that the machine lacks."""
    if _lacks_gpus(asked, machine.kinds) and not allow_cpu:
        return ("the job asks for GPUs, but the server has no GPU slots; add --allow-cpu to run it on CPU slots, or "
                "submit it to a server with GPUs")
    return impossible(job(asked, machine.kinds, user), machine)


def remarks(asked: Resources, machine: Machine) -> list[str]:
    """Return lines for people about requests that the job does not get as it asked."""
    found, got = [], kind(asked, machine.kinds)
    if _lacks_gpus(asked, machine.kinds):
        found.append("the job asks for GPUs, but this machine has none, so it runs on CPU slots")
    elif asked.mig_profile and got in (CPU, GPU):
        found.append(f"the job asks for a MIG slice, but this machine has none, so it runs on {got.upper()} slots")
    total, (_, _, most) = machine.count(got), slots(asked)
    if asked.elastic and asked.shares:
        found.append("the job shares its slot with other jobs, so it trains with 1 worker")
    elif asked.elastic and most > total:
        found.append(f"the job asks for {most} workers, but this machine has {total} {kind_name(got)} "
                     f"slot{'' if total == 1 else 's'}, so it trains with at most {total}")
    return found


def _lacks_gpus(asked: Resources, kinds: Collection[str]) -> bool:
    """Return whether a job asks for a GPU or a part of one, and can only get a CPU slot."""
    return (asked.device_type == GPU or bool(asked.mig_profile)) and kind(asked, kinds) == CPU


def _size(profile: str) -> list[int]:
    """Return a sort key for MIG profiles: `1g.10gb` sorts before `2g.20gb`."""
    return [int(digits) for digits in re.findall("[0-9]+", profile)]
