"""The profile of a model: how many kernels it may have, what each one gets, and how requests are bounded."""

from __future__ import annotations

import copy
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from local_backend.errors import Invalid
from local_backend.fields import Fields, number_of, shown
from local_backend.inference.control import RequestLimits

#: `no`: kernels run on CPU slots. `exclusive`: each kernel has a GPU slot. `shared`: several kernels share a GPU slot.
GpuMode = Literal["no", "shared", "exclusive"]
#: The resource plan of models whose profile names none.
PLAN = "/local/inference"
_GPU: tuple[GpuMode, ...] = ("no", "shared", "exclusive")
_RESOURCES = "ncpus=0.5,ncpus_limit=2,mem=1024,mem_limit=4096"
#: Kernels that share a GPU take this part of it unless the profile says otherwise.
_SHARED = 0.5
_MIB = 1 << 20
#: Largest count and largest number of seconds that a profile may contain.
_MOST, _LONGEST = 100_000, 10.0**9
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")

#: The profile of a new model, as recorded, and with the values beyond: max_batch_delay_ms, queue_size, retry and
#: token_rate. Times are seconds.
_DEFAULTS: dict[str, Any] = {
    "schema_version": "1.2",
    "type": "inference",
    "create_time": "",
    "last_update_time": "",
    "replica": 1,
    "policy": {
        "name": "capacity", "schedule_interval": 3, "kernel_min": 1, "kernel_max": 100,
        "kernel_delay_release_time": 60, "task_execution_timeout": 60, "task_batch_size": 1, "task_pipe_size": 1,
        "task_parallel_size": 1, "stream_number_per_group": 0, "stream_discard_slow_tasks": True,
        "max_batch_delay_ms": 0, "queue_size": 1000, "retry": True, "token_rate": -1,
    },
    "security": {"ssl": {
        "enable": True, "server_crt": "${REDHARE_TOP}/security/server.crt",
        "server_key": "${REDHARE_TOP}/security/server.key",
    }},
    "resource_allocation": {
        "service": {"type": "k8s", "namespace": "local", "image_name": "", "node_selector": ""},
        "kernel": {
            "type": "msd", "resource_plan": PLAN.lstrip("/"), "resources": _RESOURCES, "accelerator_resources": "",
            "gpu_pack_id": "", "node_selector": "", "scheduler": "",
        },
    },
    "kernel": {
        "working_directory": "${REDHARE_TOP}/work", "log_directory": "${REDHARE_TOP}/logs", "connection_timeout": 90,
        "run_as": "", "umask": "022", "gpu": "no", "envs": [{"name": "DLIM_MK_LOG_LEVEL", "value": "INFO"}],
    },
}
_READ_ONLY = (("schema_version",), ("type",), ("resource_allocation", "service", "namespace"))
#: Values that the kernels of a started model got at their start, so they change only while the model is stopped.
_FIXED = (
    ("kernel", "gpu"), ("kernel", "envs"), ("kernel", "connection_timeout"),
    ("resource_allocation", "kernel", "resource_plan"), ("resource_allocation", "kernel", "resources"),
    ("resource_allocation", "kernel", "accelerator_resources"), ("resource_allocation", "kernel", "gpu_pack_id"),
    ("resource_allocation", "kernel", "node_selector"),
)


@dataclass(frozen=True)
class ModelProfile:
    """The values of a profile that the server acts on. Times are seconds."""

    limits: RequestLimits = field(default_factory=RequestLimits)
    kernel_min: int = 1
    #: None: no limit.
    kernel_max: int | None = 100
    schedule_interval: float = 3.0
    #: How long a surplus kernel is idle before its slot is given away.
    release_time: float = 60.0
    #: Longest time from the start of a kernel until it is ready.
    connection_timeout: float = 90.0
    gpu: GpuMode = "no"
    #: The user's kernels, of any model, with the same pack share one GPU. Empty unless `gpu` is `shared`.
    pack: str = ""
    #: Fraction of a slot that a kernel takes: 1.0 unless kernels share slots.
    kernel_share: float = 1.0
    #: Bytes of memory of one kernel; None for no limit.
    memory: int | None = None
    resource_plan: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    #: Labels that the machine must have; an empty value matches any value.
    labels: dict[str, str] = field(default_factory=dict)


def default_profile(now: float) -> dict[str, Any]:
    """Return the profile of a model that is made at `now` (epoch seconds)."""
    return copy.deepcopy(_DEFAULTS) | {"create_time": stamp(now), "last_update_time": stamp(now)}


def stamp(when: float) -> str:
    """Return epoch seconds as profiles show times: `Wed Aug 10 08:17:46 2022 GMT`."""
    now = time.gmtime(when)
    day = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")[now.tm_wday]
    month = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")[now.tm_mon - 1]
    return f"{day} {month} {time.strftime('%d %H:%M:%S %Y', now)} GMT"


