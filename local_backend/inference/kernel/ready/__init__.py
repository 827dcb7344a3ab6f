"""Ready-made kernels: they serve a model file or folder without code of the user. See docs/write-a-kernel.md."""

from __future__ import annotations

import importlib

from local_backend.inference.kernel.problems import KernelProblem
from local_backend.inference.kernel.ready.base import ReadyKernel

#: Name → its module in this package, its class.
_KERNELS = {
    "torch": ("torch_kernel", "TorchKernel"),
    "onnx": ("onnx_kernel", "OnnxKernel"),
    "sklearn": ("sklearn_kernel", "SklearnKernel"),
    "xgboost": ("xgboost_kernel", "XgboostKernel"),
    "huggingface": ("huggingface_kernel", "HuggingFaceKernel"),
}


def make(name: str) -> ReadyKernel:
    """Return a ready-made kernel by its name. Raises KernelProblem."""
    if name not in _KERNELS:
        raise KernelProblem(f"There is no ready-made kernel {name!r}. Known: {', '.join(_KERNELS)}.")
    module, kind = _KERNELS[name]
    found: ReadyKernel = getattr(importlib.import_module(f"{__name__}.{module}"), kind)()
    return found
