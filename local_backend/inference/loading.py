"""What a kernel will load of the files of a model: the kernel, the weights and the class that a deployment uses. What
would fail when the kernel starts is refused before."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from local_backend.errors import Invalid
from local_backend.inference.kernel.ready.model_files import (
    READY_MADE,
    ModelClass,
    classes_in,
    is_archive,
    is_pickled_module,
    is_torchscript,
    is_yes,
    loaded,
    python_files,
    weights_in,
)

#: File of a model's own kernel, and the kernels for PyTorch and for a folder of transformers.
_OWN_KERNEL, _TORCH, _HUGGINGFACE = "kernel.py", "torch", "huggingface"
#: The module that files of kernels import.
_KERNEL_API = b"redhareapi"
#: Suffixes of files that do not identify a ready-made kernel, and of pickles that kernels load only with permission.
_OF_SEVERAL = frozenset({".json", ".pkl", ".pickle", ".joblib", ".skops", ".model"})
_PICKLES = frozenset({".joblib", ".pkl", ".pickle"})
#: Most names in a sentence, and in a list of choices.
_NAMED, _MOST = 5, 200


@dataclass(frozen=True)
class Loading:
    """The kernel, the weights and the class that a deployment uses, and all among which it can choose. An empty text:
    not needed, or unknown. `problem`: why the deployment would be refused."""

    kernel: str
    weight: str
    class_name: str
    kernels: Sequence[str]
    weights: Sequence[str]
    classes: Sequence[ModelClass]
    is_pickle: bool = False
    problem: Invalid | None = None


def kernel_in(folder: Path) -> str:
    """Return the kernel for the files of a model: its own, or the only ready-made one that loads such files. Raises
    Invalid (`model.description`) if there is none, or several."""
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    if _OWN_KERNEL in names:
        return _OWN_KERNEL
    suffixes = {PurePosixPath(name).suffix for name in names}
    found = [kind for kind, known in READY_MADE.items() if not suffixes.isdisjoint({*known} - _OF_SEVERAL)]
    if any(name.endswith(".safetensors") for name in names) and any(name.endswith("config.json") for name in names):
        found.append(_HUGGINGFACE)
    if len(found) != 1:
        raise Invalid("model.description", "kernel is required, because the files do not show which one serves them: "
                                           f"the file of the kernel, or one of {', '.join(READY_MADE)}")
    return found[0]


def ready_made_in(folder: Path, kernel: str) -> str | None:
    """Return the name of a kernel, if it is a ready-made one and no file of the model."""
    return kernel if kernel in READY_MADE and not (folder / kernel).is_file() else None


def check_loadable(kind: str, value: Mapping[str, Any], folder: Path) -> None:
    """Check that a ready-made kernel can load a model with this checked model.json. What only the kernel can read
    passes. Raises Invalid (`model.weights`, `model.class`, `model.pickle`)."""
    suffixes = READY_MADE[kind]
    if not suffixes:
        return
    named = str(value["weight_path"])
    top = folder if named == "N/A" else folder / named
    found = loaded(top, suffixes)
    if not found:
        raise Invalid("model.weights", f"no file in {'the folder of the model' if top == folder else named} can be the "
                                       f"weights for the kernel {kind}, which loads {', '.join(suffixes)}. Save the "
                                       "weights in such a file, or choose another kernel")
    attributes = {str(one["key"]): str(one.get("value", "")) for one in value.get("attributes") or ()}
    shown = found[0].relative_to(folder).as_posix()
    if is_yes(attributes.get("allow_pickle", "")):
        return
    if any(map(_is_pickle, found)):
        raise Invalid("model.pickle", f"{shown} is a pickle, which can run any code when the kernel loads it. If its "
                                      "author is trusted, set the attribute allow_pickle to true; or save the model in "
                                      "another format")
    if kind == _TORCH and _has_weights_alone(found[0]):
        _check_class(shown, folder, attributes)


def loading_of(
    folder: Path, kernel: str, kind: str | None, value: Mapping[str, Any], problem: Invalid | None
) -> Loading:
    """Return what a deployment with this kernel loads. `kind`: the kernel, if it is a ready-made one. `value` is its
    checked model.json, empty if the `problem` prevents it."""
    suffixes = READY_MADE.get(kind or "", tuple(one for known in READY_MADE.values() for one in known))
    weights = [path.relative_to(folder).as_posix() for path in weights_in(folder, suffixes)]
    classes = classes_in(folder) if kind == _TORCH else []
    weight = str(value.get("weight_path", ""))
    found = loaded(folder / weight, suffixes) if kind and suffixes and weight else []
    attributes = {str(one["key"]): str(one.get("value", "")) for one in value.get("attributes") or ()}
    used = ""
    if kind == _TORCH and found and _has_weights_alone(found[0]):
        used = attributes.get("class") or " or ".join(one.name for one in classes if one.only_defines)
    own = [path.relative_to(folder).as_posix() for path in python_files(folder) if _KERNEL_API in path.read_bytes()]
    kernels = list(dict.fromkeys([*filter(None, [kernel]), *own, *READY_MADE]))
    return Loading(kernel, found[0].relative_to(folder).as_posix() if len(found) == 1 else weight, used, kernels,
                   weights[:_MOST], classes[:_MOST], any(map(_is_pickle, found)), problem)


def _is_pickle(path: Path) -> bool:
    return path.suffix in _PICKLES or is_pickled_module(path)


def _has_weights_alone(path: Path) -> bool:
    """Return whether a file of PyTorch certainly needs the class of its model."""
    return path.suffix != ".pt2" and is_archive(path) and not is_torchscript(path) and not is_pickled_module(path)


def _check_class(weights: str, folder: Path, attributes: Mapping[str, str]) -> None:
    """Check that the class for these weights is known, and that it can be made. Raises Invalid (`model.class`)."""
    named, classes = attributes.get("class", ""), classes_in(folder)
    module, _, name = named.partition(":")
    files = {path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.py")}
    if named and not (name and module.replace(".", "/") in files):
        raise Invalid("model.class", f"the attribute class is {named[:200]!r}, but the model has no such class. "
                                     f"{_advice(classes)}")
    used = [one for one in classes if (one.name == named if named else one.only_defines)]
    if not named and not used:
        raise Invalid("model.class", f"{weights} contains weights alone, and no file of the model only defines their "
                                     f"class. {_advice(classes)}")
    missing = [one for one in used[0].needs if one not in _arguments(attributes)] if len(used) == 1 else []
    if missing:
        raise Invalid("model.class", f"the class {used[0].name} of the weights {weights} needs the arguments "
                                     f"{', '.join(missing)}. Set the attribute class_args to a JSON object, such as "
                                     f"{json.dumps(dict.fromkeys(missing, 10))}")


def _advice(classes: Sequence[ModelClass]) -> str:
    """Return what to do if the class of weights is unknown."""
    if classes:
        return f"Set the attribute class to one of {', '.join(one.name for one in classes[:_NAMED])}"
    return ("Define the model as a class in a Python file of the experiment, and run the experiment again; or save "
            "the whole model with torch.export.save, as a .pt2 file")


def _arguments(attributes: Mapping[str, str]) -> Mapping[str, Any]:
    """Return the arguments of the class. Raises Invalid (`model.class`)."""
    try:
        found = json.loads(attributes.get("class_args") or "{}")
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Invalid("model.class", 'the attribute class_args must be a JSON object, such as {"hidden": 64}')
    return found
