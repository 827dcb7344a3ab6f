"""The name under which kernels import their API: `from redhareapi import Kernel`."""

from local_backend.inference.kernel.api import Kernel, KernelContext, TaskContext, TaskError

__all__ = ["Kernel", "KernelContext", "TaskContext", "TaskError"]
