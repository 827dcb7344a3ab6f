"""Pickles that keep what torch's own pickles leave out, so that a training is the same in the process that reads it.

torch drops hooks of parameters and optimizers, all other attributes of an optimizer, and the compilation of a module by
`module.compile()`. torch refuses parametrized modules, compiled functions and TorchScript. The pickles of this module
keep all of these features.
"""

from __future__ import annotations

import functools
import importlib
import io
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType, ModuleType
from typing import Any

import cloudpickle
import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.optim import Optimizer

#: Depth of the search for an object that cannot be pickled.
SEARCH_DEPTH = 8


def dumps(value: Any, names: Any = None, addressed: Sequence[Any] = ()) -> bytes:
    """Return the value as bytes for `loads`. Raises any exception of pickling.

    Args:
        names: the object that the reader uses as the global names of the script's functions; None for new names.
        addressed: objects whose addresses (`id`) the value may contain. The reader gets the addresses of its objects.
    """
    file = io.BytesIO()
    pickler = _AddressWriter(file, addressed) if addressed else Pickler(file)
    if names is not None:
        pickler.globals_ref[id(vars(sys.modules["__main__"]))] = names
    pickler.dump(value)
    return file.getvalue()


def loads(data: bytes) -> Any:
    """Return the value that `dumps` was given."""
    return _AddressReader(io.BytesIO(data)).load()


def can_dump(value: Any) -> bool:
    """Return whether a value can be pickled."""
    try:
        dumps(value)
    except Exception:
        return False
    return True


class Pickler(cloudpickle.Pickler):
    """Pickles importable objects by name, classes and functions of the main script by value."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, nn.Parameter):
            hooks = [list((kind or {}).values()) for kind in (obj._backward_hooks, obj._post_accumulate_grad_hooks)]
            return _with(obj, _set_hooks, *hooks) if any(hooks) else NotImplemented
        if isinstance(obj, (torch.jit.ScriptModule, torch.jit.ScriptFunction)):
            return _of_script(obj)
        if isinstance(obj, nn.Module):
            return self._module(obj)
        if isinstance(obj, Optimizer) and type(obj).__getstate__ is Optimizer.__getstate__:
            return _new, (type(obj),), _attributes(obj), None, None, _set_attributes
        if isinstance(obj, ModuleType) and type(obj) is not ModuleType and sys.modules.get(obj.__name__) is obj:
            # torch.backends.cudnn and others are objects of their own subclasses of ModuleType.
            return importlib.import_module, (obj.__name__,)
        return _of_renamed(obj) or _of_wrapper(obj) or super().reducer_override(obj)

    @staticmethod
    def _module(module: nn.Module) -> Any:
        parametrized = parametrize.is_parametrized(module) and type(module).__name__.startswith("Parametrized")
        compiler = _compiler(module._compiled_call_impl)
        if not parametrized and compiler is None:
            return NotImplemented
        if not parametrized:
            return _with(module, _set_compiler, compiler)
        return _new, (type(module).__base__,), (nn.Module.__getstate__(module), compiler), None, None, _set_parametrized


class _AddressWriter(Pickler):
    """Pickles the addresses of objects as references to the objects."""

    def __init__(self, file: io.BytesIO, addressed: Sequence[Any]) -> None:
        super().__init__(file)
        self._addressed = {id(item): item for item in addressed}

    def persistent_id(self, item: Any) -> Any:
        return self._addressed.get(item) if type(item) is int else None


class _AddressReader(pickle.Unpickler):
    def persistent_load(self, item: Any) -> int:
        return id(item)


# --- restoring objects in the process that reads them


def _with(obj: Any, complete: Callable[..., None], *more: Any) -> tuple[Any, ...]:
    """Return the usual reduction of an object, followed by `complete(object, *more)` on the restored object."""
    make, arguments, *rest = obj.__reduce_ex__(2)
    state, *rest = rest or [None]
    return make, arguments, (state, complete, more), *(rest or [None, None]), _complete


def _complete(obj: Any, parts: tuple[Any, Callable[..., None], tuple[Any, ...]]) -> None:
    state, complete, more = parts
    if state is not None:
        obj.__setstate__(state)
    complete(obj, *more)


def _new(kind: Any) -> Any:
    return kind.__new__(kind)


def _set_hooks(parameter: nn.Parameter, backward: list[Any], accumulated: list[Any]) -> None:
    for hook in backward:
        parameter.register_hook(hook)
    for hook in accumulated:
        parameter.register_post_accumulate_grad_hook(hook)


def _attributes(optimizer: Optimizer) -> dict[str, Any]:
    """Return all attributes, with None for `step` if it is the wrapper that torch's schedulers put around it."""
    attributes = dict(vars(optimizer))
    if getattr(attributes.get("step"), "_wrapped_by_lr_sched", False):
        attributes["step"] = None
    return attributes


