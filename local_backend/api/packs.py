"""Packs of jobs as applications of their own: clients list the jobs of a pack below it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dlicmd.contract import states

_USED = ("used_gpu", "used_cpu", "used_mem")
_LIMITS = ("ncpus", "ngpus", "mem")


def parents(applications: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One application for each pack that has jobs; what they may use, added up, is its limit."""
    packs: dict[str, list[Mapping[str, Any]]] = {}
    for application in applications:
        if "pack_id" in application:
            packs.setdefault(application["pack_id"], []).append(application)
    return [_parent(name, jobs) for name, jobs in packs.items()]


def _parent(name: str, jobs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    active = [job for job in jobs if not states.is_terminal(job["state"])]
    over, jobs = not active, active or jobs
    first = min(jobs, key=lambda job: int(job["submit_time"]))
    running = [job for job in jobs if job["state"] in (states.RUNNING, states.RECOVERING)]
    requests = [dict(item.split("=") for item in job["task12n_resreq"].split(",")) for job in jobs]
    limits = {key: sum(float(request[key]) for request in requests) for key in _LIMITS}
    same = ("type", "tag", "consumer", "submit_user")
    return {
        "id": name,
        "name": name.removeprefix(f"pack-{first['submit_user']}-"),
        "state": running[0]["state"] if running else _worst(jobs) if over else first["state"],
        **{key: first[key] for key in same},
        "priority": max(job["priority"] for job in jobs),
        "submit_time": first["submit_time"],
        "start_time": min((job["start_time"] for job in running), default=0),
        "end_time": max(job["end_time"] for job in jobs) if over else 0,
        "task12n_resreq": ",".join(f"{key}_limit={limits[key]:g}" for key in _LIMITS),
        "task12n_num": 1,
        **{key: round(sum(job[key] for job in jobs), 3) for key in _USED},
        "task12n": [],
        "kernels": first["kernels"],
        "is_packing": True,
    }


def _worst(jobs: Sequence[Mapping[str, Any]]) -> str:
    """How jobs ended, in one word."""
    ends = {str(job["state"]) for job in jobs}
    return next(state for state in (states.ERROR, states.KILLED, states.FINISHED) if state in ends)
