"""The environment of every process of a job. Pure: computed from the launch and the server's inherited environment."""

from __future__ import annotations

import os
import pwd
import re
import sys
import uuid
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from dlicmd import __version__
from local_backend.runtime.data_list import joined
from local_backend.runtime.launch import Launch
from local_backend.runtime.paths import DRIVER, pod_name
from local_backend.runtime.processes import MARK, mark_of
from local_backend.scheduler.model import Slot
from local_backend.workload import Service, Workload

#: Variables that jobs do not inherit: the server's secrets, and variables that each job gets with its own values.
PRIVATE = frozenset({
    "DLI_PASSWORD", "DLICMD_PASSWORD", "DLICMD_TOKEN", "DLICMD_OIDC_TOKEN", "DLI_DATABASE",
    "PGPASSWORD", "DLI_RUNNER_FD", "DLI_HUB_ADDRESS",
    "DLI_HUB_KEY", "DLI_WORKER_NUMBER", "DLI_RESTARTS", "DLI_KERNEL_SOCKET", "DLI_KERNEL_KEY", "DLI_KERNEL_NUMBER",
    "DLI_READY_FD", "DLI_MODEL_DESCRIPTION", "OTEL_EXPORTER_OTLP_HEADERS",
    "OTEL_EXPORTER_OTLP_TRACES_HEADERS", "DLI_DATA_DIRS", "DLI_DATA_SOURCES_FILE", MARK,
    # Of the server's shell and Python environment. Programs must not change that environment.
    "OLDPWD", "VIRTUAL_ENV", "VIRTUAL_ENV_PROMPT", "PIP_PREFIX", "PIP_PYTHON", "PIP_ROOT", "PIP_TARGET", "PYTHONHOME",
})
#: Variables with these prefixes take effect only when an interpreter or a library starts.
_AT_START = (
    "PYTHON", "LD_", "DYLD_", "GLIBC_", "MALLOC_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "GOTO_", "BLIS_",
    "VECLIB_", "NPY_", "NUMPY_", "ATEN_", "DNNL_", "ONEDNN_", "TORCH", "PYTORCH_", "LANG", "LC_", "TZ",
)
#: Default of torch.load without `weights_only`. Before torch 2.6 it loaded every saved object, models and `args`
#: included, and scripts of that time depend on this. Such an object can run code, so files of other users must be
#: loaded as tensors alone.
_WHOLE_OBJECTS, _TENSORS_ALONE = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
#: Locale of jobs if the server's environment names none.
_LANG = "en_US.UTF-8" if sys.platform == "darwin" else "C.UTF-8"
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"

#: One hash seed for all processes of a job: the order of a set of strings depends on it.
HASH_SEED, FIXED_HASH_SEED = "PYTHONHASHSEED", "0"

#: WMLA's name for the platform's own Python environment.
DEFAULT_ENVIRONMENT = "dlipy3"

#: The framework whose programs call init_process_group themselves.
DISTRIBUTED = "distPyTorch"


@dataclass(frozen=True)
class TaskId:
    """One process of a job: the driver (number 0) or a worker (1, 2, ...)."""

    name: str
    number: int
    slots: tuple[Slot, ...] = ()

    @property
    def is_driver(self) -> bool:
        return self.name == DRIVER


def inherited(environ: Mapping[str, str], *, of_server: bool = True) -> dict[str, str]:
    """Return the variables that jobs inherit from the server: all except PRIVATE. Add the usual variables that a server
    without a login shell does not have. Leave out a HOME that cannot be used, or that is not the HOME of the submitter,
    who is not the server's user: settings of tools in HOME, such as pip's, would affect the jobs of other users."""
    env = {name: value for name, value in environ.items() if name not in PRIVATE}
    env["USER"] = env.get("USER") or env.get("LOGNAME") or _account()
    env["LOGNAME"] = env.get("LOGNAME") or env["USER"]
    env["LANG"] = env.get("LANG") or _LANG
    home = env.get("HOME", "")
    if not (of_server and os.path.isabs(home) and os.path.isdir(home) and os.access(home, os.W_OK | os.X_OK)):
        env.pop("HOME", None)
    return env


