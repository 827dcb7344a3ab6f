"""The API that kernels are written with, under the names of WMLA's `redhareapi`. See docs/write-a-kernel.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from local_backend.inference.kernel import kernel_log, serving
from local_backend.inference.kernel.problems import TaskError
from local_backend.inference.kernel.tasks import KernelContext, TaskContext

__all__ = ["Kernel", "KernelContext", "TaskContext", "TaskError"]

#: How many kernels this process has run. A kernel file that runs none gets its only subclass run.
_runs = 0
_serve: Callable[[Kernel], None] = serving.serve


def runs() -> int:
    """Return how many kernels this process has run."""
    return _runs


def serve_with(serve: Callable[[Kernel], None]) -> None:
    """Let `Kernel.run` call this function instead of connecting to a gateway."""
    global _serve
    _serve = serve


class Kernel:
    """The base class of kernels. Override what you need; an `__init__` need not call this one."""

    def on_kernel_start(self, kernel_context: KernelContext) -> Any:
        """Load the model. Called once per process; the kernel gets tasks after it has returned."""

    def on_task_invoke(self, task_context: TaskContext) -> Any:
        """Answer a batch: `task_context` and those that follow with `next()`. A generator yields parts of answers."""

    def on_kernel_shutdown(self) -> Any:
        """Release what the kernel holds. Called before the process ends."""

    def run(self) -> None:
        """Serve until the kernel is stopped."""
        global _runs
        _runs += 1
        _serve(self)

    @staticmethod
    def log(level: int, message: object) -> None:
        """Write a line to the log. Levels: -1 debug, 0 info, 1 warning, 2 error."""
        kernel_log.log(level, message)

    @staticmethod
    def log_debug(message: object) -> None:
        """Write a line of the level DEBUG."""
        kernel_log.log_debug(message)

    @staticmethod
    def log_info(message: object) -> None:
        """Write a line of the level INFO."""
        kernel_log.log_info(message)

    @staticmethod
    def log_warn(message: object) -> None:
        """Write a line of the level WARN."""
        kernel_log.log_warn(message)

    @staticmethod
    def log_error(message: object) -> None:
        """Write a line of the level ERROR."""
        kernel_log.log_error(message)
