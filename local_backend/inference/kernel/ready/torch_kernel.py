"""A ready-made kernel for PyTorch: torch.export, TorchScript, and weights with the code of their model."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from local_backend.inference.kernel.kernel_log import log_info
from local_backend.inference.kernel.problems import KernelProblem, TaskError
from local_backend.inference.kernel.ready.base import ReadyKernel, ReadyModel, library
from local_backend.inference.kernel.ready.model_files import READY_MADE, is_torchscript, only_defines
from local_backend.inference.kernel.ready.user_code import import_file
from local_backend.inference.kernel.tensors import TensorRequest, from_bf16

if TYPE_CHECKING:
    import numpy as np

#: Errors of a device, not of a request.
_DEVICE = re.compile(r"^(CUDA|cuDNN|CUBLAS|NCCL|HIP)\b|out of memory|can't allocate memory", re.IGNORECASE)


class TorchKernel(ReadyKernel):
    """Serves a model of PyTorch. Attributes: `class`, `class_args`, `device`, `allow_pickle`."""

    def load(self, model: ReadyModel) -> None:
        """Load the model onto the device of the kernel. Raises KernelProblem."""
        torch = library("torch", "torch", None)
        self._torch = torch
        device = model.attributes.get("device") or ("cuda" if torch.cuda.is_available() else "cpu")
        self._device = torch.device(device)
        path = model.file(*READY_MADE["torch"])
        if path.suffix == ".pt2":
            self._model = torch.export.load(path).module().to(self._device)
        elif is_torchscript(path):
            self._model = torch.jit.load(path, map_location=self._device).eval()
        else:
            self._model = _module_of(torch, path, model).to(self._device).eval()
        parameters = next(self._model.parameters(), None)
        self._dtype = parameters.dtype if parameters is not None and parameters.is_floating_point() else None
        self._takes_integers = _begins_with_embedding(self._model)
        self._names = _parameter_names(self._model)

    def takes(self) -> str:
        """Return what model.json says, or else what the first layer with weights takes."""
        return super().takes() or _taken_by(next(_layers(self._model), None))

    def refuses(self, problem: Exception) -> bool:
        """Return whether the request is wrong. PyTorch raises RuntimeError for tensors of a wrong shape or type, and
        for a device that fails; torch.export raises AssertionError."""
        if isinstance(problem, self._torch.OutOfMemoryError) or _DEVICE.search(str(problem)):
            return False
        return super().refuses(problem) or isinstance(problem, (RuntimeError, AssertionError))

    def prepared(self, request: TensorRequest) -> dict[str, np.ndarray]:
        """Return the inputs; integers of plain JSON are numbers for all models but those that take indices."""
        import numpy as np

        if any(one.dtype == object for one in request.inputs.values()):
            raise TaskError("This model takes numbers, not texts.", 400)
        if request.plain is None:
            return {name: from_bf16(one) if request.datatypes.get(name) == "BF16" else one
                    for name, one in request.inputs.items()}
        return {name: one if self._keeps(name, one) else one.astype(np.float32) for name, one in request.inputs.items()}

    def predict(self, inputs: dict[str, np.ndarray], wanted: tuple[str, ...]) -> dict[str, Any]:
        """Return the outputs of the model's forward."""
        torch = self._torch
        with torch.inference_mode():
            given = {name: self._tensor(one) for name, one in inputs.items()}
            if len(given) > 1 and set(given) <= set(self._names):
                found = self._model(**given)
            else:
                found = self._model(*given.values())
        return _named(found, torch.Tensor)

    def _keeps(self, name: str, array: np.ndarray) -> bool:
        declared = self._datatypes.get(name) or (next(iter(self._datatypes.values()), "") if not name else "")
        integers = declared.startswith(("INT", "UINT", "BOOL")) if declared else self._takes_integers
        return array.dtype.kind == "f" or integers

    def _tensor(self, array: np.ndarray) -> Any:
        tensor = self._torch.from_numpy(array if array.flags.writeable else array.copy())
        if self._dtype is not None and tensor.is_floating_point():
            tensor = tensor.to(self._dtype)
        return tensor.to(self._device)


def _named(found: Any, kind: type) -> dict[str, Any]:
    """Return what a forward returned as outputs. Raises TaskError."""
    if isinstance(found, kind):
        return {"output": found}
    if isinstance(found, dict):
        named = {str(name): one for name, one in found.items() if isinstance(one, kind)}
    elif isinstance(found, (list, tuple)):
        named = {f"output_{at}": one for at, one in enumerate(found) if isinstance(one, kind)}
    else:
        named = {}
    if not named:
        raise TaskError(f"The model returned {type(found).__name__}, not tensors.")
    return named


