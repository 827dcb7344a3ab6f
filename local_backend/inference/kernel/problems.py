"""What goes wrong in a kernel: the error of a task, which the client gets, and that of a kernel that cannot start."""

from __future__ import annotations


class TaskError(Exception):
    """Raise it in `on_task_invoke` with a sentence for the client: all tasks without output fail with it.

    `status` is the HTTP status of the answer: 400 if the request is at fault, 500 if the kernel is.
    """

    def __init__(self, sentence: str, status: int = 500) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.status = status


class KernelProblem(Exception):
    """A kernel cannot start because of its description, its files or a library. The text is for the owner."""
