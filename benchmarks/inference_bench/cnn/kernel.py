"""Answers with the scores of images, in batches."""

import json

import redhareapiversion  # noqa: F401 (selects the version of redhareapi)
from network import answers, network
from redhareapi import Kernel


class Images(Kernel):
    def on_kernel_start(self, kernel_context):
        self.network = network()

    def on_task_invoke(self, task_context):
        tasks = []
        while task_context is not None:
            tasks.append(task_context)
            task_context = task_context.next()
        images = [json.loads(one.get_input_data())["data"] for one in tasks]
        for task, scores in zip(tasks, answers(self.network, images), strict=True):
            task.set_output_data(json.dumps({"scores": scores}))


if __name__ == "__main__":
    Images().run()