def changed_profile(before: Mapping[str, Any], given: object, now: float) -> dict[str, Any]:
    """Return a profile in which the members of `given` replace those of `before`. Members that `given` leaves out stay.
    Raises Invalid (`model.profile`)."""
    top = Fields(given, "the profile", _refuse)
    top.check_names(_DEFAULTS)
    merged = _merged(before, given)
    policy = merged["policy"]
    if "schedule_intervel" in policy:  # the spelling of the product's own description
        policy["schedule_interval"] = policy.pop("schedule_intervel")
    for path in _READ_ONLY:
        if _at(merged, path) != _at(before, path):
            raise _refuse(f"the profile: {'.'.join(path)} is read-only; it is {_at(before, path)!r}")
    merged["create_time"] = before["create_time"]
    merged["last_update_time"] = stamp(now)
    _check_pack(merged, to_profile(merged))
    typed: dict[str, Any] = _typed(merged, _DEFAULTS)
    return typed


def fixed_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the keys that differ, and that cannot change while the model is started."""
    return [".".join(path) for path in _FIXED if _at(before, path) != _at(after, path)]


def to_profile(value: Mapping[str, Any]) -> ModelProfile:
    """Return what the server acts on, of a complete profile. Raises Invalid (`model.profile`) with the key, the value
    that was found, and what is allowed."""
    top = Fields(value, "the profile", _refuse)
    _count(top, "replica", 1)
    policy = _section(value, "policy")
    kernel = _section(value, "kernel")
    allocation = _section(value, "resource_allocation", "kernel")
    ssl = _section(value, "security", "ssl")
    ssl.switch("enable")
    least = _count(policy, "kernel_min", 0)
    most = _bound(policy, "kernel_max")
    if most is not None and most < max(least, 1):
        raise policy.refuse("kernel_max", f"must be -1 (no limit), or at least 1 and at least kernel_min ({least}), "
                                          f"but it is {most}")
    gpu: GpuMode = kernel.word("gpu", _GPU)  # type: ignore[assignment]
    memory, pack, part = _memory(allocation), _pack(allocation), _share(allocation) if gpu == "shared" else 1.0
    if gpu == "shared" and pack:
        least = min(least, int(1 / part))  # a pack has 1 GPU; profiles that were stored earlier may want more of it
    return ModelProfile(
        limits=_limits(policy), kernel_min=least, kernel_max=most,
        schedule_interval=_seconds(policy, "schedule_interval"),
        release_time=_seconds(policy, "kernel_delay_release_time"),
        connection_timeout=_seconds(kernel, "connection_timeout"), gpu=gpu,
        pack=pack if gpu == "shared" else "", kernel_share=part, memory=memory,
        resource_plan=_plan(allocation), environment=_environment(kernel), labels=_labels(allocation),
    )


def _check_pack(value: Mapping[str, Any], found: ModelProfile) -> None:
    """Raise Invalid if the minimum of kernels does not fit into the pack."""
    policy = _section(value, "policy")
    least = policy.whole("kernel_min")
    if least != found.kernel_min:
        raise policy.refuse("kernel_min", f"must be at most {found.kernel_min} in the pack {found.pack}: a pack has 1 "
                                          f"GPU, and each kernel takes {found.kernel_share:g} of it, but it is {least}")


def _refuse(sentence: str) -> Invalid:
    return Invalid("model.profile", sentence)


def _merged(before: Mapping[str, Any], given: Any) -> dict[str, Any]:
    found = dict(before)
    for key, value in given.items():
        inner = before.get(key)
        if isinstance(inner, Mapping):
            if not isinstance(value, Mapping):
                raise _refuse(f"the profile: {key} must be an object with members, but it is {shown(value)}")
            found[key] = _merged(inner, value)
        else:
            found[key] = value
    return found


def _typed(value: Any, like: Any) -> Any:
    """Return a valid value with numbers and truth values in place of their texts, where `like` has such values."""
    if isinstance(like, Mapping):
        return {key: _typed(one, like.get(key)) for key, one in value.items()}
    if isinstance(value, str) and isinstance(like, bool):
        return value.strip().lower() == "true"
    return number_of(value) if isinstance(value, str) and isinstance(like, int | float) else value


def _at(value: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    found: Any = value
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _section(value: Mapping[str, Any], *path: str) -> Fields:
    found = Fields(_at(value, path), f"the profile: {'.'.join(path)}", _refuse)
    found.check_names(_at(_DEFAULTS, path))
    return found


def _count(section: Fields, key: str, least: int, most: int = _MOST) -> int:
    """Return a required whole number between two limits, which are included."""
    found = section.whole(key)
    if found is None or not least <= found <= most:
        raise section.refuse(key, f"must be a whole number from {least} to {most}, but it is "
                                  f"{shown(section.get(key))}")
    return found


def _bound(section: Fields, key: str) -> int | None:
    """Return a required limit: a whole number from 1, or None for -1."""
    found = section.whole(key)
    if found is None or (found != -1 and not 1 <= found <= _MOST):
        raise section.refuse(key, f"must be -1 (no limit), or a whole number from 1 to {_MOST}, but it is "
                                  f"{shown(section.get(key))}")
    return None if found == -1 else found


def _seconds(section: Fields, key: str) -> float:
    found = section.number(key)
    if found is None or not 0 < found <= _LONGEST:
        raise section.refuse(key, f"must be a number of seconds above 0, but it is {shown(section.get(key))}")
    return float(found)


def _limits(policy: Fields) -> RequestLimits:
    policy.word("name", ("capacity",))
    timeout = policy.number("task_execution_timeout")
    if timeout is None or (timeout != -1 and not 0 < timeout <= _LONGEST):
        raise policy.refuse("task_execution_timeout", "must be -1 (no limit), or a number of seconds above 0, but it "
                                                      f"is {shown(policy.get('task_execution_timeout'))}")
    delay = policy.number("max_batch_delay_ms")
    if delay is None or not 0 <= delay <= 60_000:
        raise policy.refuse("max_batch_delay_ms", "must be a number of milliseconds from 0 to 60000, but it is "
                                                  f"{shown(policy.get('max_batch_delay_ms'))}")
    rate = policy.number("token_rate")
    if rate is None or (rate != -1 and not 0 < rate <= _LONGEST):
        raise policy.refuse("token_rate", "must be -1 (no limit), or a number of requests per second above 0, but it "
                                          f"is {shown(policy.get('token_rate'))}")
    _count(policy, "stream_number_per_group", 0)
    policy.switch("stream_discard_slow_tasks")
    return RequestLimits(
        batch_size=_count(policy, "task_batch_size", 1), batch_delay=delay / 1000,
        pipe_size=_count(policy, "task_pipe_size", 1), parallel_size=_count(policy, "task_parallel_size", 1),
        execution_timeout=None if timeout == -1 else float(timeout), queue_size=_count(policy, "queue_size", 1, 10**6),
        token_rate=None if rate == -1 else float(rate), retry=policy.switch("retry"),
    )


def _amounts(section: Fields, key: str, known: tuple[str, ...]) -> dict[str, float]:
    """Return the amounts of a text such as `ncpus=0.5,mem=1024`."""
    text, found = section.text(key, most=400) or "", {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, amount = (word.strip() for word in part.partition("="))
        try:
            found[name] = float(amount)
        except ValueError:
            found[name] = -1.0
        if name not in known or not 0 < found[name] <= _LONGEST:
            raise section.refuse(key, f"must have the form NAME=NUMBER,NAME=NUMBER with the names {', '.join(known)} "
                                      f"and numbers above 0, but one part is {shown(part)}")
    return found


def _memory(allocation: Fields) -> int | None:
    """Return the limit on the memory of a kernel, in bytes. The recorded default is no limit: it has the size of the
    recorded server's containers, and would kill many models."""
    found = _amounts(allocation, "resources", ("ncpus", "ncpus_limit", "mem", "mem_limit"))
    limit = found.get("mem_limit", found.get("mem"))
    if limit is None or allocation.get("resources") == _RESOURCES:
        return None
    return int(limit * _MIB)