def _module_of(torch: Any, path: Path, model: ReadyModel) -> Any:
    """Return the module of a file of torch.save: weights, or a whole module. Raises KernelProblem."""
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as problem:
        if not model.flag("allow_pickle"):
            reason = (str(problem).strip().splitlines() or [type(problem).__name__])[0]
            raise KernelProblem(f"{path} contains more than weights ({reason}). A pickle can run any code: to load it, "
                                "set the attribute allow_pickle to true in model.json.") from None
        for module in model.folder.glob("*.py"):
            if only_defines(module):
                import_file(module)  # the classes that the pickle names
        found = torch.load(path, map_location="cpu", weights_only=False)
    if isinstance(found, torch.nn.Module):
        return found
    return _with_weights(torch, _state_of(found, path), model, path)


def _state_of(found: Any, path: Path) -> dict[str, Any]:
    """Return the state dict in a file: the whole, or a member with a usual name. Raises KernelProblem."""
    if isinstance(found, dict):
        for name in ("state_dict", "model_state_dict", "model"):
            if isinstance(found.get(name), dict):
                found = found[name]
                break
        if found and all(isinstance(name, str) for name in found):
            return {name.removeprefix("module."): value for name, value in found.items()}
    raise KernelProblem(f"{path} has no state dict of a model.")


def _with_weights(torch: Any, state: dict[str, Any], model: ReadyModel, path: Path) -> Any:
    """Return the model with these weights: of the class that the attribute `class` names, or the one that they fit."""
    named = model.attributes.get("class")
    arguments = _arguments(model.attributes.get("class_args"))
    reasons, fitting = [], []
    for where, kind in ([_named_class(named, model)] if named else _classes(torch, model.folder)):
        try:
            made = kind(**arguments)
            made.load_state_dict(state)
        except Exception as problem:
            reasons.append(f"{where}: {(str(problem).strip().splitlines() or [type(problem).__name__])[0]}")
        else:
            fitting.append((where, made))
    if len(fitting) != 1:
        what = ", ".join(where for where, _ in fitting) or "; ".join(reasons) or "no class of a model was found"
        raise KernelProblem(f"{path} contains weights, but the class of the model is unknown ({what}). Put the code of "
                            'the model into the folder, and name its class in the attribute class, such as '
                            '"network:Net".')
    log_info(f"The weights {path.name} fit {fitting[0][0]}.")
    return fitting[0][1]


def _arguments(text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text) if text else {}
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise KernelProblem('The attribute class_args must be a JSON object, such as {"hidden": 64}.')
    return found


def _named_class(named: str, model: ReadyModel) -> tuple[str, Any]:
    module, _, name = named.partition(":")
    path = model.folder / f"{module.replace('.', '/')}.py"
    found = vars(import_file(path)).get(name) if path.is_file() else None
    if not callable(found):
        raise KernelProblem(f'The attribute class is {named!r}, but {path} does not define {name or "a class"}. '
                            'Write the module and the class, such as "network:Net".')
    return named, found


def _classes(torch: Any, folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield the models that files of the folder define. Only files that do nothing else are imported."""
    for path in sorted(folder.glob("*.py")):
        if only_defines(path):
            for name, kind in vars(import_file(path)).items():
                if isinstance(kind, type) and issubclass(kind, torch.nn.Module) and kind.__module__ == path.stem:
                    yield f"{path.stem}:{name}", kind


def _layers(model: Any) -> Iterator[Any]:
    """Yield the layers with weights."""
    return (module for module in model.modules() if next(module.parameters(recurse=False), None) is not None)


def _kind_of(layer: Any) -> str:
    return str(getattr(layer, "original_name", type(layer).__name__))


def _begins_with_embedding(model: Any) -> bool:
    """Return whether the first layer with weights is an embedding, which takes indices."""
    first = next(_layers(model), None)
    return first is not None and "Embedding" in _kind_of(first)


def _taken_by(layer: Any) -> str:
    """Return a sentence about the inputs of a layer; empty if it is unknown."""
    size, channels = getattr(layer, "in_features", None), getattr(layer, "in_channels", None)
    if isinstance(size, int):
        return f"Its first layer takes {size} numbers for each sample."
    axes = {"Conv1d": "length", "Conv2d": "height x width", "Conv3d": "depth x height x width"}.get(_kind_of(layer))
    if isinstance(channels, int) and axes is not None:
        return f"Its first layer takes {channels} x {axes} numbers for each sample."
    return ""


def _parameter_names(model: Any) -> tuple[str, ...]:
    try:
        return tuple(inspect.signature(model.forward).parameters)
    except (TypeError, ValueError):
        return tuple(one.name for one in getattr(model.forward.schema, "arguments", ()))[1:]
