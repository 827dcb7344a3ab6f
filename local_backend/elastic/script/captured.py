"""Process state that a script has changed before it calls `train()`, and its transfer to workers.

This state is the environment, the working directory, global settings, autocast, and the states of the global random
generators. The hub sends it in the welcome message. A worker applies environment, working directory and settings before
it imports the modules of the user.
"""

from __future__ import annotations

import base64
import os
import pickle
import platform
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial, reduce, wraps
from typing import Any

import numpy as np
import torch
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from local_backend.elastic import RUNNER_FD
from local_backend.elastic.errors import EngineError
from local_backend.elastic.plan import derive_seed
from local_backend.elastic.script import early_seeding
from local_backend.elastic.script.initial_environment import changes
from local_backend.elastic.script.surroundings import interpret_scripts, watch_threads

#: Variables that belong to one process only, and variables that the interpreter has read at its start.
_OF_ONE_PROCESS = frozenset({
    "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "ELASTIC_FAULT", "LOG_DIR", "TASK_ID", "IS_TASK0",
    "TASK12N_DEVICE_TYPE", "PYTHONPATH", "PYTHONHASHSEED", "PWD", "OLDPWD", "SHLVL", "_",
})
_PREFIXES_OF_ONE_PROCESS = ("DLI_", "MSD_POD_")

#: Settings that are attributes of torch.backends, in the order of assignment: general settings before specific ones.
_ATTRIBUTES = (
    "cudnn.enabled", "cudnn.benchmark", "cudnn.deterministic", "cudnn.allow_tf32",
    "cuda.matmul.allow_tf32", "cuda.matmul.allow_fp16_reduced_precision_reduction",
    "cuda.matmul.allow_bf16_reduced_precision_reduction", "mkldnn.enabled", "mkldnn.deterministic",
    "opt_einsum.enabled", "opt_einsum.strategy", "fp32_precision", "cudnn.fp32_precision",
    "cudnn.conv.fp32_precision", "cudnn.rnn.fp32_precision", "cuda.matmul.fp32_precision", "mkldnn.fp32_precision",
    "mkldnn.matmul.fp32_precision", "mkldnn.conv.fp32_precision", "mkldnn.rnn.fp32_precision",
)
_ATTENTION = ("flash", "mem_efficient", "math", "cudnn")
_DEVICE_TYPES = ("cpu", "cuda")

#: Dtypes of the GPU autocasts that the script has entered in a process without a GPU. None: a disabled autocast.
_without_gpu: list[torch.dtype | None] = []
#: Whether `begin` has run.
_begun = False


def begin() -> None:
    """Start to record changes that cannot be read later. Called when a script imports FabricModel."""
    global _begun
    if _begun:
        return
    _begun = True
    early_seeding.watch()
    watch_threads()
    if "DLI_WORKER_NUMBER" not in os.environ:  # the mode of the training decides it in a worker
        interpret_scripts()
    if RUNNER_FD in os.environ and not torch.cuda.is_available():
        watch_autocast()


# --- environment


def environment() -> dict[str, str | None]:
    """Return the variables that the script has set, with None for deleted variables."""
    changed = changes()
    return {name: changed[name] for name in sorted(changed) if not _is_of_one_process(name)}


def apply_environment(changed: Mapping[str, str | None]) -> None:
    """Set and delete variables as the script did."""
    for name, value in changed.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    if "TZ" in changed:
        time.tzset()


def _is_of_one_process(name: str) -> bool:
    return name in _OF_ONE_PROCESS or name.startswith(_PREFIXES_OF_ONE_PROCESS)


# --- settings


def settings() -> dict[str, Any]:
    """Return the global settings of torch, numpy and Python as JSON values, without settings that this version of torch
    lacks or cannot read."""
    found = {}
    for name, (read, _) in _settings().items():
        with suppress(Exception):
            found[name] = read()
    return found


def apply_settings(wanted: Mapping[str, Any]) -> None:
    """Set the settings that differ in this process."""
    for name, (read, write) in _settings().items():
        if name in wanted:
            with suppress(AttributeError):
                if read() != wanted[name]:
                    write(wanted[name])