def _share(allocation: Fields) -> float:
    share = _amounts(allocation, "accelerator_resources", ("ngpus", "ngpus_limit")).get("ngpus", _SHARED)
    if share > 1:
        raise allocation.refuse("accelerator_resources", "must be ngpus=F with F above 0 and at most 1: a kernel uses "
                                                         f"one GPU at most, but it is ngpus={share:g}")
    return share


def _pack(allocation: Fields) -> str:
    pack = allocation.text("gpu_pack_id", most=63) or ""
    if pack and not _LABEL.fullmatch(pack):
        raise allocation.refuse("gpu_pack_id", "must have 1 to 63 letters, digits, '-', '_' or '.', but it is "
                                               f"{shown(pack)}")
    return pack


def _plan(allocation: Fields) -> str:
    plan = (allocation.text("resource_plan", most=400) or "").strip()
    if not plan.isprintable():
        raise allocation.refuse("resource_plan", f"must be the path of a resource plan, but it is {shown(plan)}")
    return "/" + plan.strip("/") if plan.strip("/") else ""


def _labels(allocation: Fields) -> dict[str, str]:
    text, found = allocation.text("node_selector", most=2000) or "", {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = part.partition("=")
        found[name.strip()] = value.strip()
    return found


def _environment(kernel: Fields) -> dict[str, str]:
    return variables(kernel.list("envs", most=500), kernel, "envs")


def variables(items: list[Any], section: Fields, key: str) -> dict[str, str]:
    """Return environment variables of a list of objects with `name` and `value`. Raises the error of the section."""
    found = {}
    for item in items:
        name, value = (item.get("name"), item.get("value")) if isinstance(item, Mapping) else (None, None)
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            raise section.refuse(key, "must be a list of objects with `name` (letters, digits and _) and `value`, but "
                                      f"one is {shown(item)}")
        if isinstance(value, bool) or not isinstance(value, str | int | float) or "\0" in str(value):
            raise section.refuse(key, f"must have texts as values, but {name} has {shown(value)}")
        found[name] = str(value)
    return found
