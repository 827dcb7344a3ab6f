"""The profile of a model: how many kernels it may have, what each one gets, and how requests are bounded."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from local_backend.inference.control import RequestLimits

#: `no`: kernels run on CPU slots. `exclusive`: each kernel has a GPU slot. `shared`: several kernels share a GPU slot.
GpuMode = Literal["no", "shared", "exclusive"]


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
    pack: str = ""
    #: Fraction of a slot that a kernel takes: 1.0 unless kernels share slots.
    kernel_share: float = 1.0
    #: Bytes of memory of one kernel; None for no limit.
    memory: int | None = None
    resource_plan: str = ""
    environment: dict[str, str] = field(default_factory=dict)
