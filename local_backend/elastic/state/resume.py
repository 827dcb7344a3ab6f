"""Continuation of a training from a checkpoint of an earlier training.

Beside each checkpoint is the file `model_epoch_<name>_training_state.snapshot`: the whole state of the training between
two epochs. A training that continues from this file has the same bits as an uninterrupted training. The checkpoint of
an earlier version has no such file. Then weights and optimizer are loaded, and training continues with the next epoch.
"""

from __future__ import annotations

import os
import pickle
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from local_backend.elastic.hub.watching import Values
from local_backend.elastic.plan import StepPlan
from local_backend.elastic.position import Position
from local_backend.elastic.script.job import TrainingJob
from local_backend.elastic.state import disk
from local_backend.elastic.state.live import Live
from local_backend.elastic.state.replica import Replica
from local_backend.elastic.state.snapshots import Snapshot, open_snapshot, write_snapshot

_NAME = re.compile(r"model_epoch_(\d+|final|best)\.pth")


def state_path(checkpoint: Path) -> Path:
    """Return the path of the training state of a checkpoint `model_epoch_<name>.pth`."""
    return checkpoint.with_name(f"{checkpoint.stem}_training_state.snapshot")


def write_states(
    job: TrainingJob, replica: Replica, plan: StepPlan, checkpoints: list[Path], *, position: Position, generators: str
) -> None:
    """Write the training state beside these checkpoints. Raises OSError.

    `position`: the position of the state, between two epochs, after the members have received the values of the epoch.
    `generators`: the states of the global generators when `datasets_function` was called.
    """
    state = replica.copy(replica.capture())
    extra = {
        "epochs": position.steps // plan.steps_per_epoch, "samples": plan.samples, "batch": plan.batch,
        "step_samples": plan.step_samples, "seed": plan.seed, "told": job.carried.told, "generators": generators,
    }
    for checkpoint in checkpoints:
        path, needed = state_path(checkpoint), disk.size_of(state.tensors)
        try:
            disk.check_space(path.parent, needed)
            write_snapshot(path, position, state, extra)
        except OSError as error:
            reason = disk.why(error, path.parent, needed)
            raise OSError(error.errno, f"the training state {path} could not be written: {reason}") from error


@dataclass(frozen=True)
class Start:
    """The point from which a training begins."""

    #: Completed epochs.
    epochs: int = 0
    #: The whole state; None without a checkpoint, or if the checkpoint has only weights and optimizer.
    snapshot: Snapshot | None = None
    #: Values of the completed epochs, if the state has them.
    told: list[Values] = field(default_factory=list)
    seed: int | None = None
    #: Number of samples of the training set with which the state was made.
    samples: int | None = None
    #: States of the global generators for the call of `datasets_function`.
    generators: str = ""

    @property
    def steps(self) -> int | None:
        """Optimizer steps in the state; None without the whole state."""
        return None if self.snapshot is None else self.snapshot.position.steps


def begin(job: TrainingJob, step_samples: int, again: bool = False) -> Start:
    """Find and check the checkpoint that the option `resume_from` names.

    `again`: an earlier driver of the job was killed, so the checkpoint may be the last one of this training.

    If the checkpoint has no training state, load its weights and optimizer into the objects of the script. Raises
    ValueError for a checkpoint that is missing or damaged, of another model, with other batch or step sizes, or with at
    least as many epochs as the training.
    """
    given = job.recipe.resume_from
    if given is None:
        return Start()
    # The path is made absolute, because workers may have another working directory.
    checkpoint = _find(Path(given).expanduser().absolute())
    state = state_path(checkpoint)
    start = _whole(job, state, step_samples) if state.exists() else _weights_only(job, checkpoint)
    if start.epochs > job.epochs or (start.epochs == job.epochs and not (again and start.snapshot)):
        raise ValueError(
            f"resume_from: {checkpoint} has {start.epochs} epochs, and epoch_number={job.epochs} includes them: use an "
            f"epoch_number above {start.epochs}"
        )
    if start.snapshot is None:
        _load_weights(job, checkpoint)
        print(
            f"WARNING: {state} is missing: weights and optimizer are loaded as of epoch {start.epochs}, but "
            "schedulers, averages and callbacks start from their initial state",
            flush=True,
        )
    print(f"resume from {checkpoint}: training continues with epoch {start.epochs + 1} of {job.epochs}", flush=True)
    return start


