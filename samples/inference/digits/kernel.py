"""Classifies images of handwritten digits. The requests of a batch take one forward."""

import json

import numpy as np
import redhareapiversion  # noqa: F401 (selects the version of redhareapi)
import torch
from network import Net
from redhareapi import Kernel, TaskError


class DigitsKernel(Kernel):
    def on_kernel_start(self, kernel_context):
        description = json.loads(kernel_context.get_model_description())
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.model = Net().to(self.device).eval()
        self.model.load_state_dict(torch.load(description["weight_path"], self.device, weights_only=True))
        Kernel.log_info(f"loaded {description['weight_path']} on {self.device}")

    def on_task_invoke(self, task_context):
        tasks, images = [], []
        while task_context is not None:
            try:
                images.append(images_of(task_context))
                tasks.append(task_context)
            except TaskError as problem:
                task_context.fail(str(problem), problem.status)
            task_context = task_context.next()
        if not tasks:
            return
        with torch.inference_mode():
            scores = self.model(torch.from_numpy(np.concatenate(images)).to(self.device)).softmax(1).cpu()
        for task, rows in zip(tasks, scores.split([len(one) for one in images])):  # noqa: B905
            task.set_tensors({"digits": rows.argmax(1), "probabilities": rows})


def images_of(task):
    """Return the images of a request as float32, number x 1 x 8 x 8."""
    (image,) = task.tensors().values()
    if image.dtype == object or image.size == 0 or image.size % 64:
        raise TaskError("An image has 8 x 8 numbers from 0 to 1.", 400)
    return image.astype(np.float32).reshape(-1, 1, 8, 8)


if __name__ == "__main__":
    DigitsKernel().run()
