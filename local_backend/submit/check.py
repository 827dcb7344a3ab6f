"""Turns what was asked for into a JobSpec, or says what is wrong with it. Looks at the disk for data and conda only."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Any

from dlicmd.contract.argv import MAX_NUMBER, CommandLine
from dlicmd.contract.sizes import parse_size
from local_backend.data import fs
from local_backend.jobspec import JobSpec
from local_backend.submit import catalogue, conda
from local_backend.submit.errors import BadSubmission
from local_backend.submit.words import Asked

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MAX_NAME = 200
#: How elastic training adds up: to the last bit, as fast as it can, or without waiting for each other.
MODES = ("exact", "fast", "async")


def check(asked: Asked, user: str, roots: fs.DataRoots) -> JobSpec:
    """The job that was asked for. `exec_id` is still empty, and `main` and `model_dir` are as typed: what the upload
    really holds decides (see place.py).

    Raises BadSubmission.
    """
    line = asked.line
    framework = _framework(line)
    hardware = Hardware(asked.hardware)
    device_type, device_num = _device(line, hardware)
    user_cmd = _user_command(line)
    return JobSpec(
        exec_id="",
        framework=framework.name,
        user=user,
        app_name=_app_name(line, framework),
        num_worker=_num_worker(line, framework, hardware),
        elastic=framework.elastic,
        model_dir=_model_dir(line),
        main=None if user_cmd else line.text("--model-main"),
        user_cmd=user_cmd,
        program_args=() if user_cmd else tuple(line.program),
        env=dict(pairs("--msd-env", line.many("--msd-env"))),
        data_dir=_data_dir(asked, roots),
        datastore_meta=line.text("--cs-datastore-meta") or "",
        device_type=device_type,
        device_num=device_num,
        memory=_memory(line, hardware),
        conda_env=conda.find(line.text("--conda-env-name"), line.text("--conda-home")),
        pending_timeout=line.number("--msd-pending-timeout"),
        consumer=line.text("--consumer") or "",
        priority=line.number("--msd-priority") or JobSpec.priority,
        attributes=_attributes(line, framework),
    )


def _framework(line: CommandLine) -> catalogue.Framework:
    if line.command != "--exec-start" or line.operand is None:
        raise BadSubmission("the command line of a submission begins with --exec-start FRAMEWORK")
    framework = catalogue.BY_NAME.get(line.operand)
    if framework is None:
        known = ", ".join(catalogue.BY_NAME)
        raise BadSubmission(f"there is no framework '{line.operand[:80]}'; there are {known}")
    if framework.refused:
        raise BadSubmission(f"{framework.name}: {framework.refused}")
    if line.text("--pbmodel-name") is not None:
        raise BadSubmission("--pbmodel-name: the local backend has no prebuilt models; submit a program")
    return framework


def _user_command(line: CommandLine) -> tuple[str, ...] | None:
    if not line.flag("--user-cmd"):
        return None
    if not line.after_dashes:
        raise BadSubmission("--user-cmd needs the command after --, for example: --user-cmd -- torchrun train.py")
    return tuple(line.after_dashes)


def _model_dir(line: CommandLine) -> str | None:
    """Base name of --model-dir; None when there is none, or when it names no folder of its own (`.`)."""
    typed = line.text("--model-dir")
    return None if typed is None else PurePosixPath(typed.rstrip("/")).name or None


def _app_name(line: CommandLine, framework: catalogue.Framework) -> str:
    name = line.text("--appName")
    if name is None:
        return framework.app_name
    if not name.strip() or len(name) > _MAX_NAME or not name.isprintable():
        raise BadSubmission(f"--appName is empty, longer than {_MAX_NAME} characters or not printable")
    return name


def _num_worker(line: CommandLine, framework: catalogue.Framework, hardware: Hardware) -> int:
    asked = line.number("--numWorker")
    if asked is None and framework.elastic:
        asked = _edt_workers(line.text("--edt-options"))
    if asked is None:
        asked = hardware.number("num_nodes", 1)
    number = asked if asked is not None else framework.workers or 1
    if framework.max_workers is not None and number > framework.max_workers:
        cure = "use distPyTorch for several" if framework.backend == "PyTorch" else "ask for fewer"
        raise BadSubmission(
            f"{framework.name} runs on at most {framework.max_workers} worker, not {number}; {cure}"
        )
    return number


def _edt_workers(options: str | None) -> int | None:
    """N of `--edt-options maxWorkers=N`."""
    for name, value in pairs("--edt-options", (options or "").replace(",", " ").split()):
        if name == "maxWorkers":
            return whole_number(value, "--edt-options maxWorkers", 1)
    return None


def _device(line: CommandLine, hardware: Hardware) -> tuple[str | None, int]:
    """Device type as asked for, and devices per worker: at least one, for a worker without a GPU still takes a slot."""
    kind = line.text("--workerDeviceType")
    number = line.number("--workerDeviceNum")
    if number is None:
        number = hardware.number("gpu.num_gpu", 0)
        if number and kind is None:
            kind = "gpu"
    if number == 0:
        if kind == "gpu":
            raise BadSubmission("--workerDeviceType gpu with 0 devices per worker; ask for at least one, or for cpu")
        return "cpu", 1
    return kind, number or 1


def _memory(line: CommandLine, hardware: Hardware) -> int | None:
    size = line.text("--workerMemory")
    if size is None:
        return hardware.size("mem.size")
    return parse_size(size)


def _attributes(line: CommandLine, framework: catalogue.Framework) -> dict[str, str]:
    """--msd-attr. Of an elastic framework `mode` is the engine's; all other names are the program's own."""
    found = dict(pairs("--msd-attr", line.many("--msd-attr")))
    mode = found.get("mode")
    if framework.elastic and mode is not None and mode not in MODES:
        raise BadSubmission(f"--msd-attr mode: '{mode[:40]}' is not one of {', '.join(MODES)}")
    return found


def _data_dir(asked: Asked, roots: fs.DataRoots) -> str:
    """DATA_DIR: --data-source wins over --cs-datastore-meta, which is not even looked at then."""
    try:
        if asked.data_source:
            return fs.from_sources(asked.data_source, roots)
        return fs.from_meta(asked.line.text("--cs-datastore-meta") or "", roots)
    except fs.DataError as problem:
        raise BadSubmission(str(problem)) from None


def pairs(option: str, items: Iterable[str]) -> list[tuple[str, str]]:
    """(name, value) of every `NAME=VALUE`. Raises BadSubmission, without showing a value that may be a secret."""
    result = []
    for item in items:
        name, equals, value = item.partition("=")
        if not equals or not _VARIABLE.fullmatch(name):
            shown = f"'{name[:80]}' is not a variable name" if equals else "an item without '='"
            raise BadSubmission(f"{option}: {shown}; write {option} NAME=VALUE")
        result.append((name, value))
    return result


def whole_number(value: Any, what: str, least: int) -> int:
    """A number that clients write as a number or as text. Raises BadSubmission."""
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,10}", value.strip()):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadSubmission(f"{what}: '{str(value)[:40]}' is not a whole number")
    if not least <= value <= MAX_NUMBER:
        raise BadSubmission(f"{what}: {str(value)[:40]} is not between {least} and {MAX_NUMBER}")
    return value


class Hardware:
    """The `hardwareSpec` of a submission; fills in what the command line leaves open."""

    def __init__(self, spec: dict[str, Any]) -> None:
        if spec and "nodes" not in spec and ("name" in spec or "id" in spec):
            raise BadSubmission("hardwareSpec by name or id is not known to the local backend; write its 'nodes' out")
        nodes = spec.get("nodes", spec)
        if not isinstance(nodes, dict):
            raise BadSubmission("hardwareSpec: 'nodes' is not a JSON object")
        self._nodes = nodes

    def number(self, path: str, least: int) -> int | None:
        """A whole number at a dotted path, None when it is not there."""
        value = self._at(path)
        return None if value is None else whole_number(value, f"hardwareSpec {path}", least)

    def size(self, path: str) -> int | None:
        """A memory size in bytes at a dotted path."""
        value = self._at(path)
        if value is None:
            return None
        if not isinstance(value, str | int) or isinstance(value, bool):
            raise BadSubmission(f"hardwareSpec {path}: '{str(value)[:40]}' is not a memory size")
        try:
            return parse_size(str(value))
        except ValueError as problem:
            raise BadSubmission(f"hardwareSpec {path}: {problem}") from None

    def _at(self, path: str) -> Any:
        value: Any = self._nodes
        for key in path.split("."):
            if not isinstance(value, dict):
                raise BadSubmission(f"hardwareSpec: what holds '{key}' is not a JSON object")
            value = value.get(key)
            if value is None:
                return None
        return value
