"""What all ready-made kernels share: they read the description, and run the tasks of a batch in one forward."""

from __future__ import annotations

import importlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from local_backend.inference.kernel import tensors
from local_backend.inference.kernel.api import Kernel
from local_backend.inference.kernel.kernel_log import log_info
from local_backend.inference.kernel.problems import KernelProblem, TaskError
from local_backend.inference.kernel.ready.model_files import is_yes, loaded
from local_backend.inference.kernel.tasks import KernelContext, TaskContext, tasks_from
from local_backend.inference.kernel.tensors import TensorRequest

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class ReadyModel:
    """What the description says to a ready-made kernel."""

    #: The folder of the model, and what `weight_path` names: a file, or a folder.
    folder: Path
    weights: Path
    attributes: Mapping[str, str]
    #: Name → datatype and shape of the inputs in model.json, if it has them. -1 is any size.
    datatypes: Mapping[str, str]
    shapes: Mapping[str, tuple[int, ...]]

    def flag(self, name: str) -> bool:
        """Return whether an attribute is `true`."""
        return is_yes(self.attributes.get(name, ""))

    def file(self, *suffixes: str) -> Path:
        """Return the file of the weights: `weight_path`, or the only file with one of these suffixes in that folder.

        Earlier suffixes come first, and `model_epoch_final` of a training before its other checkpoints. Raises
        KernelProblem.
        """
        found = loaded(self.weights, suffixes)
        if len(found) != 1:
            listed = ", ".join(path.relative_to(self.weights).as_posix() for path in found[:5])
            raise KernelProblem(f"The folder {self.weights} must have one file {' or '.join(suffixes)}, but it has "
                                f"{listed or 'none'}. Name the file with `weight_path` in model.json.")
        return found[0]


def model_of(description: Mapping[str, Any]) -> ReadyModel:
    """Return what a ready-made kernel needs of a description."""
    folder = Path(description.get("model_path") or os.environ.get("REDHARE_MODEL_PATH") or ".").resolve()
    named = str(description.get("weight_path") or ".")
    weights = folder if named == "N/A" else folder / named
    if not weights.exists():
        raise KernelProblem(f"`weight_path` names {weights}, which does not exist.")
    attributes = {str(one["key"]): str(one.get("value", "")) for one in description.get("attributes") or ()}
    datatypes, shapes = {}, {}
    for one in description.get("inputs") or ():
        datatypes[str(one.get("name"))] = str(one.get("datatype"))
        shapes[str(one.get("name"))] = tuple(one.get("shape") or ())
    return ReadyModel(folder, weights, attributes, datatypes, shapes)


def shown_shape(shape: Iterable[object]) -> str:
    """Return a shape as people write it: `any x 1 x 8 x 8`. What is not a positive number is any size."""
    return " x ".join(str(size) if isinstance(size, int) and size > 0 else "any" for size in shape)


def library(name: str, kernel: str, extra: str | None, package: str | None = None) -> Any:
    """Import a library. Raises KernelProblem with the extra that has it; without an extra, with the package."""
    top = name.partition(".")[0]
    try:
        return importlib.import_module(name)
    except ImportError as problem:
        if problem.name is not None and problem.name.partition(".")[0] != top:
            raise
        package = package or top
        wanted = f"'dlicmd[{extra}]'" if extra else package
        raise KernelProblem(f"The ready-made kernel `{kernel}` needs the package {package}. Install it with: "
                            f"pip install {wanted}") from None