def _settings() -> dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]]:
    """Return name → (function that reads the setting, function that writes it)."""
    found: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
        "default_dtype": (
            lambda: str(torch.get_default_dtype()).removeprefix("torch."),
            lambda value: torch.set_default_dtype(getattr(torch, value)),
        ),
        "default_device": (lambda: str(torch.get_default_device()), torch.set_default_device),
        "float32_matmul_precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        "deterministic_algorithms": (
            lambda: [
                torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled(),
            ],
            lambda value: torch.use_deterministic_algorithms(value[0], warn_only=value[1]),
        ),
        "fill_uninitialized_memory": (
            lambda: bool(torch.utils.deterministic.fill_uninitialized_memory),  # type: ignore[attr-defined]
            partial(setattr, torch.utils.deterministic, "fill_uninitialized_memory"),
        ),
        "detect_anomaly": (
            lambda: [torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()],
            lambda value: torch.autograd.set_detect_anomaly(*value),
        ),
        "flush_denormal": (_flushes_denormals, torch.set_flush_denormal),
        "sharing_strategy": (
            torch.multiprocessing.get_sharing_strategy, torch.multiprocessing.set_sharing_strategy,
        ),
        "recursion_limit": (sys.getrecursionlimit, sys.setrecursionlimit),
        "numpy_errors": (lambda: dict(np.geterr()), lambda value: np.seterr(**value)),
    }
    for name in _ATTENTION:
        switch, read = f"enable_{name}_sdp", f"{name}_sdp_enabled"
        if hasattr(torch.backends.cuda, switch):
            found[f"{name}_sdp"] = (getattr(torch.backends.cuda, read), getattr(torch.backends.cuda, switch))
    for path in _ATTRIBUTES:
        found[path] = (partial(_read, path), partial(_write, path))
    return found


def _read(path: str) -> Any:
    return reduce(getattr, path.split("."), torch.backends)


def _write(path: str, value: Any) -> None:
    owner, _, name = path.rpartition(".")
    setattr(reduce(getattr, owner.split("."), torch.backends) if owner else torch.backends, name, value)


def _flushes_denormals() -> bool:
    """Return whether this thread treats the smallest numbers (denormals) as zero."""
    smallest = sys.float_info.min
    return smallest / 2 == 0


# --- autocast


def autocast() -> dict[str, str]:
    """Return device type → dtype of the autocast that is active here, or would be on a machine with a GPU."""
    found = {kind: torch.get_autocast_dtype(kind) for kind in _DEVICE_TYPES if torch.is_autocast_enabled(kind)}
    if "cuda" not in found and _without_gpu and _without_gpu[-1] is not None:
        found["cuda"] = _without_gpu[-1]
    return {kind: str(dtype).removeprefix("torch.") for kind, dtype in found.items()}


def watch_autocast() -> None:
    """Record the GPU autocasts that the script enters. A driver sees no GPU, so torch disables them there."""
    make, enter, leave = torch.autocast.__init__, torch.autocast.__enter__, torch.autocast.__exit__

    @wraps(make)
    def __init__(self: Any, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: Any = None):  # type: ignore[no-untyped-def]
        make(self, device_type, dtype, enabled, cache_enabled)
        self._wanted_by_script = self.fast_dtype if enabled else None

    @wraps(enter)
    def __enter__(self: Any) -> Any:
        if self.device == "cuda":
            _without_gpu.append(self._wanted_by_script)
        return enter(self)

    @wraps(leave)
    def __exit__(self: Any, *error: Any) -> Any:
        if self.device == "cuda":
            _without_gpu.pop()
        return leave(self, *error)

    for function in (__init__, __enter__, __exit__):
        setattr(torch.autocast, function.__name__, function)


@contextmanager
def around_training(active: Mapping[str, str]) -> Iterator[None]:
    """Enable gradients, and autocast for the device types in `active` (device type → dtype), within the context.

    The cache of autocast is off, because it would keep casts of weights from before an optimizer step.
    """
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for kind, dtype in active.items():
            stack.enter_context(torch.autocast(kind, getattr(torch, dtype), cache_enabled=False))
        yield


