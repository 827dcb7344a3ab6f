"""Workloads for tests, from the values that matter to a test."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from local_backend.workload import Data, Environment, Program, Resources, Scheduling, Workload

_PARTS = {"program": Program, "environment": Environment, "data": Data, "resources": Resources,
          "scheduling": Scheduling}


def workload(**values: Any) -> Workload:
    """Return a workload with these values of its fields and of the fields of its parts; others get a default."""
    values = {"id": "local-1", "name": "test", "creator": "ada", "framework": "PyTorch"} | values
    values.setdefault("user", values["creator"])
    parts = {
        part: kind(**{field.name: values.pop(field.name) for field in fields(kind) if field.name in values})
        for part, kind in _PARTS.items()
    }
    return Workload(**parts, **values)
