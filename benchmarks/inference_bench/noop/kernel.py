"""Answers with its input."""

import redhareapiversion  # noqa: F401 (selects the version of redhareapi)
from redhareapi import Kernel


class Noop(Kernel):
    def on_task_invoke(self, task_context):
        while task_context is not None:
            task_context.set_output_data(task_context.get_input_data())
            task_context = task_context.next()


if __name__ == "__main__":
    Noop().run()
