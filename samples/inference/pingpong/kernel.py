"""Answers each request with its own data: the smallest kernel."""

import json

import redhareapiversion  # noqa: F401 (selects the version of redhareapi)
from redhareapi import Kernel


class PingPongKernel(Kernel):
    def on_task_invoke(self, task_context):
        while task_context is not None:
            request = json.loads(task_context.get_input_data())
            Kernel.log_debug(f"request {request.get('seq')}")
            task_context.set_output_data(json.dumps(request))
            task_context = task_context.next()


if __name__ == "__main__":
    PingPongKernel().run()
