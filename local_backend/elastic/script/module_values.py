"""Values in the modules of the user. Workers import these modules anew, so changes that the script made would be lost.

Random numbers drawn at import would be lost, too. So the driver sends the values of global names and class attributes.
A worker sets the values that differ: at once in modules that are already imported, in others after their import.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.abc
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import EnumMeta
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

import torch
from torch import nn

from local_backend.elastic.errors import EngineError
from local_backend.elastic.script import pickles
from local_backend.elastic.script.generators import is_generator
from local_backend.elastic.script.user_code import user_modules

#: An assignment counts if its right side contains one of these names.
_MARKS = frozenset({
    "cuda", "is_available", "device_count", "current_device", "getpid", "LOG_DIR", "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES", "TASK_ID", "DLI_TASK_ID", "DLI_IS_DRIVER", "DLI_WORKER_NUMBER", "IS_TASK0",
})


def of_process(module: ModuleType) -> frozenset[str]:
    """Return the names of the module and of its classes that are assigned from values that differ between processes."""
    try:
        tree = ast.parse(Path(str(module.__file__)).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return frozenset()
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign):
            targets = [node.target]
        else:
            continue
        if node.value is not None and any(_is_mark(part) for part in ast.walk(node.value)):
            found.update(part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name))
    return frozenset(found)


def _is_mark(node: ast.AST) -> bool:
    name = getattr(node, "attr", None) or getattr(node, "id", None) or getattr(node, "value", None)
    return isinstance(name, str) and name in _MARKS


#: Most bytes of all values together. Beyond this limit, only digests of the largest values are sent.
MOST_BYTES = 64 << 20
#: The name of a device: each process has its own.
_DEVICE = re.compile(r"(cpu|cuda|gpu|mps|xpu)(:\d+)?")
#: Types of objects that functions of a module share with the trained model, by identity.
_BY_IDENTITY = (nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler, torch.Tensor)


@dataclass
class Value:
    """The value of a name in the driver."""

    value: Any
    digest: str
    #: Whether the value is large, so that only its digest is here.
    large: bool = False


@dataclass
class ModuleValues:
    """Module → name, or `Class.name` → value."""

    modules: dict[str, dict[str, Value]] = field(default_factory=dict)

    @classmethod
    def gather(cls, shared: Iterable[Any]) -> ModuleValues:
        """Return the values of the user's modules in this process. The size of `shared` objects does not count, because
        they are sent anyway. Values that cannot be pickled are left out."""
        known = {id(item) for item in shared}
        sized: list[tuple[int, Value]] = []
        values = cls()
        for module in user_modules():
            found = values.modules.setdefault(module.__name__, {})
            for owner, prefix in _owners(module):
                for name, item in _data(owner):
                    told = _told(item)
                    if told is not None and (not told[2] or pickles.can_dump(item)):
                        found[prefix + name] = Value(item, told[1])
                        sized.append((0 if id(item) in known else told[0], found[prefix + name]))
        total = 0
        for size, value in sorted(sized, key=lambda pair: pair[0]):
            total += size
            if total > MOST_BYTES and size:
                value.value, value.large = None, True
        return values

    def apply(self) -> None:
        """Set the values that differ in this process's modules. Raises EngineError if such a value is large."""
        late = {}
        for name, values in self.modules.items():
            if name in sys.modules:
                _set(sys.modules[name], values)
            elif values:
                late[name] = values
        if late:
            sys.meta_path.insert(0, _Late(late))


    def import_all(self) -> None:
        """Import the modules that the script had imported, also those to which nothing refers: they may register
        operators or classes when they are imported. A module that cannot be imported only causes a warning."""
        for name in self.modules:
            try:
                importlib.import_module(name)
            except (Exception, SystemExit) as error:
                warnings.warn(f"this worker cannot import {name}, as the script did ({error!r})", stacklevel=2)


class _Late(importlib.abc.MetaPathFinder):
    """A finder that sets the values of modules after their import."""

    def __init__(self, values: dict[str, dict[str, Value]]) -> None:
        self._values = values

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Find the module as the other finders do."""
        if name not in self._values:
            return None
        others = (one for one in sys.meta_path if one is not self and hasattr(one, "find_spec"))
        spec = next(filter(None, (one.find_spec(name, path, target) for one in others)), None)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = self._then_set(name, spec.loader.exec_module)  # type: ignore
        return spec

    def _then_set(self, name: str, execute: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
        def exec_module(module: ModuleType) -> None:
            execute(module)
            _set(module, self._values.pop(name, {}))

        return exec_module


def _owners(module: ModuleType) -> Iterator[tuple[Any, str]]:
    """Yield (module or class that is defined in it, prefix of the names of its values)."""
    yield module, ""
    for name, item in list(vars(module).items()):
        if isinstance(item, type) and item.__module__ == module.__name__ and not isinstance(item, EnumMeta):
            yield item, f"{name}."


def _data(owner: Any) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) of a module or class for data, and for functions and classes of the script."""
    for name, item in list(vars(owner).items()):
        if name.startswith("__") or isinstance(item, ModuleType):
            continue
        if isinstance(item, (FunctionType, type)):
            if item.__module__ == "__main__":
                yield name, item
        elif not hasattr(type(item), "__get__"):
            yield name, item


