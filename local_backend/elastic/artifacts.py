"""Files that a training leaves under RESULT_DIR/model. Never half-written: temporary name, fsync, rename."""

from __future__ import annotations

import copy
import glob
import os
import secrets
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import nn

from local_backend.elastic import faults
from local_backend.elastic.job import Job


def result_dir() -> Path:
    """RESULT_DIR; the directory for temporary files when a script runs without a backend and has not set it."""
    return Path(os.environ.get("RESULT_DIR") or tempfile.gettempdir())


def model_dir() -> Path:
    """Where trained models go."""
    return result_dir() / "model"


def train_dir() -> Path:
    """Where the engine saves after epochs."""
    return model_dir() / "train"


def write_whole(path: Path, write: Callable[[BinaryIO], Any], fault_point: str = "") -> None:
    """Replace `path` by what `write` puts into the file given to it, on disk and whole, or not at all.

    `fault_point`: see faults.py; it comes before the file gets its name. Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for torn in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):  # of a writer that was killed
        torn.unlink(missing_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        faults.at(fault_point)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def frozen(value: Any, memo: dict[int, Any] | None = None) -> Any:
    """A copy of a state dict whose tensors are on the CPU and do not change any more.

    Tensors that share memory do so in the copy, where they are on the CPU.
    """
    memo = {} if memo is None else memo
    if isinstance(value, torch.Tensor):
        value = value.detach()
        return copy.deepcopy(value, memo) if value.device.type == "cpu" else value.cpu()
    if isinstance(value, dict):
        made = copy.copy(value)  # with its attributes: that of a module has `_metadata`
        made.update((key, frozen(item, memo)) for key, item in value.items())
        return made
    if isinstance(value, (list, tuple)):
        return type(value)(frozen(item, memo) for item in value)
    return copy.deepcopy(value, memo)


def write_checkpoint(name: str, states: Mapping[str, Any]) -> None:
    """Write a state dict to `model_epoch_<name><suffix>.pth` for each suffix; their tensors are on the CPU.

    Raises OSError with the name of the file.
    """
    for suffix, state in states.items():
        path = train_dir() / f"model_epoch_{name}{suffix}.pth"
        try:
            write_whole(path, partial(_save, state), "checkpoint-rename")
        except OSError as error:
            reason = error.strerror or str(error)
            raise OSError(error.errno, f"the checkpoint {path} could not be written: {reason}") from error


def checkpoints() -> list[Path]:
    """The checkpoints `model_epoch_<k>.pth` that epochs have left, in their order."""
    found = ((path.stem.removeprefix("model_epoch_"), path) for path in train_dir().glob("model_epoch_*.pth"))
    return [path for _, path in sorted((int(epoch), path) for epoch, path in found if epoch.isdecimal())]


def save_checkpoint(job: Job, name: str) -> None:
    """Write the state dicts of model and optimizer, and of the moving average if there is one, now.

    Those of several optimizers are a dict by their names.
    """
    optimizers = {phase: optimizer.state_dict() for phase, optimizer in job.optimizers.items()}
    states = {"": job.model.state_dict(), "_optimizer_state": optimizers.get("", optimizers)}
    if job.carried.average:
        states["_ema"] = average_state(job.model, job.carried.average)
    write_checkpoint(name, {suffix: frozen(state) for suffix, state in states.items()})


def averaged(model: nn.Module) -> list[torch.Tensor]:
    """The parameters whose moving average the option `ema` keeps, in their order."""
    return [parameter.detach() for parameter in model.parameters() if parameter.is_floating_point()]


def average_state(model: nn.Module, averages: Sequence[torch.Tensor]) -> dict[str, Any]:
    """The state dict of the model with the averages in place of its parameters."""
    instead = dict(zip(map(_place, averaged(model)), averages, strict=True))
    return {name: instead.get(_place(value), value) for name, value in model.state_dict().items()}


def _place(value: Any) -> Any:
    return (value.data_ptr(), value.shape) if isinstance(value, torch.Tensor) else id(value)


def _save(state: Any, file: BinaryIO) -> None:
    """torch.save; with a full disk it raises what the file raised, not torch's complaint about its own bookkeeping."""
    try:
        torch.save(state, file)
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise


def onnx_path() -> Path:
    """Where the trained model goes as ONNX."""
    return model_dir() / "trained_model.onnx"


def export_onnx(model: nn.Module, example: Any) -> str | None:
    """Write `trained_model.onnx`; `example` is an input batch of the model. None when done, else why not."""
    training = model.training
    model.eval()
    try:
        with warnings.catch_warnings(), tempfile.TemporaryDirectory() as scratch:
            warnings.simplefilter("ignore")
            path = Path(scratch) / "trained_model.onnx"
            torch.onnx.export(model, (example,), str(path), external_data=False, verbose=False)
            data = path.read_bytes()
    except ImportError as error:
        return f"no ONNX model was written: {error.name} is not installed; install onnx and onnxscript"
    except Exception as error:
        return f"no ONNX model was written: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    finally:
        model.train(training)
    write_whole(onnx_path(), lambda file: file.write(data))
    return None


def zip_model(target: Path) -> None:
    """Write a zip of everything under RESULT_DIR/model, with names that begin with `model/`."""
    root = model_dir()

    def write(file: BinaryIO) -> None:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(root.rglob("*")):
                if path.is_file() and not path.is_symlink():
                    archive.write(path, path.relative_to(root.parent).as_posix())

    write_whole(target, write)
