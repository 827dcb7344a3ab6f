"""The devices, memory, workers and node labels that a submission asks for."""

from __future__ import annotations

import json
import re
from typing import Any

from dlicmd.contract.argv import CommandLine
from dlicmd.contract.sizes import parse_size, show_size
from local_backend.errors import Invalid
from local_backend.runtime import needs
from local_backend.submit import catalogue
from local_backend.submit.values import Hardware, pairs, whole_number
from local_backend.workload import ANY_SLICE, Resources

#: Modes of elastic training: the result is exact to the last bit, training is as fast as possible, or workers do not
#: wait for each other.
MODES = ("exact", "fast", "async")
#: Attribute of an elastic job: its minimum number of workers. The counterpart of `maxWorkers` of --edt-options.
LEAST = "minWorkers"
#: Options and places in a `hardwareSpec` that have a memory size.
_SIZES = ("--workerMemory", "--workerMemoryLimit", "--driverMemory", "--driverMemoryLimit")
_PATHS = ("mem.size", "drivers.mem.size")
#: The spelling of --workerDeviceNum that asks for GPUs.
_GPUS = "--gpuPerWorker"
_PACK = re.compile(r"[\w.:-]{1,100}")
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,252}")
_PROFILE = re.compile(r"[0-9a-z.+]{1,40}")


def resources(
    line: CommandLine, framework: catalogue.CatalogueEntry, attributes: dict[str, str], spec: dict[str, Any],
    memory: int | None,
) -> Resources:
    """Return the resources that a command line asks for. `attributes` are those of --msd-attr. A `hardwareSpec`
    supplies the rest. `memory` is that of the machine in bytes, None if unknown. Raises Invalid."""
    hardware = Hardware(spec)
    num_worker = _num_worker(line, framework, hardware)
    device_type, device_num, device_share = _device(line, hardware)
    pack = _pack(line, device_num)
    found = Resources(
        num_worker=num_worker,
        min_workers=_min_workers(attributes, num_worker * device_num) if framework.elastic else 1,
        elastic=framework.elastic,
        device_type=device_type,
        device_num=device_num,
        device_share=device_share,
        mig_profile="" if device_type == "cpu" else _profile(hardware),
        pack=pack,
        # By the contract, the limits apply to packs only.
        gpu_limit=_gpu_limit(line) if pack else None,
        cpu_limit=line.amount("--workerCPULimit") if pack else None,
        labels=_node_labels(line),
        memory=_memory(line, hardware, packed=bool(pack)),
    )
    if memory is not None:
        _check_memory(line, hardware, found, memory)
    return found


def _check_memory(line: CommandLine, hardware: Hardware, asked: Resources, memory: int) -> None:
    """Raise Invalid for a size that is larger than the `memory` of the machine, and for workers that together need
    more. Of an elastic job, the minimum of workers counts."""
    sizes = {option: parse_size(text) for option in _SIZES if (text := line.text(option))}
    sizes |= {f"hardwareSpec {path}": size for path in _PATHS if (size := hardware.size(path))}
    for what, size in sizes.items():
        if size > memory:
            raise Invalid(
                "submission.never_schedulable",
                f"{what}: the job asks for {show_size(size)} of memory, but this machine has {show_size(memory)}; ask "
                "for less",
            )
    _, least, _ = needs.slots(asked)
    if least * (asked.memory or 0) > memory:
        raise Invalid(
            "submission.never_schedulable",
            f"the job asks for {show_size(asked.memory or 0)} of memory for each of {least} workers, but this machine "
            f"has {show_size(memory)}; use a smaller --workerMemory or fewer workers",
        )


def _gpu_limit(line: CommandLine) -> float | None:
    limit = line.amount("--workerGPULimit")
    if limit is not None and limit > 1:
        raise Invalid(
            "submission.resources",
            f"--workerGPULimit: jobs of a pack share one device; {limit:g} devices are too many",
        )
    return limit


def _node_labels(line: CommandLine) -> dict[str, str]:
    """Return the labels of both node selectors: driver and workers run on one machine. Raises Invalid."""
    found: dict[str, str] = {}
    for option in ("--msd-task0-node-selector", "--msd-task12n-node-selector"):
        for name, value in _selector(option, line.text(option) or ""):
            if found.setdefault(name, value) != value:
                raise Invalid(
                    "submission.resources",
                    f"{option}: {name}={value[:80]} conflicts with {name}={found[name][:80]} in the other node "
                    "selector; this backend has only one machine",
                )
    return found


