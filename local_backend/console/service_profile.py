"""The form of the profile of a model: its fields, and what they say. The service checks the values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import FormData

from local_backend.console.changes import field


@dataclass(frozen=True)
class ProfileField:
    """A field of the form: `name` is the path of the value in the profile, with dots."""

    name: str
    label: str
    hint: str = ""
    choices: tuple[str, ...] = ()
    value: str = ""
    problem: str = ""

    @property
    def key(self) -> str:
        """The last part of the path."""
        return self.name.rpartition(".")[2]


#: A value of one line for each variable.
_ENVS = "kernel.envs"
_STOPPED = "change it only while the model is stopped"
_FIELDS = (
    ProfileField("policy.kernel_min", "Minimum kernels", "0: a request starts the first kernel"),
    ProfileField("policy.kernel_max", "Maximum kernels", "-1: no limit"),
    ProfileField("policy.kernel_delay_release_time", "Seconds until an idle kernel ends"),
    ProfileField("policy.task_execution_timeout", "Maximum seconds per request", "-1: no limit"),
    ProfileField("policy.task_batch_size", "Maximum requests per batch"),
    ProfileField("policy.max_batch_delay_ms", "Maximum milliseconds that a batch waits for more requests"),
    ProfileField("policy.task_pipe_size", "Batches sent to a kernel in advance"),
    ProfileField("policy.task_parallel_size", "Batches that a kernel runs at the same time"),
    ProfileField("policy.queue_size", "Maximum waiting requests"),
    ProfileField("policy.token_rate", "Maximum requests per second and token", "-1: no limit"),
    ProfileField("kernel.gpu", "GPU", _STOPPED, ("no", "shared", "exclusive")),
    ProfileField("kernel.connection_timeout", "Maximum seconds for the start of a kernel", _STOPPED),
    ProfileField("resource_allocation.kernel.resource_plan", "Resource plan", _STOPPED),
    ProfileField("resource_allocation.kernel.resources", "Resources of a kernel",
                 f"such as ncpus=1,mem=2048; {_STOPPED}"),
    ProfileField(_ENVS, "Environment variables", f"NAME=VALUE, one on each line; {_STOPPED}"),
)


def profile_fields(
    profile: Mapping[str, Any], given: FormData | None = None, problem: str = ""
) -> list[ProfileField]:
    """Return the fields with the values of a profile, or with those of a refused form, and the problem beside the field
    that it names."""
    found = []
    for one in _FIELDS:
        value = _text(one, profile) if given is None else _given(given, one.name)
        named = re.search(rf"\b{re.escape(one.key)}\b", problem) is not None
        found.append(ProfileField(one.name, one.label, one.hint, one.choices, value, problem if named else ""))
    return found


def changes_of(form: FormData, profile: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a form that differ from those of a profile, as a part of a profile."""
    found: dict[str, Any] = {}
    for one in _FIELDS:
        given = _given(form, one.name)
        if one.name in form and given != _text(one, profile):
            *path, key = one.name.split(".")
            section = found
            for part in path:
                section = section.setdefault(part, {})
            section[key] = _variables(given) if one.name == _ENVS else _value(given, _at(profile, one.name))
    return found


def _given(form: FormData, name: str) -> str:
    return field(form, name).replace("\r\n", "\n")


def _at(profile: Mapping[str, Any], name: str) -> Any:
    value: Any = profile
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _text(one: ProfileField, profile: Mapping[str, Any]) -> str:
    value = _at(profile, one.name)
    if one.name == _ENVS and isinstance(value, list):
        return "\n".join(f"{each.get('name', '')}={each.get('value', '')}" for each in value)
    return "" if value is None else str(value)


def _value(text: str, before: object) -> Any:
    """Return a number if the value was one before and the text is one; else the text, which the service refuses if it
    must be a number."""
    if isinstance(before, int | float) and not isinstance(before, bool):
        for kind in (int, float):
            try:
                return kind(text)
            except ValueError:
                continue
    return text


def _variables(text: str) -> list[dict[str, str]]:
    pairs = (line.partition("=") for line in text.splitlines() if line.strip())
    return [{"name": name.strip(), "value": value} for name, _, value in pairs]
