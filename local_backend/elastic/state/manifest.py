"""The manifest of a checkpoint: the facts that decided the bits of the weights.

`RESULT_DIR/model/train/manifest.json` describes the newest checkpoint: seed, versions, machine, settings, options, the
digests of code, data and weights. If all decisive sections of two manifests (`_DECISIVE`) agree, exact mode promises
the same bits. A manifest has no secrets: it contains names of environment variables, not values, and a short digest of
the command line.

`python -m local_backend.elastic.state.manifest A B` compares two manifests.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from local_backend.elastic.errors import EngineError
from local_backend.elastic.plan import StepPlan
from local_backend.elastic.script import captured
from local_backend.elastic.script.job import TrainingJob
from local_backend.elastic.script.recipe import Recipe
from local_backend.elastic.state import artifacts, disk
from local_backend.elastic.state.fingerprints import leaves, of_tensors, of_text

FORMAT = 1
NAME = "manifest.json"
#: Options that do not influence the weights.
_HARMLESS = frozenset({"check", "local_state", "save_best"})
#: Prefixes of variables whose values may influence results.
_INFLUENTIAL = (
    "ATEN_", "BLIS_", "CUBLAS_", "CUDA_", "CUDNN_", "DNNL_", "GOTO_", "KMP_", "MKL_", "NCCL_", "NVIDIA_", "OMP_",
    "ONEDNN_", "OPENBLAS_", "PYTHONHASHSEED", "PYTORCH_", "TORCH_",
)
#: Variables that the manifest leaves out. Another entry covers their influence (device, threads, hash seed), or they
#: only control how a file may be read.
_RECORDED_ELSEWHERE = frozenset({
    "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "PYTHONHASHSEED",
    "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD",
})
#: Suffixes of code files; below, the largest number of files and of bytes to read.
_CODE = frozenset({
    ".py", ".pyx", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".so", ".json", ".yaml", ".yml", ".toml", ".ini",
    ".cfg",
})
_MOST_FILES, _MOST_BYTES = 2000, 64 << 20
#: Sections that must agree for the same bits.
_DECISIVE = ("training", "options", "code", "data", "versions", "machine", "settings", "environment")


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison of two manifests."""

    #: One sentence for each difference.
    differences: list[str]
    #: Sentence that says whether the same bits are promised, and if not, why.
    promise: str

    @property
    def promised(self) -> bool:
        """Whether the weights must be equal."""
        return self.promise.startswith("the same bits are promised")


def compare(first: Mapping[str, Any], second: Mapping[str, Any]) -> Comparison:
    """Return the differences of two manifests, and whether both trainings promise the same weights."""
    different = [
        (f"{section}.{name}", here, there)
        for section in _DECISIVE
        for name, here, there in _differences(first.get(section), second.get(section))
    ]
    said = [f"{name}: {_short(here)} and {_short(there)}" for name, here, there in different]
    inexact = {one.get("training", {}).get("mode") for one in (first, second)} - {"exact"}
    if said:
        name, _, values = said[0].partition(": ")
        more = f" (and {len(said) - 1} other differences)" if len(said) > 1 else ""
        promise = f"the same bits are not promised: {name.rpartition('.')[2]} {values}{more}"
    elif inexact:
        promise = f"the same bits are not promised: mode {inexact.pop()}"
    else:
        promise = "the same bits are promised"
    if first.get("weights") != second.get("weights"):
        said.append(f"weights: {_short(first.get('weights'))} and {_short(second.get('weights'))}")
        if promise == "the same bits are promised":
            promise += (
                ", but the weights differ: the script depends on something that the manifest does not record, for "
                "example files, the network, the time or environment variables"
            )
    return Comparison(said, promise)


def write(
    job: TrainingJob, plan: StepPlan, mode: str, checkpoint: str, *, data: Mapping[str, Any], initial: str
) -> None:
    """Write the manifest of a checkpoint.

    Args:
        checkpoint: name of the file with the weights.
        data: lengths and digests of the data sets.
        initial: fingerprint of the state before training.

    Raises:
        OSError: the file cannot be written.
    """
    found = {
        "format": FORMAT,
        "checkpoint": checkpoint,
        "weights": weights_digest(job.model.state_dict()),
        "training": {**asdict(plan), "shards": plan.shards, "mode": mode, "initial_state": initial},
        "options": options_of(job),
        "versions": _versions(),
        "machine": _machine(next(job.model.parameters()).device),
        "settings": {**captured.settings(), "autocast": captured.autocast(), "hash_seed": _hash_seed()},
        "environment": {
            "names": sorted(
                name for name in os.environ.keys() - _RECORDED_ELSEWHERE if name.startswith(_INFLUENTIAL)
            ),
        },
        "code": code_of(tuple(sys.argv)),
        "data": dict(data),
    }
    save(found)


def save(manifest: Mapping[str, Any]) -> None:
    """Write a manifest. Raises OSError."""
    text = json.dumps(manifest, indent=1, default=str) + "\n"
    path = artifacts.train_dir() / NAME
    try:
        artifacts.write_whole(path, lambda file: file.write(text.encode()))
    except OSError as error:
        reason = disk.why(error, path.parent, len(text))
        raise OSError(error.errno, f"the manifest {path} could not be written: {reason}") from error


def load(path: Path) -> dict[str, Any]:
    """Read a manifest. Raises OSError, and ValueError when the file is not a manifest of this format."""
    found = json.loads(path.read_text())
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise ValueError(f"{path} is not a manifest of format {FORMAT}")
    return found