def _told(value: Any) -> tuple[int, str, bool] | None:
    """Return (size of the pickle in bytes, digest, whether the value has functions that may not be picklable). Return
    None if the value cannot be pickled."""
    for fast in (True, False):
        file = _Digest()
        # Equal values have equal pickles only without a memo, but a value that refers to itself needs a memo.
        pickler = _Digester(file, fast)
        try:
            pickler.dump(value)
        except Exception:
            continue
        return file.size, file.digest.hexdigest(), pickler.functions
    return None


class _Digest:
    """A file that keeps only the size and digest of the data written to it."""

    def __init__(self) -> None:
        self.size = 0
        self.digest = hashlib.blake2b(digest_size=16)

    def write(self, data: Any) -> int:
        """Add bytes to the size and digest."""
        part = memoryview(data)
        self.size += part.nbytes
        self.digest.update(part)
        return part.nbytes


class _Digester(pickles.Pickler):
    """Pickles tensors as their elements, because their own pickles contain addresses. Pickles functions that cannot be
    imported as their code and values: they refer to themselves, which takes seconds without a memo."""

    def __init__(self, file: _Digest, fast: bool) -> None:
        """`fast`: pickle without a memo."""
        super().__init__(file)
        self.fast = fast
        #: Whether the value has such functions.
        self.functions = False

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, FunctionType) and not pickles.importable(obj):
            self.functions = True
            held = [_content(cell) for cell in obj.__closure__ or ()]
            # The values that the function holds come last, because one of them may be the function itself.
            return tuple, ((obj.__qualname__, _of_code(obj.__code__)),), (obj.__defaults__, obj.__kwdefaults__, held)
        if isinstance(obj, torch.Tensor):
            flat = obj.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
            return tuple, ((str(obj.dtype), tuple(obj.shape), flat),)
        return super().reducer_override(obj)


def _of_code(code: CodeType) -> tuple[Any, ...]:
    constants = [_of_code(one) if isinstance(one, CodeType) else one for one in code.co_consts]
    return code.co_code, code.co_names, code.co_varnames, code.co_freevars, constants


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _set(module: ModuleType, values: dict[str, Value]) -> None:
    """Set the values that differ in a module."""
    own = of_process(module)
    for path, wanted in values.items():
        owner, name = _find(module, path)
        if owner is None:
            continue
        here = vars(owner).get(name)
        if isinstance(wanted.value, _BY_IDENTITY) or is_generator(wanted.value):
            setattr(owner, name, wanted.value)
            continue
        told = _told(here) if name in vars(owner) else None
        if told is not None and told[1] == wanted.digest:
            continue
        if wanted.large:
            raise EngineError(
                f"{module.__name__}.{path} differs between the script and its workers, and is too large to send "
                "(limit: 64 MiB for all modules together): compute it in datasets_function, or from a fixed seed"
            )
        if not _update(here, wanted.value) and name not in own and not _is_device(wanted.value):
            setattr(owner, name, wanted.value)


def _find(module: ModuleType, path: str) -> tuple[Any, str]:
    """Return (module or class that has the name, name). The first is None if there is no such class."""
    prefix, _, name = path.rpartition(".")
    return (getattr(module, prefix, None) if prefix else module), name


def _update(here: Any, wanted: Any) -> bool:
    """Copy the contents of `wanted` into `here` if both have the same type, because other objects may refer to `here`.
    Return whether this was done. Names of devices stay."""
    if type(here) is not type(wanted):
        return False
    if isinstance(here, list):
        here[:] = wanted
    elif isinstance(here, set):
        here.clear()
        here.update(wanted)
    elif isinstance(here, dict):
        _update_items(here, wanted)
    elif type(getattr(here, "__dict__", None)) is dict and not isinstance(here, type | FunctionType):
        if type(here).__dictoffset__ == 0 or any(vars(kind).get("__slots__") for kind in type(here).__mro__):
            return False
        _update_items(vars(here), vars(wanted))
    else:
        return False
    return True


def _update_items(here: dict[Any, Any], wanted: dict[Any, Any]) -> None:
    items = {name: here[name] if name in here and _is_device(item) else item for name, item in wanted.items()}
    here.clear()
    here.update(items)


def _is_device(value: Any) -> bool:
    return isinstance(value, torch.device) or (isinstance(value, str) and bool(_DEVICE.fullmatch(value)))
