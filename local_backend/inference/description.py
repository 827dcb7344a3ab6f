"""The description of a submitted model: `model.json`, its kernel and its README."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from dlicmd.contract import strict_json
from local_backend.errors import Invalid
from local_backend.fields import Fields, shown
from local_backend.inference.kernel.ready.model_files import READY_MADE, preferred, weights_in
from local_backend.inference.loading import check_loadable
from local_backend.inference.profile import variables

MODEL_JSON, README = "model.json", "README.md"
#: Value of weight_path for a model without a file of weights.
NO_WEIGHTS = "N/A"
#: The runtimes that every server has: kernels in the server's own Python.
BUILT_IN = ("python", "dlipy3")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_KNOWN = ("name", "tag", "weight_path", "model_path", "runtime", "kernel_path", "schema_version", "readme", "framework",
          "attributes", "mk_environments", "kernel_type", "platform", "inputs", "outputs")
#: Most letters of a name, bytes of a file, and characters of a complete model.json, which lists of models show.
_LONGEST_NAME, _LARGEST, _LARGEST_JSON = 63, 1 << 20, 1 << 17
#: Most bytes of a path in the folder of the model, and of one of its parts. Linux permits 4095 with all folders above.
_LONGEST_PATH, _LONGEST_PART = 2048, 255


@dataclass(frozen=True)
class ModelDescription:
    """A checked model.json. `value` is the whole object, complete. `kernel_path` is relative to the folder of the
    model; None for a ready-made kernel, and for a runtime that runs a command of its own."""

    name: str
    runtime: str
    kernel_path: str | None
    ready_made: str | None
    readme: str
    value: dict[str, Any]
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def metadata(self) -> dict[str, Any]:
        """What the Open Inference Protocol shows of the model, as far as model.json says it."""
        return {key: self.value[key] for key in ("platform", "inputs", "outputs") if self.value.get(key)}


def check_name(name: object, what: str = "model.json: name") -> str:
    """Return the name of a model; `what` says where it is from. Raises Invalid (`model.description`)."""
    if not isinstance(name, str) or len(name) > _LONGEST_NAME or not _NAME.fullmatch(name):
        raise _refuse(f"{what} must have 1 to {_LONGEST_NAME} of a-z 0-9 -, and begin and end with a letter "
                      f"or digit, but it is {shown(name)}")
    return name


def read_description(folder: Path, kernel_type: str | None = None, name: str | None = None) -> ModelDescription:
    """Return the description of the model in a folder. With `kernel_type`, a ready-made kernel serves the model; then
    model.json and README.md may be missing, and `name` names the model. Raises Invalid (`model.description`,
    `model.files`, and those of `check_loadable`), OSError."""
    if kernel_type is not None and kernel_type not in READY_MADE:
        raise _refuse(f"kernel_type must be {', '.join(READY_MADE)}, but it is {shown(kernel_type)}")
    text = _text(folder, MODEL_JSON)
    if text is None and kernel_type is None:
        raise _missing(MODEL_JSON)
    value = _object(text) if text is not None else {}
    kind = kernel_type or value.get("kernel_type") or None
    if kind is not None:
        value = completed(value, str(kind), name, folder)
    found = described(value, folder)
    if found.ready_made is not None:
        check_loadable(found.ready_made, found.value, folder)
    return found


def described(value: dict[str, Any], folder: Path) -> ModelDescription:
    """Return the description of a complete model.json, whose files are in a folder. Raises Invalid
    (`model.description`, `model.files`), OSError."""
    top = Fields(value, MODEL_JSON, _refuse)
    top.check_names(_KNOWN)
    name = check_name(top.get("name"))
    for key in ("tag", "weight_path", "runtime"):
        if not isinstance(top.get(key), str) or (key != "tag" and not value[key].strip()):
            raise top.refuse(key, f"is required; it must be a text, but it is {shown(top.get(key))}")
    version = top.get("schema_version")
    if str(version) != "1":
        raise top.refuse("schema_version", f'must be "1", but it is {shown(version)}')
    top.text("framework", most=200)
    _attributes(top)
    kind = top.get("kernel_type")
    if kind is not None and kind not in READY_MADE:
        raise top.refuse("kernel_type", f"must be {', '.join(READY_MADE)}, but it is {shown(kind)}")
    kernel = None if kind is not None else _file(top, "kernel_path", folder)
    if value["weight_path"] not in (NO_WEIGHTS, "./", "."):
        _file(top, "weight_path", folder, folders=True)
    readme = top.text("readme", most=400) or README
    content = _text(folder, _relative(top, "readme", readme))
    if content is None and kind is None:
        raise _missing(readme)
    whole = {**value, "readme": readme, "schema_version": "1", "attributes": top.list("attributes", most=500),
             "mk_environments": top.list("mk_environments", most=500)}
    if len(json.dumps(whole)) > _LARGEST_JSON:
        raise _refuse(f"{MODEL_JSON} has more than {_LARGEST_JSON} characters, which is the limit")
    environment = variables(whole["mk_environments"], top, "mk_environments")
    return ModelDescription(name, value["runtime"].strip(), kernel, kind, content or "", whole, environment)


def check_kernel(value: Mapping[str, Any], folder: Path) -> None:
    """Check that a model.json names a file of the folder as its kernel. Raises Invalid (`model.description`,
    `model.files`)."""
    _file(Fields(value, MODEL_JSON, _refuse), "kernel_path", folder)


def _refuse(sentence: str) -> Invalid:
    return Invalid("model.description", sentence)


def _missing(name: str) -> Invalid:
    return Invalid("model.files", f"the folder of the model does not contain {name}; a model needs {MODEL_JSON}, "
                                  f"{README}, and the file of its kernel")


def _object(text: str) -> dict[str, Any]:
    try:
        value = strict_json.read(text.encode())
    except ValueError as problem:
        raise _refuse(f"{MODEL_JSON} {problem}") from None
    if not isinstance(value, dict):
        raise _refuse(f"{MODEL_JSON} must be an object with members, but it is {shown(value)}")
    return value


def completed(value: dict[str, Any], kind: str, name: str | None, folder: Path) -> dict[str, Any]:
    """Return the model.json of a ready-made kernel with defaults for what is missing."""
    found = {
        "name": name, "tag": "", "runtime": BUILT_IN[0], "kernel_path": "", "schema_version": "1", **value,
        "kernel_type": kind,
    }
    if not found.get("weight_path"):
        found["weight_path"] = _weights(folder, kind)
    return found


def _weights(folder: Path, kind: str) -> str:
    """Return the only file or folder that a ready-made kernel can load, or `./` for the whole folder."""
    found = [path.relative_to(folder).as_posix() for path in preferred(weights_in(folder, READY_MADE.get(kind, ())))]
    if len(found) > 1:
        raise _refuse(f"{MODEL_JSON}: weight_path is required, because several files can be the weights: "
                      f"{', '.join(found[:5])}")
    return found[0] if found else "./"


def _attributes(top: Fields) -> None:
    for item in top.list("attributes", most=500):
        if not isinstance(item, Mapping) or not isinstance(item.get("key"), str) or isinstance(
                item.get("value"), dict | list):
            raise top.refuse("attributes", "must be a list of objects with the texts `key` and `value`, but one is "
                                           f"{shown(item)}")


def _relative(top: Fields, key: str, text: str) -> str:
    path = PurePosixPath(text.strip().replace("\\", "/"))
    too_long = len(path.as_posix().encode()) > _LONGEST_PATH or any(
        len(part.encode()) > _LONGEST_PART for part in path.parts)
    if path.is_absolute() or ".." in path.parts or "\0" in text or not path.parts or too_long:
        raise top.refuse(key, f"must be the path of a file in the folder of the model, but it is {shown(text)}")
    return path.as_posix()


def _file(top: Fields, key: str, folder: Path, folders: bool = False) -> str:
    """Return the path of a file of the submission. Raises the error of the key."""
    text = top.get(key)
    if not isinstance(text, str) or not text.strip():
        raise top.refuse(key, f"is required; it must be the path of a file, but it is {shown(text)}")
    path = _relative(top, key, text)
    if not ((folder / path).is_file() or (folders and (folder / path).is_dir())):
        raise Invalid("model.files", f"{MODEL_JSON}: {key} names {shown(path)}, but the folder of the model does not "
                                     f"contain this file; add the file, or change {key}")
    return path


def _text(folder: Path, name: str) -> str | None:
    """Return the text of a file; None if the file is missing."""
    path = folder / name
    if not path.is_file():
        return None
    if path.stat().st_size > _LARGEST:
        raise _refuse(f"{name} is larger than {_LARGEST} bytes, the limit of this file")
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise _refuse(f"{name} is not UTF-8") from None