def _account() -> str:
    """Return the name of the user that this process runs as; its number if it has no name, as in some containers."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def acts_at_start(names: Iterable[str]) -> bool:
    """Return whether a process with these variables needs its own interpreter, because a forked one would ignore
    them."""
    return any(name.startswith(_AT_START) for name in names)


def needs_own_interpreter(spec: Workload) -> bool:
    """Return whether the program cannot run in a process forked from the nursery.

    Programs with their own process groups get a fresh interpreter. With gloo of torch 2.13, the destruction of a
    group can deadlock. It does so if nothing releases the interpreter lock (GIL) between the last collective and the
    destruction. In a program started by hand, the imports of the first `destroy_process_group` release it by
    accident. With torch already imported, nothing releases it.
    """
    program, environment = spec.program, spec.environment
    own_groups = not spec.resources.elastic and program.framework == DISTRIBUTED
    own_python = environment.conda_env is not None or acts_at_start(environment.variables)
    other_program = program.user_cmd is not None or (spec.service is not None and spec.service.command is not None)
    return own_groups or own_python or other_program


def interpreter(launch: Launch) -> str:
    """Return the path of the Python that runs the program."""
    conda_env = launch.spec.environment.conda_env
    home = Path(conda_env) if conda_env else launch.home.user_python(launch.spec.creator)
    return str(home / "bin" / "python")


def of_task(launch: Launch, task: TaskId, *, master_port: int, cores: int, temporary: Path) -> dict[str, str]:
    """Return the whole environment of one process, with the folder `temporary` as TMPDIR. Values of --msd-env override
    the backend's values."""
    env = dict(launch.environment)
    env.setdefault("HOME", str(launch.home.user_home(launch.spec.creator)))
    env |= _job(launch) | _task(launch, task) | {"TMPDIR": str(temporary)}
    if launch.spec.service is not None:
        env |= _kernel(launch, launch.spec.service, task)
        env.setdefault("OMP_WAIT_POLICY", "passive")  # see inference.kernel.openmp
    env.setdefault("OMP_NUM_THREADS", str(threads(launch, task, cores)))
    if not launch.spec.resources.elastic:
        env |= _peers(launch, task, master_port)
        env.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK)
    env["PATH"] = os.pathsep.join(filter(None, [*_commands(launch), env.get("PATH")]))
    env |= {HASH_SEED: FIXED_HASH_SEED} | launch.spec.environment.variables
    if env[HASH_SEED] in ("", "random"):
        env[HASH_SEED] = str(zlib.crc32(launch.spec.id.encode()))
    if launch.whole_objects and _TENSORS_ALONE not in env:  # with both variables set, torch refuses to load anything
        env.setdefault(_WHOLE_OBJECTS, "1")
    env["PYTHONPATH"] = os.pathsep.join(search_path(launch, env.get("PYTHONPATH", "")))
    return env | {MARK: mark_of(launch.paths.state), "PWD": str(launch.paths.code(launch.spec))}


def _commands(launch: Launch) -> list[str]:
    """Return the folders with the commands of the job's Python, first those that the user has installed."""
    own = os.path.dirname(interpreter(launch))
    if launch.spec.environment.conda_env:
        return [own]
    return [own, str(launch.home.scripts), os.path.dirname(sys.executable)]


@cache
def _engine(link: Path) -> Path:
    """Return the file that a link leads to at the first call: all processes of a runner import the same version."""
    return link.resolve()


def search_path(launch: Launch, rest: str) -> list[str]:
    """Return PYTHONPATH: the code first, then the platform's packages, then `rest`, the given or inherited value, then
    the modules for a Python that lacks the package `dlicmd`."""
    fabric = launch.home.fabric_home
    ours = [fabric / "tools" / "dli_utils", _engine(fabric / "libs" / "fabric.zip"), *own_modules(launch)]
    given = [entry for entry in rest.split(os.pathsep) if entry]
    own = [str(path) for path in ours]
    words = [*given, *own] if "PYTHONPATH" in launch.spec.environment.variables else [*own, *given]
    return list(dict.fromkeys([str(launch.paths.code(launch.spec)), *words, str(launch.home.program_modules)]))