def weights_digest(state: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the tensors of a state dict, in its order, with names, types and shapes."""
    digest = hashlib.sha256()
    for name, value in state.items():
        if isinstance(value, torch.Tensor):
            tensor = value.detach().cpu().contiguous()
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
        else:
            digest.update(f"{name} {value!r}\n".encode())
    return f"sha256:{digest.hexdigest()}"


def options_of(job: TrainingJob) -> dict[str, Any]:
    """Return the options that decide bits: plain values as they are, objects as type and fingerprint."""
    given, default = (
        {one.name: _summary(getattr(recipe, one.name)) for one in fields(Recipe) if one.name not in _HARMLESS}
        for recipe in (job.recipe, Recipe())
    )
    found = {name: value for name, value in given.items() if value != default[name]}
    if job.recipe.resume_from is not None:
        found["resume_from"] = True
    for name, optimizer in job.optimizers.items():
        groups = [{k: _summary(v) for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
        found[f"optimizer{f' {name}' if name else ''}"] = [type(optimizer).__name__, groups]
    return found


@functools.cache
def code_of(argv: tuple[str, ...]) -> dict[str, Any]:
    """Return the name of the main script, and digests of its folder at the first call and of the command line.

    Only files of source code and configuration count, up to 2,000 files and 64 MiB. Hidden folders do not count.
    """
    main = Path(argv[0]) if argv and argv[0] not in ("", "-c", "-m") else None
    arguments = hashlib.sha256(json.dumps(argv[1:]).encode()).hexdigest()[:8]
    if main is None or not main.is_file():
        return {"main": None, "arguments": arguments}
    digest, files, size = hashlib.sha256(), 0, 0
    for path in _code_files(main.absolute().parent):
        try:
            length = path.stat().st_size
            if files == _MOST_FILES or size + length > _MOST_BYTES:
                break
            content = path.read_bytes()
        except OSError:
            continue
        files, size = files + 1, size + length
        name = path.relative_to(main.absolute().parent).as_posix()
        digest.update(f"{name} {len(content)}\n".encode("utf-8", "surrogateescape") + content)
    return {"main": main.name, "files": files, "digest": f"sha256:{digest.hexdigest()}", "arguments": arguments}


def _code_files(folder: Path) -> list[Path]:
    """Return the code files below a folder in the order of their names, without folders that the job writes. The list
    may be slightly longer than `_MOST_FILES`."""
    written = {os.path.abspath(os.environ[name]) for name in ("RESULT_DIR", "LOG_DIR", "CHECKPOINT_DIR", "DATA_DIR")
               if os.environ.get(name)}
    found: list[Path] = []
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(
            name for name in folders
            if not name.startswith((".", "__pycache__")) and os.path.join(root, name) not in written
        )
        found += [Path(root, name) for name in sorted(names) if os.path.splitext(name)[1] in _CODE]
        if len(found) > _MOST_FILES:
            break
    return found


def _summary(value: Any) -> Any:
    """Return a value for JSON: a plain value itself, another object as its type and a fingerprint of its content."""
    if isinstance(value, (bool, int, float, str, type(None))):
        return value
    if isinstance(value, (list, tuple)):
        return [_summary(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _summary(item) for key, item in value.items()}
    if callable(value) and hasattr(value, "__qualname__"):
        return value.__qualname__
    texts = []
    for path, leaf in leaves(value, "", _named):
        texts.append(f"{path} {of_tensors([leaf])[0] if isinstance(leaf, torch.Tensor) else leaf}")
    return f"{type(value).__qualname__} {of_text(chr(10).join(texts)):016x}"


def _named(item: Any) -> str | None:
    """Return the type of an object that the manifest records elsewhere, None for another object."""
    apart = isinstance(item, (torch.optim.Optimizer, nn.Module, Dataset, nn.Parameter))
    return type(item).__qualname__ if apart else None


def _versions() -> dict[str, str]:
    try:
        own = metadata.version("dlicmd")
    except metadata.PackageNotFoundError:
        own = "unknown"
    return {
        **captured.versions(), "dlicmd": own, "cuda": str(torch.version.cuda),
        "cudnn": _tried(torch.backends.cudnn.version),
    }


def _machine(device: torch.device) -> dict[str, Any]:
    found: dict[str, Any] = {
        "device": device.type, "machine": platform.machine(), "system": platform.system(),
        "cpu_model": _cpu_model(), "cpu_capability": _tried(torch.backends.cpu.get_cpu_capability),
        "threads": torch.get_num_threads(),
    }
    if device.type == "cuda":
        found |= {
            "gpu": torch.cuda.get_device_name(device),
            "gpu_capability": ".".join(map(str, torch.cuda.get_device_capability(device))),
        }
    return found


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _hash_seed() -> str:
    return os.environ.get("PYTHONHASHSEED", "random") if sys.flags.hash_randomization else "0"


def _tried(read: Callable[[], Any]) -> str:
    """Return the result of a torch function as text; "unknown" if this version does not have the function."""
    try:
        return str(read())
    except (AttributeError, RuntimeError):
        return "unknown"


def _differences(first: Any, second: Any) -> list[tuple[str, Any, Any]]:
    here, there = first or {}, second or {}
    return [
        (name, here.get(name), there.get(name))
        for name in sorted({*here, *there})
        if here.get(name) != there.get(name)
    ]


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def main(paths: list[str]) -> int:
    """Compare two manifests. Return 0 when the same bits are promised and the weights are equal, else 3. Return 2 for a
    wrong call or an unreadable file."""
    if len(paths) != 2:
        print("usage: python -m local_backend.elastic.state.manifest FIRST SECOND", file=sys.stderr)
        return 2
    try:
        comparison = compare(*(load(Path(path)) for path in paths))
    except (OSError, ValueError, EngineError) as error:
        print(f"cannot compare manifests: {error}", file=sys.stderr)
        return 2
    print("\n".join([*comparison.differences, comparison.promise]))
    return 0 if comparison.promise == "the same bits are promised" else 3


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
