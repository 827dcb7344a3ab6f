"""Which part of a batch goes where: into the model, into the loss, and what of the outputs is predicted.

The table in docs/fabric-model.md ("Batches") says the same to users.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from local_backend.elastic.errors import EngineError

#: Names of the labels in a batch that is a dict.
LABELS = ("labels", "label", "targets", "target", "y")
#: Names of the predictions in outputs that are a dict or an object.
_PREDICTIONS = ("logits", "predictions", "outputs")


def split_batch(batch: Any) -> tuple[Any, Any]:
    """(inputs, labels) of a collated batch; labels of a dict without any are the dict."""
    if isinstance(batch, Mapping):
        name = next((name for name in LABELS if name in batch), None)
        return ({key: batch[key] for key in batch if key != name}, batch[name]) if name else (batch, batch)
    if isinstance(batch, (tuple, list)) and not hasattr(batch, "_fields"):
        if not batch:
            raise EngineError("the collate function made an empty batch; return (inputs, labels), a dict or a tensor")
        if len(batch) == 1:
            return batch[0], batch[0]
        return (batch[0] if len(batch) == 2 else tuple(batch[:-1])), batch[-1]
    if hasattr(batch, "_fields"):
        return _split_named(batch)
    return batch, batch


def _split_named(batch: Any) -> tuple[Any, Any]:
    """(inputs, labels) of a named tuple: labels by their name, else the last item, as of any tuple."""
    names = batch._fields
    label = next((name for name in LABELS if name in names), names[-1])
    inputs = {name: getattr(batch, name) for name in names if name != label}
    return (next(iter(inputs.values())) if len(inputs) == 1 else inputs), getattr(batch, label)


def call_model(model: nn.Module, inputs: Any) -> Any:
    """The outputs: several inputs as several arguments, unless `forward` takes one."""
    if isinstance(inputs, Mapping):
        if _takes_names(model, inputs):
            return model(**inputs)
        # Fields of a named tuple that `forward` calls otherwise.
        several = all(isinstance(name, str) for name in inputs) and _takes_several(model, len(inputs))
        return model(*inputs.values()) if several else model(inputs)
    if isinstance(inputs, (tuple, list)):
        return model(*inputs) if _takes_several(model, len(inputs)) else model(inputs)
    return model(inputs)


def compute(model: nn.Module, loss_function: Any, batch: Any) -> tuple[Any, Any, Tensor]:
    """(outputs, labels, loss as a tensor without dimensions) of a batch on the model's device.

    Raises EngineError where no loss of one number comes out.
    """
    inputs, labels = split_batch(batch)
    if loss_function is not None:
        outputs = call_model(model, inputs)
        return outputs, labels, one_number(loss_function(outputs, labels))
    whole = batch._asdict() if hasattr(batch, "_fields") else batch
    outputs = call_model(model, whole if isinstance(whole, Mapping) else inputs)
    return outputs, labels, one_number(_loss_within(outputs))


def predicted(outputs: Any) -> Any:
    """The tensor among the outputs that says what was predicted; None without any."""
    if isinstance(outputs, Tensor):
        return outputs
    for name in _PREDICTIONS:
        found = outputs.get(name) if isinstance(outputs, Mapping) else getattr(outputs, name, None)
        if isinstance(found, Tensor):
            return found
    if isinstance(outputs, (tuple, list)):
        tensors = [item for item in outputs if isinstance(item, Tensor)]
        # (loss, logits): a single number predicts nothing.
        return next((item for item in tensors if item.dim() > 0), None)
    return None


def one_number(loss: Any) -> Tensor:
    """The loss, checked to be a single number. Raises EngineError with what it is instead."""
    if not isinstance(loss, Tensor):
        raise EngineError(f"the loss function must return a tensor; it returned a {type(loss).__name__}")
    if loss.numel() != 1:
        raise EngineError(
            f"the loss function returned {loss.numel()} values (shape {tuple(loss.shape)}); it must return one number "
            "per batch: use reduction='mean' or call .mean() on it"
        )
    return loss.reshape(())


def _loss_within(outputs: Any) -> Any:
    """The loss that a model without a loss function returns."""
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
    """Parameters of `forward`; None where it does not tell."""
    try:
        return list(inspect.signature(model.forward).parameters.values())
    except (TypeError, ValueError):
        return None


def _takes_names(model: nn.Module, inputs: Mapping[Any, Any]) -> bool:
    """Whether `forward` has these names as parameters."""
    parameters = _parameters(model)
    if parameters is None:
        return True
    every = any(p.kind is p.VAR_KEYWORD for p in parameters)
    names = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    return every or all(name in names for name in inputs)


def _takes_several(model: nn.Module, count: int) -> bool:
    """Whether `forward` takes that many arguments by position, and not just one."""
    parameters = _parameters(model)
    if parameters is None:
        return count > 1
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return True
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = [p for p in places if p.default is p.empty]
    return 1 < count <= len(places) and len(needed) <= count
