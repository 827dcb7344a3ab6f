"""Packs of jobs as applications: clients list the jobs of a pack below it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from dlicmd.contract import states
from local_backend.api.models.applications import Application
from local_backend.api.objects import plain

_LIMITS = ("ncpus", "ngpus", "mem")


def parents(applications: Sequence[Application]) -> list[Application]:
    """Return one application for each pack that has jobs. Its limits are the sums of what its jobs may use."""
    packs: dict[str, list[Application]] = {}
    for application in applications:
        if "pack_id" in application:
            packs.setdefault(application["pack_id"], []).append(application)
    return [_parent(name, jobs) for name, jobs in packs.items()]


def _parent(name: str, jobs: Sequence[Application]) -> Application:
    active = [job for job in jobs if not states.is_terminal(job["state"])]
    over, jobs = not active, active or jobs
    first = min(jobs, key=lambda job: int(job["submit_time"]))
    running = [job for job in jobs if job["state"] == states.RUNNING]
    began = [job["start_time"] for job in jobs if job["start_time"] and (over or job in running)]
    limits = {key: sum(map(_limit(key), jobs)) for key in _LIMITS}
    return {
        "id": name,
        "name": name.partition(":")[2],
        "state": states.RUNNING if running else _worst(jobs) if over else first["state"],
        "type": first["type"],
        "tag": first["tag"],
        "consumer": first["consumer"],
        "submit_user": first["submit_user"],
        "priority": max(job["priority"] for job in jobs),
        "submit_time": first["submit_time"],
        "start_time": min(began, default=0),
        "end_time": max(job["end_time"] for job in jobs) if over else 0,
        "task12n_resreq": ",".join(f"{key}_limit={plain(limits[key])}" for key in _LIMITS),
        "task12n_num": 1,
        "used_gpu": _used(jobs, "used_gpu"),
        "used_cpu": _used(jobs, "used_cpu"),
        "used_mem": _used(jobs, "used_mem"),
        "task12n": [],
        "kernels": first["kernels"],
        "is_packing": True,
    }


def _used(jobs: Sequence[Application], key: Literal["used_gpu", "used_cpu", "used_mem"]) -> float:
    return round(sum(job[key] for job in jobs), 3)


def _limit(key: str) -> Callable[[Application], float]:
    """Return a function from a job to what all its workers together may use of this resource."""

    def limit(job: Application) -> float:
        request = dict(item.split("=") for item in job["task12n_resreq"].split(","))
        return float(request[key]) * int(job["task12n_num"])

    return limit


def _worst(jobs: Sequence[Application]) -> str:
    """Return the worst of the jobs' end states."""
    ends = {str(job["state"]) for job in jobs}
    return next(state for state in (states.ERROR, states.KILLED, states.FINISHED) if state in ends)
