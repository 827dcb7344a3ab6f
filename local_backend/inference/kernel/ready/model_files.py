"""The files of a model: those that can be its weights, and the classes that its code defines. The server reads them and
never runs them; a kernel imports them."""

from __future__ import annotations

import ast
import pickletools
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

#: Names of the ready-made kernels → suffixes of the files that they load, best first; none: they load a folder.
READY_MADE: Mapping[str, Sequence[str]] = {
    "onnx": (".onnx",),
    "torch": (".pt2", ".ts", ".torchscript", ".pt", ".pth"),
    "sklearn": (".skops", ".joblib", ".pkl", ".pickle"),
    "xgboost": (".ubj", ".json", ".model", ".skops", ".joblib", ".pkl"),
    "huggingface": (),
}
#: Words of an attribute that mean yes.
_YES = ("true", "yes", "1", "on")
#: Ends of the names of files that only continue a training, and the name of the weights at its end.
_STATES, _FINAL = ("_optimizer_state", "_ema"), "model_epoch_final"
#: Statements of a file that defines things, and does nothing else when it is imported.
_DEFINES = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)
#: Most bytes of a file that is read, and most Python files whose classes are listed.
_LARGEST, _MOST_FILES = 1 << 20, 200
#: Ends of the names of base classes in other packages that are not modules.
_NO_MODULES = ("Callback", "Dataset", "Enum", "Exception", "Kernel", "NamedTuple", "Sampler")
#: Packages whose classes are in files with weights alone.
_OF_WEIGHTS = frozenset({"torch", "collections", "numpy", "_codecs"})


@dataclass(frozen=True)
class ModelClass:
    """A class of the code of a model that can be a module of PyTorch. `name` is that of the attribute `class`; `needs`
    are arguments without a default. A kernel tries the class without its name only if the file `only_defines`."""

    name: str
    needs: tuple[str, ...]
    only_defines: bool


def weights_in(folder: Path, suffixes: Iterable[str]) -> list[Path]:
    """Return the files below a folder that can be weights, without those that only continue a training; without
    suffixes, the folders with a config.json."""
    wanted = frozenset(suffixes)
    if not wanted:
        return sorted(path.parent for path in folder.rglob("config.json") if path.is_file())
    return sorted(path for path in folder.rglob("*") if path.suffix in wanted and path.is_file()
                  and path.name != "model.json" and not path.stem.endswith(_STATES))


def preferred(found: list[Path]) -> list[Path]:
    """Return the weights at the end of a training, or else all files."""
    return [path for path in found if path.stem == _FINAL] or found


def loaded(weights: Path, suffixes: Sequence[str]) -> list[Path]:
    """Return the files of which a ready-made kernel loads the only one: `weights`, or those in this folder with the
    first suffix that exists."""
    if weights.is_file():
        return [weights]
    found = weights_in(weights, suffixes)
    best = [path for suffix in suffixes for path in found if path.suffix == suffix]
    return preferred([path for path in best if path.suffix == best[0].suffix])


def is_yes(text: str) -> bool:
    """Return whether the value of an attribute means yes."""
    return text.strip().lower() in _YES


def is_torchscript(path: Path) -> bool:
    """Return whether a file is a model in TorchScript, which needs no class."""
    return any(name.endswith("/constants.pkl") for name in _members(path))


def is_pickled_module(path: Path) -> bool:
    """Return whether a file of `torch.save` certainly contains more than weights."""
    name = next((one for one in _members(path) if one.endswith("/data.pkl")), None)
    if name is None:
        return False
    with zipfile.ZipFile(path) as archive, archive.open(name) as file:
        content = file.read(_LARGEST)
    try:
        used = {str(value) for code, value, _ in pickletools.genops(content) if code.name == "GLOBAL"}
    except ValueError:  # longer than what was read, or damaged: the kernel will tell
        return False
    return any(one.startswith("torch.nn.modules.") or one.partition(" ")[0].partition(".")[0] not in _OF_WEIGHTS
               for one in used)


def is_archive(path: Path) -> bool:
    """Return whether a file is an archive, as `torch.save` writes it; earlier versions of PyTorch wrote others."""
    return bool(_members(path))


def _members(path: Path) -> list[str]:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError):
        return []


def only_defines(path: Path) -> bool:
    """Return whether a file defines a class, and its import does nothing but define."""
    tree = _tree(path)
    return tree is not None and _is_import_safe(tree)


def python_files(folder: Path) -> list[Path]:
    """Return the Python files below a folder that can be read, at most 200."""
    found = (path for path in sorted(folder.rglob("*.py")) if path.is_file() and path.stat().st_size <= _LARGEST)
    return list(islice(found, _MOST_FILES))


def classes_in(folder: Path) -> list[ModelClass]:
    """Return the classes in the Python files of a folder that can be modules: those of the files at its top that only
    define, then all others."""
    trees = [(path, tree) for path in python_files(folder) if (tree := _tree(path)) is not None]
    kinds = {one.name: one for _, tree in trees for one in tree.body if isinstance(one, ast.ClassDef)}
    found = [
        ModelClass(f"{'.'.join(path.relative_to(folder).with_suffix('').parts)}:{kind.name}", tuple(_needed(kind)),
                   path.parent == folder and _is_import_safe(tree))
        for path, tree in trees for kind in tree.body if isinstance(kind, ast.ClassDef) and _can_be_module(kind, kinds)]
    return sorted(found, key=lambda one: not one.only_defines)


def _tree(path: Path) -> ast.Module | None:
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError, OSError, RecursionError, MemoryError):
        return None


def _is_import_safe(tree: ast.Module) -> bool:
    return any(isinstance(one, ast.ClassDef) for one in tree.body) and all(
        isinstance(one, _DEFINES) or (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))
        or (isinstance(one, ast.If) and "__name__" in ast.unparse(one.test)) for one in tree.body)


def _can_be_module(kind: ast.ClassDef, kinds: dict[str, ast.ClassDef], depth: int = 8) -> bool:
    """Return whether a base of a class, or of its bases in these files, is a class of another package that can be a
    module."""
    for base in kind.bases:
        name = ast.unparse(base).rpartition(".")[2]
        inner = kinds.get(name)
        if inner is None and name != "object" and not name.endswith(_NO_MODULES):
            return True
        if inner is not None and inner is not kind and depth and _can_be_module(inner, kinds, depth - 1):
            return True
    return False


def _needed(kind: ast.ClassDef) -> Iterator[str]:
    """Yield the arguments of `__init__` without a default."""
    for one in kind.body:
        if isinstance(one, ast.FunctionDef) and one.name == "__init__":
            usual = [*one.args.posonlyargs, *one.args.args]
            yield from (arg.arg for arg in usual[1:len(usual) - len(one.args.defaults)])
            yield from (arg.arg for arg, value in zip(one.args.kwonlyargs, one.args.kw_defaults)  # noqa: B905
                        if value is None)