def _find(given: Path) -> Path:
    """Return the checkpoint that a path names: the file itself, or the one with the most epochs in a folder."""
    if not given.is_dir():
        if not _NAME.fullmatch(given.name):
            raise ValueError(f"resume_from: {given} is not a checkpoint: give a file model_epoch_<k>.pth or its folder")
        if not given.is_file():
            raise ValueError(f"resume_from: the checkpoint {given} does not exist")
        return given
    epochs = {path: _epochs_of(path) for path in given.glob("model_epoch_*.pth") if _NAME.fullmatch(path.name)}
    known = {path: number for path, number in epochs.items() if number is not None and "best" not in path.name}
    if not known:
        raise ValueError(f"resume_from: the folder {given} has no checkpoint model_epoch_<k>.pth")
    return max(known, key=lambda path: (known[path] or 0, path.name))


def _epochs_of(checkpoint: Path) -> int | None:
    """Return the number of epochs from the name or the training state of a checkpoint; None if neither has it."""
    name = checkpoint.stem.removeprefix("model_epoch_")
    if name.isdecimal():
        return int(name)
    try:
        return int(open_snapshot(state_path(checkpoint)).extra["epochs"])
    except (OSError, ValueError, KeyError):
        return None


def _whole(job: TrainingJob, path: Path, step_samples: int) -> Start:
    if path.stat().st_uid not in (os.getuid(), 0):
        raise ValueError(f"resume_from: {path} belongs to another user; a training state may contain code")
    try:
        snapshot = open_snapshot(path)
        state = snapshot.load()
        extra = snapshot.extra
        start = Start(
            int(extra["epochs"]), snapshot, list(extra["told"]), int(extra["seed"]), int(extra["samples"]),
            str(extra["generators"]),
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ValueError(f"resume_from: {path} cannot be read: {error}") from None
    _check_model(job, path, pickle.loads(state.meta), [list(tensor.shape) for tensor in state.tensors])
    there, here = (extra["batch"], extra["step_samples"]), (job.batch, step_samples)
    if there != here:
        raise ValueError(
            f"resume_from: {path} was trained with batches of {there[0]} and steps of {there[1]} samples, but this "
            f"training has {here[0]} and {here[1]}: use batch_size={there[0]} and effective_batch_size={there[1]}, or "
            "the same engines_number and accumulate as before"
        )
    return start


def _check_model(job: TrainingJob, path: Path, meta: dict[str, Any], shapes: list[list[int]]) -> None:
    """Raise ValueError if the state has other parameters, modules, callbacks or schedulers than the script."""
    live = Live(job)
    for what, here, there in (
        ("parameters", len(live.parameters), len(meta["parameters"])),
        ("modules", len(live.modules), len(meta["buffers"])),
        ("callbacks, schedulers and registered objects", len(live.parts), len(meta["parts"])),
    ):
        if here != there:
            raise ValueError(
                f"resume_from: {path} belongs to another training: it has {there} {what}, the script has {here}"
            )
    for parameter, shape in zip(live.parameters, shapes, strict=False):
        if list(parameter.shape) != shape:
            raise ValueError(
                f"resume_from: {path} belongs to another model: it has a parameter of shape {tuple(shape)} where the "
                f"script has {tuple(parameter.shape)}"
            )


def _weights_only(job: TrainingJob, checkpoint: Path) -> Start:
    name = checkpoint.stem.removeprefix("model_epoch_")
    if not name.isdecimal():
        raise ValueError(
            f"resume_from: {state_path(checkpoint)} is missing, so the number of epochs of {checkpoint.name} is "
            "unknown: give model_epoch_<k>.pth"
        )
    return Start(int(name))


def _load_weights(job: TrainingJob, checkpoint: Path) -> None:
    beside = checkpoint.with_name(f"{checkpoint.stem}_optimizer_state.pth")
    try:
        weights, optimizers = (torch.load(path, map_location="cpu", weights_only=True) for path in (checkpoint, beside))
    except FileNotFoundError as error:
        raise ValueError(f"resume_from: {error.filename} does not exist") from None
    except Exception as error:
        raise ValueError(f"resume_from: {checkpoint} cannot be read: {_line(error)}") from None
    try:
        job.model.load_state_dict(weights)
        for phase, optimizer in job.optimizers.items():
            optimizer.load_state_dict(optimizers[phase] if phase else optimizers)
    except Exception as error:
        raise ValueError(f"resume_from: {checkpoint} belongs to another model or optimizer: {_line(error)}") from None


def _line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
