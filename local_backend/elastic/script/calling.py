"""Inputs and labels in a batch, calls of the model and of the loss function, and predictions in the outputs.

The table in docs/fabric-model.md ("Batches") documents these rules for users.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from local_backend.elastic.errors import EngineError

#: Names of the labels in a batch that is a dict or a named tuple.
LABELS = ("labels", "label", "targets", "target", "y")
#: Names of the predictions in outputs that are a dict or an object.
_PREDICTIONS = ("logits", "predictions", "outputs")


def split_batch(batch: Any) -> tuple[Any, Any]:
    """Return (inputs, labels) of a collated batch, both the same if it has no labels. Raises EngineError if empty."""
    if isinstance(batch, Mapping):
        name = next((name for name in LABELS if name in batch), None)
        return ({key: batch[key] for key in batch if key != name}, batch[name]) if name else (batch, batch)
    if isinstance(batch, (tuple, list)) and not hasattr(batch, "_fields"):
        if not batch:
            raise EngineError(
                "the collate function returned an empty batch; return (inputs, labels), a dict or a tensor"
            )
        if len(batch) == 1:
            return batch[0], batch[0]
        return (batch[0] if len(batch) == 2 else tuple(batch[:-1])), batch[-1]
    if hasattr(batch, "_fields"):
        return _split_named(batch)
    return batch, batch


def _split_named(batch: Any) -> tuple[Any, Any]:
    """Return (inputs, labels) of a named tuple. Labels are the field with a name in `LABELS`, else the last field."""
    names = batch._fields
    label = next((name for name in LABELS if name in names), names[-1])
    inputs = {name: getattr(batch, name) for name in names if name != label}
    return (next(iter(inputs.values())) if len(inputs) == 1 else inputs), getattr(batch, label)


def call_model(model: nn.Module, inputs: Any) -> Any:
    """Return the outputs. Pass several inputs as several arguments, unless `forward` takes one argument."""
    if isinstance(inputs, Mapping):
        if _takes_names(model, inputs):
            return model(**inputs)
        # `forward` may use other names than the fields of a named tuple.
        several = all(isinstance(name, str) for name in inputs) and _takes_several(model, len(inputs))
        return model(*inputs.values()) if several else model(inputs)
    if isinstance(inputs, (tuple, list)):
        return model(*inputs) if _takes_several(model, len(inputs)) else model(inputs)
    return model(inputs)


def compute(model: nn.Module, loss_function: Any, batch: Any) -> tuple[Any, Any, Tensor]:
    """Return (outputs, labels, loss as a tensor without dimensions) of a batch on the model's device.

    Raises EngineError if the loss is not one number.
    """
    inputs, labels = split_batch(batch)
    if loss_function is not None:
        outputs = call_model(model, inputs)
        return outputs, labels, one_number(loss_function(outputs, labels))
    whole = batch._asdict() if hasattr(batch, "_fields") else batch
    outputs = call_model(model, whole if isinstance(whole, Mapping) else inputs)
    return outputs, labels, one_number(_loss_within(outputs))


def predicted(outputs: Any) -> Any:
    """Return the tensor among the outputs that holds the predictions, or None."""
    if isinstance(outputs, Tensor):
        return outputs
    for name in _PREDICTIONS:
        found = outputs.get(name) if isinstance(outputs, Mapping) else getattr(outputs, name, None)
        if isinstance(found, Tensor):
            return found
    if isinstance(outputs, (tuple, list)):
        tensors = [item for item in outputs if isinstance(item, Tensor)]
        # In (loss, logits), the single number is not the prediction.
        return next((item for item in tensors if item.dim() > 0), None)
    return None


def one_number(loss: Any) -> Tensor:
    """Return the loss as a tensor without dimensions. Raises EngineError with the type or shape of any other loss."""
    if not isinstance(loss, Tensor):
        raise EngineError(f"the loss function must return a tensor; it returned a {type(loss).__name__}")
    if loss.numel() != 1:
        raise EngineError(
            f"the loss function returned {loss.numel()} values (shape {tuple(loss.shape)}); it must return one number "
            "per batch: use reduction='mean' or call .mean() on it"
        )
    return loss.reshape(())


def _loss_within(outputs: Any) -> Any:
    """Return the loss from the outputs of a model without a loss function. Raises EngineError if there is none."""
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
    if loss is None and isinstance(outputs, (tuple, list)) and outputs:
        loss = outputs[0]
    loss = outputs if loss is None and isinstance(outputs, Tensor) else loss
    if loss is None:
        raise EngineError(
            f"loss_function is None and the model returned a {type(outputs).__name__} without a loss; it must return "
            "an object or dict with `loss`, a tuple that begins with it, or the loss itself"
        )
    return loss


def _parameters(model: nn.Module) -> list[inspect.Parameter] | None:
    """Return the parameters of `forward`, or None if its signature is unknown."""
    try:
        return list(inspect.signature(model.forward).parameters.values())
    except (TypeError, ValueError):
        return None


def _takes_names(model: nn.Module, inputs: Mapping[Any, Any]) -> bool:
    """Return whether `forward` takes the names in `inputs` as keyword arguments. True if its signature is unknown."""
    parameters = _parameters(model)
    if parameters is None:
        return True
    every = any(p.kind is p.VAR_KEYWORD for p in parameters)
    names = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    return every or all(name in names for name in inputs)


def _takes_several(model: nn.Module, count: int) -> bool:
    """Return whether `forward` takes `count` positional arguments, and not just one."""
    parameters = _parameters(model)
    if parameters is None:
        return count > 1
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return True
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = [p for p in places if p.default is p.empty]
    return 1 < count <= len(places) and len(needed) <= count