def own_modules(launch: Launch) -> list[Path]:
    """Return the folders outside of the code in which a user may keep modules: targets of `pip install --target`."""
    spec = launch.spec
    return [launch.home.result_fs / spec.creator, launch.home.user_python(spec.creator, spec.environment.conda_env)]


def threads(launch: Launch, task: TaskId, cores: int) -> int:
    """Return the number of threads of a process: its slots' part of `cores`, or the limit that a pack grants. The
    driver gets 1, because it only coordinates."""
    if task.is_driver:
        return 1
    limit = launch.spec.resources.cpu_limit
    if limit is not None:
        return max(1, min(cores, int(limit)))
    share = launch.share if launch.spec.service is None else launch.share / launch.spec.service.kernels_per_slot
    return max(1, int(cores * len(task.slots) * share / max(1, launch.machine_slots)))


def _job(launch: Launch) -> dict[str, str]:
    """Return the variables that all processes of a job share (contract, sections 5.2 and 10)."""
    spec, paths = launch.spec, launch.paths
    code, job, folders = str(paths.code(spec)), spec.id, paths.data_folders(spec)
    env = {
        "DATA_DIR": folders[0], "DATA_PATH": _below(folders[0], launch.home.data_fs),
        "RESULT_DIR": str(paths.root), "SAVED_MODEL_DIR": str(paths.model),
        "CHECKPOINT_DIR": str(paths.checkpoint), "DLI_DATA_FS": str(launch.home.data_fs),
        "DLI_RESULT_FS": str(launch.home.result_fs), "DLI_WORK_DIR": code, "MODEL_PATH": code, "PS_PATH": code,
        "MODEL_FILE_LOCATION": str(paths.submitted),
        "DLI_EXECID": job, "APP_ID": job, "JOB_ID": job, "TASK_JOB_ID": job, "DLI_OBJECT_ID": job,
        "DLI_OBJECT_NAME": job, "DLI_SUBMIT_USERNAME": spec.scheduling.user,
        "DLI_CS_DATASTORE_META": spec.data.datastore_meta,
        "FABRIC_HOME": str(launch.home.fabric_home), "FRAME_WORK": spec.program.framework,
        "DLI_IS_ELASTIC": "true" if spec.resources.elastic else "false", "DLI_LOGGER_LEVEL": "INFO", "EXEC_TYPE": "",
        "EMETRICS_STREAMING": "ON", "PYTHONUNBUFFERED": "x",
        "PYTHONUSERBASE": str(launch.home.user_python(spec.creator, spec.environment.conda_env)),
        "WMLA_NWORKER": str(spec.resources.num_worker),
        "WMLA_WORKER_NDEVICE": str(spec.resources.device_num), "SPACE_ID": "",
        "DLI_VERSION": __version__, "DLI_CONDA_ENV_NAME": DEFAULT_ENVIRONMENT,
        "DLI_DEFAULT_CONDA_ENV_NAME": DEFAULT_ENVIRONMENT,
        "TRAINING_ID": job, "JOB_STATE_DIR": str(paths.root), "WMLA_USER_DATA_DIR": folders[0],
        "WMLA_USER_DATA_FILES": "", **_search(spec),
    }
    env["JOB_UUID"] = env["MSD_MK_ID"] = str(uuid.uuid5(uuid.NAMESPACE_URL, str(paths.root)))
    together = joined(folders)
    if together is not None:
        env["DLI_DATA_DIRS"] = together
    if spec.data.sources:
        env["DLI_DATA_SOURCES_FILE"] = str(paths.data_sources)
    if spec.resources.elastic and spec.service is None:
        env |= {"FABRIC_BACKEND": "pytorch", "RESUME_WEIGHT_PATH": "null"}
    conda_env = spec.environment.conda_env
    if conda_env:
        env |= {"CONDA_PREFIX": conda_env, "CONDA_DEFAULT_ENV": os.path.basename(conda_env)}
        env["DLI_CONDA_ENV_NAME"] = env["CONDA_DEFAULT_ENV"]
    else:
        env["VIRTUAL_ENV"] = env["PYTHONUSERBASE"]
    return env


