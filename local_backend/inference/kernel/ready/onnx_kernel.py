"""A ready-made kernel for models in the ONNX format, with ONNX Runtime."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from local_backend.inference.kernel.problems import TaskError
from local_backend.inference.kernel.ready.base import ReadyKernel, ReadyModel, library, shown_shape
from local_backend.inference.kernel.tensors import TensorRequest

if TYPE_CHECKING:
    import numpy as np

#: Type of ONNX Runtime → type of numpy.
_TYPES = {
    "tensor(float)": "float32", "tensor(double)": "float64", "tensor(float16)": "float16", "tensor(bool)": "bool",
    **{f"tensor({sign}int{bits})": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}


class OnnxKernel(ReadyKernel):
    """Serves an ONNX model. Attribute: `providers`, names of execution providers with commas between them."""

    def load(self, model: ReadyModel) -> None:
        """Load the model. Raises KernelProblem."""
        runtime = library("onnxruntime", "onnx", "inference-onnx")
        options = runtime.SessionOptions()
        threads = os.environ.get("OMP_NUM_THREADS", "")
        if threads.isdecimal():
            options.intra_op_num_threads = int(threads)
        named = [one.strip() for one in model.attributes.get("providers", "").split(",") if one.strip()]
        wanted = named or ["CUDAExecutionProvider", "CPUExecutionProvider"]
        providers = [one for one in wanted if named or one in runtime.get_available_providers()]
        self._session = runtime.InferenceSession(str(model.file(".onnx")), options, providers=providers)
        self._types = {one.name: _TYPES.get(one.type) for one in self._session.get_inputs()}
        self._outputs = [one.name for one in self._session.get_outputs()]

    def takes(self) -> str:
        """Return the inputs of the model with their shapes."""
        return f"It takes {'; '.join(f'{one.name}: {shown_shape(one.shape)}' for one in self._session.get_inputs())}."

    def refuses(self, problem: Exception) -> bool:
        """Return whether the request is wrong: ONNX Runtime names a wrong rank or size InvalidArgument. If the sizes of
        two tensors inside the model do not fit, only the text of its error says so."""
        kind = type(problem).__name__
        of_shapes = kind in ("RuntimeException", "Fail") and re.search("shape|dimension", str(problem)) is not None
        return super().refuses(problem) or kind == "InvalidArgument" or of_shapes

    def prepared(self, request: TensorRequest) -> dict[str, np.ndarray]:
        """Return the inputs by the names and types of the model. Raises TaskError."""
        found = {}
        for name, array in request.inputs.items():
            known = name if name in self._types else next(iter(self._types)) if len(request.inputs) == 1 else None
            if known is None or (name and known != name and request.plain is None):
                raise TaskError(f"The model has no input {name!r}. Inputs: {', '.join(self._types)}.", 400)
            kind = self._types[known]
            if kind is None:  # texts
                found[known] = _texts(array)
            elif array.dtype == object:
                raise TaskError(f"Input {known} takes numbers, not texts.", 400)
            else:
                found[known] = array.astype(kind, copy=False)
        missing = [name for name in self._types if name not in found]
        if missing:
            raise TaskError(f"The request lacks the input {missing[0]!r}.", 400)
        return found

    def predict(self, inputs: dict[str, np.ndarray], wanted: tuple[str, ...]) -> dict[str, Any]:
        """Return the outputs of the model."""
        unknown = [name for name in wanted if name not in self._outputs]
        if unknown:
            raise TaskError(f"There is no output {unknown[0]!r}. Outputs: {', '.join(self._outputs)}.", 400)
        names = list(wanted) or self._outputs
        return dict(zip(names, self._session.run(names, inputs)))  # noqa: B905 (Python 3.9 lacks strict)


def _texts(array: np.ndarray) -> np.ndarray:
    import numpy as np

    flat = [one.decode("utf-8", "surrogateescape") if isinstance(one, bytes) else str(one)
            for one in array.reshape(-1).tolist()]
    found = np.empty(len(flat), object)
    found[:] = flat
    return found.reshape(array.shape)
