"""Files that a training leaves under RESULT_DIR/model. Never half-written: temporary name, fsync, rename."""

from __future__ import annotations

import os
import secrets
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import nn

from local_backend.elastic.job import to_cpu


def result_dir() -> Path:
    """RESULT_DIR; the directory for temporary files when a script runs without a backend and has not set it."""
    return Path(os.environ.get("RESULT_DIR") or tempfile.gettempdir())


def model_dir() -> Path:
    """Where trained models go."""
    return result_dir() / "model"


def train_dir() -> Path:
    """Where the engine saves after epochs."""
    return model_dir() / "train"


def write_whole(path: Path, write: Callable[[BinaryIO], Any]) -> None:
    """Replace `path` by what `write` puts into the file given to it, on disk and whole, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def save_checkpoint(model: nn.Module, optimizer: torch.optim.Optimizer, name: str) -> None:
    """Write `model_epoch_<name>.pth` and `model_epoch_<name>_optimizer_state.pth`: state dicts, tensors on the CPU."""
    state = model.state_dict()
    for key, value in state.items():
        state[key] = to_cpu(value)
    write_whole(train_dir() / f"model_epoch_{name}.pth", lambda file: torch.save(state, file))
    optimizer_state = to_cpu(optimizer.state_dict())
    write_whole(
        train_dir() / f"model_epoch_{name}_optimizer_state.pth", lambda file: torch.save(optimizer_state, file)
    )


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