class ReadyKernel(Kernel):
    """The base class of ready-made kernels."""

    def __init__(self) -> None:
        self._merges = True
        self._shapes: Mapping[str, tuple[int, ...]] = {}
        self._datatypes: Mapping[str, str] = {}

    def load(self, model: ReadyModel) -> None:
        """Load the model. Raises KernelProblem."""

    def predict(self, inputs: dict[str, np.ndarray], wanted: tuple[str, ...]) -> dict[str, Any]:
        """Return the outputs for inputs of which each row is a sample. `wanted` are names of outputs; () for all.

        Raises TaskError for inputs that the model does not take, and what the model raises.
        """
        raise TaskError("This model has no outputs.")

    def takes(self) -> str:
        """Return a sentence about the inputs that the model takes; empty if it is unknown."""
        described = [f"{name}: {self._datatypes[name]}, {shown_shape(shape)}"
                     for name, shape in self._shapes.items() if shape]
        return f"It takes {'; '.join(described)}." if described else ""

    def refuses(self, problem: Exception) -> bool:
        """Return whether an exception of the model means that the request is wrong."""
        return isinstance(problem, (TypeError, ValueError, IndexError))

    def prepared(self, request: TensorRequest) -> dict[str, np.ndarray]:
        """Return the inputs of a request as the model takes them. Raises TaskError."""
        return request.inputs

    def on_kernel_start(self, kernel_context: KernelContext) -> None:
        """Load the model."""
        model = model_of(json.loads(kernel_context.get_model_description()))
        self._shapes, self._datatypes = model.shapes, model.datatypes
        self.load(model)
        self._warm_up(model)
        log_info(f"The model {model.weights} is loaded.")

    def on_task_invoke(self, task_context: TaskContext) -> None:
        """Answer the tasks of a batch. Tasks with inputs of the same form are one forward."""
        groups: dict[Any, list[_Ask]] = {}
        for task in tasks_from(task_context):
            try:
                request = task.tensor_request()
                if request.plain is not None:
                    request = replace(request, inputs=self._shaped(request.inputs))
                ask = _Ask(task, request, self.prepared(request))
            except TaskError as problem:
                task.fail(problem.sentence, problem.status)
            else:
                groups.setdefault(ask.form, []).append(ask)
        for asks in groups.values():
            self._answer(asks)

    def _warm_up(self, model: ReadyModel) -> None:
        """Run the model once on zeros, if model.json says what it takes: the first forward of a process is slow."""
        import numpy as np

        zeros = {}
        for name, shape in model.shapes.items():
            kind = tensors.numpy_type(model.datatypes[name])
            if kind is None or not shape:
                return
            zeros[name] = np.zeros([1, *(size if size > 0 else 1 for size in shape[1:])], kind)
        if zeros:
            try:
                self.predict(self.prepared(TensorRequest(zeros, dict(model.datatypes))), ())
            except Exception as problem:
                log_info(f"The model does not take zeros of the shapes in model.json: {_sentence(problem)}")

    def _shaped(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return samples of plain JSON in the shape of model.json, if their numbers fill it."""
        first = next(iter(self._shapes.values()), ()) if len(self._shapes) == 1 else ()
        found = {}
        for name, array in inputs.items():
            rest = self._shapes.get(name, first)[1:]
            size = math.prod(rest)
            fits = rest and array.ndim and min(rest) > 0 and array.size == len(array) * size
            found[name] = array.reshape(-1, *rest) if fits else array
        return found

    def _answer(self, asks: list[_Ask]) -> None:
        if len(asks) > 1 and self._merges and all(ask.count is not None for ask in asks):
            try:
                self._answer_together(asks)
                return
            except Exception as problem:
                log_info(f"{len(asks)} requests fail together, so each runs alone: {_sentence(problem)}")
        alone = [self._answer_alone(ask) for ask in asks]
        if len(asks) > 1 and all(alone):
            self._merges = False  # the model takes no batch of this size

    def _answer_together(self, asks: list[_Ask]) -> None:
        import numpy as np

        names = asks[0].inputs
        together = {name: np.concatenate([ask.inputs[name] for ask in asks]) for name in names}
        outputs = self.predict(together, asks[0].wanted)
        count = sum(ask.count or 0 for ask in asks)
        if any(not hasattr(one, "__len__") or len(one) != count for one in outputs.values()):
            raise ValueError("an output has another number of rows than the inputs")
        at = 0
        for ask in asks:
            end = at + (ask.count or 0)
            ask.answer({name: one[at:end] for name, one in outputs.items()})
            at = end

    def _answer_alone(self, ask: _Ask) -> bool:
        """Answer one task. Return whether the model took its inputs."""
        try:
            ask.answer(self.predict(ask.inputs, ask.wanted))
        except TaskError as problem:
            ask.task.fail(problem.sentence, problem.status)
        except Exception as problem:
            if self.refuses(problem):
                ask.task.fail(f"The model does not take this input: {_sentence(problem)}. {self.takes()}".rstrip(), 400)
            else:
                ask.task.fail(f"The model failed: {_sentence(problem)}")
        else:
            return True
        return False


class _Ask:
    """A task with its inputs."""

    def __init__(self, task: TaskContext, request: TensorRequest, inputs: dict[str, np.ndarray]) -> None:
        self.task = task
        self.inputs = inputs
        self.wanted = tuple(request.wanted)
        counts = {len(one) if one.ndim else None for one in inputs.values()}
        #: Number of samples; None if the inputs are not rows of samples.
        self.count = counts.pop() if len(counts) == 1 else None
        #: Tasks of the same form can be one forward.
        self.form = (tuple((name, one.dtype.str, one.shape[1:]) for name, one in inputs.items()), self.wanted,
                     request.plain is None)

    def answer(self, outputs: dict[str, Any]) -> None:
        self.task.set_tensors(outputs)


def _sentence(problem: Exception) -> str:
    lines = str(problem).strip().splitlines()
    return f"{type(problem).__name__}: {lines[0][:500]}" if lines else type(problem).__name__