def _search(spec: Workload) -> dict[str, str]:
    """Return the variables of an experiment of a search; none for another workload."""
    if spec.experiment is None:
        return {}
    given = {f"HPO_{re.sub('[^A-Z0-9]', '_', name.upper())}": value if isinstance(value, str) else repr(value)
             for name, value in (spec.program.parameters or {}).items()}
    return {"SUBID": str(spec.experiment.id), "DLI_HPO_NAME": spec.experiment.search, **given}


def _below(data_dir: str, data_fs: Path) -> str:
    """Return DATA_PATH: joined to DLI_DATA_FS, it gives DATA_DIR. It is absolute if DATA_DIR is not below
    DLI_DATA_FS. It is empty if DATA_DIR is DLI_DATA_FS itself, or empty."""
    if not data_dir or not Path(data_dir).is_relative_to(data_fs):
        return data_dir
    path = str(Path(data_dir).relative_to(data_fs))
    return "" if path == "." else path


def _task(launch: Launch, task: TaskId) -> dict[str, str]:
    """Return the variables of one process."""
    log_dir = launch.paths.log_dir(task.name)
    devices = ",".join(slot.device for slot in task.slots if slot.device)
    kind = "ngpus" if any(slot.device for slot in launch.slots) else "cpu"
    env = {
        "LOG_DIR": str(log_dir), "TASK_ID": str(task.number), "DLI_TASK_ID": str(max(0, task.number - 1)),
        "IS_TASK0": "true" if task.is_driver else "", "TASK12N_DEVICE_TYPE": kind, "CUDA_VISIBLE_DEVICES": devices,
        "NVIDIA_VISIBLE_DEVICES": devices, "MSD_POD_GPU_DEVICES": devices, "MSD_POD_IP": "127.0.0.1",
        "MSD_POD_HOST_IP": "127.0.0.1", "MSD_POD_NAME": log_dir.name.removeprefix("app."),
    }
    if task.is_driver:
        env["DLI_IS_DRIVER"] = "true"
    return env


def _kernel(launch: Launch, service: Service, task: TaskId) -> dict[str, str]:
    """Return the variables of one kernel of a service (docs/kernel-protocol.md)."""
    job = f"edi-{service.model}-{launch.spec.id}"
    name = pod_name(job, task.name)
    env = {
        "DLI_KERNEL_SOCKET": service.socket, "DLI_KERNEL_KEY": service.key, "DLI_KERNEL_NUMBER": str(task.number),
        "DLI_MODEL_DESCRIPTION": str(launch.paths.model_description),
        "REDHARE_MODEL_NAME": service.model, "REDHARE_MODEL_PATH": str(launch.paths.code(launch.spec)),
        "REDHARE_MODEL_CREATOR": launch.spec.creator, "REDHARE_LD_LIBRARY_PATH": "", "TASK_JOB_ID": job,
        "REDHARE_MODEL_REVISION": str(service.revision),
        "MSD_POD_NAME": name, "HOSTNAME": name, "DLI_IS_ELASTIC": "false",
    }
    return env | ({} if "DLIM_MK_LOG_LEVEL" in launch.environment else {"DLIM_MK_LOG_LEVEL": "INFO"})


def _peers(launch: Launch, task: TaskId, master_port: int) -> dict[str, str]:
    """Return the variables by which workers of a fixed-size job find each other; a single process gets no rank."""
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(master_port), "NODE_RANK": str(task.number - 1)}
    if launch.spec.program.framework.startswith("dist"):
        env |= {"WORLD_SIZE": str(launch.spec.resources.num_worker), "RANK": str(task.number - 1)}
        if sum(bool(slot.device) for slot in task.slots) <= 1:
            # On several devices of its own, a program starts one process for each, and numbers them itself.
            env |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    return env