# --- global generators


def generators() -> str:
    """Return the states of the global generators, as text for `set_generators`.

    If the script has not seeded `random` or `numpy`, the state of that generator follows from the seed of torch.
    """
    seed = torch.initial_seed()
    states: dict[str, Any] = {"torch": torch.get_rng_state().numpy().tobytes()}
    states["random"] = random.getstate() if early_seeding.seeded() else random.Random(derive_seed(seed, 5)).getstate()
    # NumPy keeps its initial entropy (`seed_seq`) until a program seeds it.
    current = np.random.mtrand.get_bit_generator()
    seeded = isinstance(current, np.random.MT19937) and current.seed_seq is None
    fresh = np.random.RandomState(derive_seed(seed, 6) & 0xFFFFFFFF)
    states["numpy"] = np.random.get_state() if seeded else fresh.get_state()
    return base64.b64encode(pickle.dumps(states)).decode()


def set_generators(text: str) -> None:
    """Set the global generators to the states that `generators` returned."""
    states = pickle.loads(base64.b64decode(text))
    torch.set_rng_state(torch.frombuffer(bytearray(states["torch"]), dtype=torch.uint8))
    random.setstate(states["random"])
    np.random.set_state(states["numpy"])


# --- hooks and modes that workers cannot get


def check_global_hooks() -> None:
    """Raise EngineError if the script has set hooks or modes for all modules, optimizers or operations of its process.
    Workers do not have the state that these hooks and modes may keep."""
    modes = [*torch.overrides._get_current_function_mode_stack(), *_get_current_dispatch_mode_stack()]
    for mode in modes:
        if not isinstance(mode, DeviceContext):
            raise EngineError(
                f"train() is called inside a {type(mode).__name__}, but the mode does not apply in workers: enter it "
                "in fn_step_train or in forward"
            )
    for kind, instead in (
        (torch.nn.Module, "register it on your modules: module.register_forward_hook(hook)"),
        (torch.optim.Optimizer, "register it on your optimizer: optimizer.register_step_post_hook(hook)"),
    ):
        for name, hooks in vars(sys.modules[kind.__module__]).items():
            if name.startswith("_global_") and name.endswith("_hooks") and hooks:
                hook = next(iter(hooks.values()))
                raise EngineError(
                    f"{getattr(hook, '__qualname__', type(hook).__qualname__)} is a hook of every "
                    f"{kind.__name__.lower()} of this process, but the hook does not apply in workers: {instead}"
                )


# --- all of it


def versions() -> dict[str, str]:
    """Return the versions that decide the bits of a training."""
    return {"python": platform.python_version(), "torch": str(torch.__version__), "numpy": np.__version__}


def capture() -> dict[str, Any]:
    """Return versions, environment, directory, settings and autocast of the script as JSON values, for `apply`."""
    return {
        "versions": versions(), "environment": environment(), "directory": _directory(), "settings": settings(),
        "autocast": autocast(),
    }


def _directory() -> str | None:
    """Return the working directory; None if it was removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def apply(script: Mapping[str, Any]) -> None:
    """Apply the environment, the working directory and the settings of the script to this worker process.

    Raises EngineError if this process has loaded other versions than the script, because packages were changed after
    the script had started, and if it cannot enter the working directory.
    """
    for name, version in versions().items():
        if version != script["versions"][name]:
            raise EngineError(
                f"this worker has {name} {version}, but the script runs with {name} {script['versions'][name]}: the "
                "installed packages were changed while the job ran. Start the job again"
            )
    apply_environment(script["environment"])
    try:
        if script["directory"] is not None:
            os.chdir(script["directory"])
    except OSError as error:
        raise EngineError(
            f"this worker cannot enter the working directory of the script, {script['directory']}: {error.strerror}. "
            "Keep this folder until train() returns"
        ) from None
    apply_settings(script["settings"])