def _set_attributes(optimizer: Optimizer, attributes: dict[str, Any]) -> None:
    scheduled = "step" in attributes and attributes["step"] is None
    optimizer.__setstate__({name: value for name, value in attributes.items() if name != "step" or not scheduled})
    if scheduled:
        plain = optimizer.step

        @functools.wraps(plain)
        def step(*arguments: Any, **keywords: Any) -> Any:
            optimizer._opt_called = True  # type: ignore[attr-defined]
            return plain(*arguments, **keywords)

        # Without this mark, schedulers warn that `step` was replaced.
        step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
        optimizer.step = step  # type: ignore[method-assign]


def _set_compiler(module: nn.Module, compiler: Any) -> None:
    if compiler is not None:
        module._compiled_call_impl = compiler(module._call_impl)


def _set_parametrized(module: nn.Module, parts: tuple[dict[str, Any], Any]) -> None:
    state, compiler = parts
    nn.Module.__setstate__(module, state)
    parametrize._inject_new_class(module)
    for name in module.parametrizations:  # type: ignore[union-attr]
        parametrize._inject_property(module, str(name))
    _set_compiler(module, compiler)


def _of_renamed(obj: Any) -> tuple[Any, ...] | None:
    """Return the reduction of a class whose `__qualname__` is not its name in its module, as of SDPBackend in
    torch.nn.attention. Return None for other objects."""
    if not isinstance(obj, type) or obj.__name__ == obj.__qualname__:
        return None
    module, name = sys.modules.get(obj.__module__), obj.__name__
    return (getattr, (module, name)) if getattr(module, name, None) is obj else None


def _of_wrapper(obj: Any) -> tuple[Any, ...] | None:
    """Return the reduction of a compiled or caching function that workers cannot import, None for other objects."""
    compiler = _compiler(obj)
    if compiler is not None and not importable(obj):
        return _compile, (compiler, obj._torchdynamo_orig_callable)
    if isinstance(obj, functools._lru_cache_wrapper) and not importable(obj):
        return _cached, (obj.__wrapped__, obj.cache_parameters())
    return None


def _of_script(obj: Any) -> tuple[Any, ...]:
    """Return the reduction of a function or module that torch.jit has compiled."""
    if isinstance(obj, torch.jit.ScriptFunction):
        return _script, (obj.save_to_buffer({}),)
    file = io.BytesIO()
    torch.jit.save(obj, file)
    return _script, (file.getvalue(),)


def _script(data: bytes) -> Any:
    return torch.jit.load(io.BytesIO(data))


def _cached(function: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


def _compile(compiler: Any, function: Callable[..., Any]) -> Any:
    return compiler(function)


def _compiler(function: Any) -> Any:
    """Return the compiler with which `torch.compile` made this function, None if it did not."""
    if not isinstance(function, FunctionType) or not hasattr(function, "_torchdynamo_orig_callable"):
        return None
    kind = sys.modules["torch._dynamo.eval_frame"]._TorchDynamoContext
    held = [cell.cell_contents for cell in function.__closure__ or ()]
    return next((value for value in held if isinstance(value, kind)), None)


def importable(function: Any) -> bool:
    module = sys.modules.get(function.__module__)
    return function.__module__ != "__main__" and getattr(module, function.__name__, None) is function


# --- objects that cannot be pickled


def culprit(parts: dict[str, Any], error: Exception) -> tuple[str, str]:
    """Return (path, reason) of the innermost object that makes pickling `parts` fail with `error`."""
    for name, value in parts.items():
        reason = _failure(value)
        if reason is not None:
            return _innermost(name, value, reason, SEARCH_DEPTH)
    return "its arguments", str(error)


def _failure(value: Any) -> str | None:
    try:
        dumps(value)
    except Exception as error:
        return str(error).partition("\n")[0]
    return None


def _innermost(path: str, value: Any, reason: str, depth: int) -> tuple[str, str]:
    if depth:
        for name, item in _inside(value):
            why = _failure(item)
            if why is not None:
                return _innermost(f"{path}{name}", item, why, depth - 1)
    return f"{path} (a {type(value).__name__})", reason


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, nn.Module):
        yield from ((f".{name}", child) for name, child in value.named_children())
    closure = getattr(value, "__closure__", None)
    if closure:
        names = value.__code__.co_freevars
        yield from ((f" → {name}", cell.cell_contents) for name, cell in zip(names, closure, strict=True))
    if callable(value) and hasattr(value, "__globals__"):
        used = value.__code__.co_names
        yield from ((f" → {name}", value.__globals__[name]) for name in used if name in value.__globals__)
    if isinstance(value, dict):
        yield from ((f"[{key!r}]", item) for key, item in value.items())
    elif isinstance(value, (list, tuple)):
        yield from ((f"[{i}]", item) for i, item in enumerate(value))
    elif not callable(value) or isinstance(value, nn.Module):
        yield from ((f".{name}", item) for name, item in getattr(value, "__dict__", {}).items())
