"""Files that a training writes under RESULT_DIR/model. Writes are atomic: temporary name, fsync, rename."""

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
from local_backend.elastic.script.job import TrainingJob
from local_backend.elastic.state import disk


def result_dir() -> Path:
    """Return RESULT_DIR, or the system's temporary directory if a script runs without a backend and has not set it."""
    return Path(os.environ.get("RESULT_DIR") or tempfile.gettempdir())


def model_dir() -> Path:
    """Return the directory of trained models."""
    return result_dir() / "model"


def train_dir() -> Path:
    """Return the directory of the files that the engine saves after epochs."""
    return model_dir() / "train"


def write_whole(path: Path, write: Callable[[BinaryIO], Any], fault_point: str = "") -> None:
    """Replace `path` with the bytes that `write` writes to the given file: completely and on disk, or not at all.

    `fault_point`: name of the fault point before the rename, see faults.py. Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for torn in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):  # left by a killed writer
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
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Bring the names in a folder to the disk. Raises OSError."""
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def frozen(value: Any, memo: dict[int, Any] | None = None) -> Any:
    """Return a copy of a state dict. Its tensors are on the CPU and do not change any more.

    CPU tensors that share memory also share memory in the copy.
    """
    memo = {} if memo is None else memo
    if isinstance(value, torch.Tensor):
        value = value.detach()
        return copy.deepcopy(value, memo) if value.device.type == "cpu" else value.cpu()
    if isinstance(value, dict):
        made = copy.copy(value)  # keeps its attributes: the state dict of a module has `_metadata`
        made.update((key, frozen(item, memo)) for key, item in value.items())
        return made
    if isinstance(value, (list, tuple)):
        return type(value)(frozen(item, memo) for item in value)
    return copy.deepcopy(value, memo)


def write_checkpoint(name: str, states: Mapping[str, Any]) -> None:
    """Write each state dict in `states` (suffix → state dict) to `model_epoch_<name><suffix>.pth`.

    All tensors must be on the CPU. Raises OSError with the name of the file. No new file remains then, because a
    checkpoint without all of its files cannot be loaded.
    """
    written: list[Path] = []
    folder, needed = train_dir(), disk.size_of(dict(states))
    path = folder / f"model_epoch_{name}.pth"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        disk.check_space(folder, needed)
        for suffix, state in states.items():
            path = folder / f"model_epoch_{name}{suffix}.pth"
            write_whole(path, partial(_save, state), "checkpoint-rename")
            written.append(path)
    except OSError as error:
        for one in written:
            one.unlink(missing_ok=True)
        reason = disk.why(error, folder, needed)
        raise OSError(error.errno, f"the checkpoint {path} could not be written: {reason}") from error


def checkpoints() -> list[Path]:
    """Return the checkpoints `model_epoch_<k>.pth` of epochs, in order of k."""
    found = ((path.stem.removeprefix("model_epoch_"), path) for path in train_dir().glob("model_epoch_*.pth"))
    return [path for _, path in sorted((int(epoch), path) for epoch, path in found if epoch.isdecimal())]


def save_checkpoint(job: TrainingJob, name: str) -> None:
    """Write the state dicts of the model, of the optimizer and of the moving average if there is one, before returning.

    Several optimizers are saved as a dict: name → state dict.
    """
    optimizers = {phase: optimizer.state_dict() for phase, optimizer in job.optimizers.items()}
    states = {"": job.model.state_dict(), "_optimizer_state": optimizers.get("", optimizers)}
    if job.carried.average:
        states["_ema"] = average_state(job.model, job.carried.average)
    write_checkpoint(name, {suffix: frozen(state) for suffix, state in states.items()})


def averaged(model: nn.Module) -> list[torch.Tensor]:
    """Return the parameters whose moving average the option `ema` keeps, in the order of the model."""
    return [parameter.detach() for parameter in model.parameters() if parameter.is_floating_point()]


def average_state(model: nn.Module, averages: Sequence[torch.Tensor]) -> dict[str, Any]:
    """Return the state dict of the model with the averages in place of its parameters."""
    instead = dict(zip(map(_place, averaged(model)), averages, strict=True))
    return {name: instead.get(_place(value), value) for name, value in model.state_dict().items()}


def _place(value: Any) -> Any:
    return (value.data_ptr(), value.shape) if isinstance(value, torch.Tensor) else id(value)


def _save(state: Any, file: BinaryIO) -> None:
    """Call torch.save. If the file raises OSError (full disk), raise this error, not the RuntimeError of torch."""
    try:
        torch.save(state, file)
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise


def onnx_path() -> Path:
    """Return the path of the trained model in ONNX format."""
    return model_dir() / "trained_model.onnx"


def export_onnx(model: nn.Module, example: Any) -> str | None:
    """Write `trained_model.onnx`. Return None, or the reason if no file is written. `example`: an input batch."""
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
    """Write a zip of all files under RESULT_DIR/model, except symbolic links. Names in the zip begin with `model/`."""
    root = model_dir()

    def write(file: BinaryIO) -> None:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(root.rglob("*")):
                if path.is_file() and not path.is_symlink():
                    archive.write(path, path.relative_to(root.parent).as_posix())

    write_whole(target, write)