def _selector(option: str, text: str) -> list[tuple[str, str]]:
    """Return the labels in `label=value,label=value`, or in a JSON object; a label alone stands for any value."""
    if text.lstrip().startswith("{"):
        try:
            items = [(str(name), str(value)) for name, value in json.loads(text).items()]
        except (ValueError, RecursionError):
            raise Invalid("submission.resources", f"{option}: '{text[:80]}' is not a JSON object") from None
    else:
        words = [re.split(r"==?|:", word, maxsplit=1) for word in text.split(",") if word.strip()]
        items = [(name.strip(), value[0].strip() if value else "") for name, *value in words]
    for name, _ in items:
        if not _LABEL.fullmatch(name):
            raise Invalid(
                "submission.resources",
                f"{option}: '{name[:80]}' is not a valid label; write {option} label=value,label=value",
            )
    return items


def _num_worker(line: CommandLine, framework: catalogue.CatalogueEntry, hardware: Hardware) -> int:
    asked = line.number("--numWorker")
    if asked is None and framework.elastic:
        asked = _edt_workers(line.text("--edt-options"))
    if asked is None:
        asked = hardware.number("num_nodes", 1)
    number = asked if asked is not None else framework.workers or 1
    if framework.max_workers is not None and number > framework.max_workers:
        cure = "use distPyTorch for more workers" if framework.backend == "PyTorch" else "request fewer workers"
        raise Invalid(
            "submission.resources",
            f"{framework.name} supports at most {framework.max_workers} worker, not {number}; {cure}",
        )
    return number


def _edt_workers(options: str | None) -> int | None:
    """Return N of `--edt-options maxWorkers=N`."""
    for name, value in pairs("--edt-options", (options or "").replace(",", " ").split()):
        if name == "maxWorkers":
            return whole_number(value, "--edt-options maxWorkers", 1)
    return None


def _min_workers(attributes: dict[str, str], most: int) -> int:
    least = whole_number(attributes.get(LEAST, 1), f"--msd-attr {LEAST}", 1)
    if least > most:
        raise Invalid(
            "submission.resources",
            f"--msd-attr {LEAST}={least} is more than the maximum of {most} workers of this job (--numWorker)",
        )
    return least


def _device(line: CommandLine, hardware: Hardware) -> tuple[str | None, int, float]:
    """Return the requested device type, the devices per worker, and the fraction of a device if a worker asks for less
    than one. A worker without a GPU still takes a slot."""
    kind = line.text("--workerDeviceType")
    number = line.amount("--workerDeviceNum")
    if number is None:
        number = hardware.amount("gpu.num_gpu")
        names_gpus = number is not None
    else:
        names_gpus = any(one.spelling == _GPUS for one in line.given)
    if number and kind is None and names_gpus:
        kind = "gpu"
    if number == 0:
        if kind == "gpu":
            raise Invalid(
                "submission.resources",
                "--workerDeviceType gpu needs at least 1 device per worker, not 0; request 1 device, or use cpu",
            )
        return "cpu", 1, 1.0
    if number is not None and number < 1:
        return kind, 1, number
    return kind, int(number or 1), 1.0


def _pack(line: CommandLine, device_num: int) -> str:
    pack = line.text("--msd-pack-id") or ""
    if pack and not _PACK.fullmatch(pack):
        raise Invalid(
            "submission.resources",
            f"--msd-pack-id: invalid id '{pack[:80]}'; use letters, digits, '.', '_', ':' and '-'",
        )
    if pack and device_num > 1:
        raise Invalid(
            "submission.resources",
            f"--msd-pack-id: jobs of a pack share one device; --workerDeviceNum must be 1, not {device_num}",
        )
    return pack


def _profile(hardware: Hardware) -> str:
    """Return the MIG profile that a `hardwareSpec` asks for, ANY_SLICE for any profile, empty for none."""
    named, kind = hardware.text("gpu.mig_profile"), hardware.text("gpu.gpu_profile").lower()
    profile = named.lower().removeprefix("mig-").removeprefix("mig ")
    if profile and not _PROFILE.fullmatch(profile):
        raise Invalid(
            "submission.hardware",
            f"hardwareSpec gpu.mig_profile: '{named[:40]}' is not a valid profile, for example 1g.10gb",
        )
    return profile or (ANY_SLICE if kind == ANY_SLICE else "")


def _memory(line: CommandLine, hardware: Hardware, *, packed: bool) -> int | None:
    size = (line.text("--workerMemoryLimit") if packed else None) or line.text("--workerMemory")
    return hardware.size("mem.size") if size is None else parse_size(size)


def attributes_of(line: CommandLine, framework: catalogue.CatalogueEntry) -> dict[str, str]:
    """Return the attributes of --msd-attr. For an elastic framework, raise Invalid for an unknown `mode` of the engine.
    The scheduler uses `minWorkers`. Other names are not checked here."""
    found = dict(pairs("--msd-attr", line.many("--msd-attr")))
    mode = found.get("mode")
    if framework.elastic and mode is not None and mode not in MODES:
        raise Invalid(
            "submission.resources", f"--msd-attr mode: unknown mode '{mode[:40]}'; use one of {', '.join(MODES)}"
        )
    return found
