"""An example of a request for a model, and what its kernel takes, from the files of the model."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlicmd.contract.dlim import EXAMPLE_FILES
from local_backend.files import open_regular

#: Most bytes of such a file, and most numbers of an example that is made from model.json.
_LARGEST, _MOST_NUMBERS = 64 << 10, 1024
#: Ready-made kernel → an example without the shape of a sample, and the form of a request.
_NUMBERS = ('{"instances": [[0.0, 0.0]]}', "a list of numbers for each sample")
_FORMS: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(("torch", "onnx", "sklearn", "xgboost"), _NUMBERS),
    "huggingface": ('{"inputs": "Write a text here."}', "a text, or a list of texts"),
}
#: Datatype of the Open Inference Protocol → an element of it; 0.0 or 0 for all others.
_ELEMENTS: Mapping[str, Any] = {"BOOL": False, "BYTES": "text"}


@dataclass(frozen=True)
class ModelExample:
    """A request as text, the file that it is from (empty: none), and what the kernel `takes`, as a phrase; empty if
    only the kernel knows."""

    text: str
    file: str = ""
    takes: str = ""


def example_of(folder: Path, description: Mapping[str, Any]) -> ModelExample:
    """Return an example for the model in a folder with this model.json: from a file of the folder, or else made from
    the `inputs` of model.json."""
    inputs = [one for one in description.get("inputs") or () if isinstance(one, Mapping)]
    kernel = str(description.get("kernel_type") or "")
    text, form = _FORMS.get(kernel, ("{}", ""))
    takes = "; ".join(map(_shown, inputs)) or form
    for name in EXAMPLE_FILES:
        found = _read(folder, name)
        if found is not None:
            return ModelExample(found, name, takes)
    return ModelExample(_request(inputs) or text, "", takes)


def _read(folder: Path, name: str) -> str | None:
    """Return the text of a file, None if it is missing, large or not JSON."""
    file = open_regular(folder / name, folder)
    if file is None:
        return None
    with file:
        content = file.read(_LARGEST + 1)
    try:
        text = content.decode()
        json.loads(text)
    except (ValueError, RecursionError):
        return None
    return text.strip() if len(content) <= _LARGEST else None


def _shown(one: Mapping[str, Any]) -> str:
    sizes = " × ".join(str(size) if isinstance(size, int) and size > 0 else "any" for size in _shape(one))
    return f"{one.get('name', '')}: {one.get('datatype', '')}{f', {sizes}' if sizes else ''}"


def _shape(one: Mapping[str, Any]) -> Sequence[Any]:
    shape = one.get("shape")
    return shape if isinstance(shape, list) else []


def _request(inputs: Sequence[Mapping[str, Any]]) -> str:
    """Return a request of the Open Inference Protocol with zeros for these inputs; empty without inputs, or if it would
    be long."""
    made = []
    for one in inputs:
        shape = [size if isinstance(size, int) and size > 0 else 1 for size in _shape(one)]
        datatype, count = str(one.get("datatype")), math.prod(shape)
        if count > _MOST_NUMBERS:
            return ""
        element = _ELEMENTS.get(datatype, 0.0 if datatype.startswith(("FP", "BF")) else 0)
        made.append({"name": one.get("name"), "datatype": datatype, "shape": shape, "data": [element] * count})
    return json.dumps({"inputs": made}) if made else ""
