"""The workload model: what a submission asks for, checked and complete. `submit/` writes a workload once; the scheduler
and the runtime read it. Nothing in it changes later."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from dlicmd.contract.data_sources import MOUNT

#: Version of the JSON form. Earlier servers stored version 1, which has no version number: one flat object.
VERSION = 2
Kind = Literal["training", "search", "service", "notebook"]
TRAINING: Kind = "training"
SERVICE: Kind = "service"
#: A MIG slice of any profile.
ANY_SLICE = "slice"


@dataclass(frozen=True)
class Program:
    """The program that a workload runs, and its code."""

    framework: str
    #: Base name of the uploaded folder, None for a single file or no upload.
    model_dir: str | None = None
    #: Main file, relative to the code directory; None with a user command.
    main: str | None = None
    #: The words of --user-cmd, None for a Python program.
    user_cmd: tuple[str, ...] | None = None
    #: The program's own arguments.
    arguments: tuple[str, ...] = ()
    #: --msd-attr: options for the engine that runs the program.
    attributes: dict[str, str] = field(default_factory=dict)
    #: Digest of the submitted code, see runtime/bundles.py; None if an earlier server stored the workload.
    bundle: str | None = None
    #: Name → value of the hyper-parameters, for an experiment of a search; None for any other workload. The working
    #: directory has them as config.json.
    parameters: dict[str, int | float | str] | None = None


@dataclass(frozen=True)
class Environment:
    """The environment of the processes of a workload."""

    #: --msd-env, in order of the command line. The values are sealed (vault.py), because workloads are stored on disks.
    variables: dict[str, str] = field(default_factory=dict)
    #: Directory of the Python environment to run in (its bin/python exists), None for the backend's own.
    conda_env: str | None = None


@dataclass(frozen=True)
class DataSource:
    """Checked data of a workload: a path on this machine, or data that is fetched before the start."""

    #: Name in the submission, or a name derived from the data. Any text that can be shown.
    name: str
    type: str
    #: `mount`, `download` or `stream`.
    access: str
    #: Absolute path of a mount; empty for all other sources.
    path: str = ""
    #: For all other sources: the kind of the connection; a reference to the connection, or its values that are not
    #: secret; the requested location in it; and the destination: `local`, `shared`, or the directory of a volume.
    kind: str = ""
    connection: dict[str, str] = field(default_factory=dict)
    location: dict[str, Any] = field(default_factory=dict)
    target: str = "local"

    @property
    def fetched(self) -> bool:
        """Whether the data must be fetched."""
        return self.access != MOUNT


@dataclass(frozen=True)
class Data:
    """The data of a workload."""

    #: All data sources of --data-source, in order; empty for workloads without it.
    sources: tuple[DataSource, ...] = ()
    #: DATA_DIR of a workload whose first data source is on this machine: resolved, checked, absolute. Empty if it is
    #: not, and if no data directory is configured.
    data_dir: str = ""
    #: Raw text of --cs-datastore-meta, exported as DLI_CS_DATASTORE_META.
    datastore_meta: str = ""

    @property
    def fetched(self) -> bool:
        """Whether data must be fetched before the start."""
        return any(source.fetched for source in self.sources)


@dataclass(frozen=True)
class Resources:
    """The workers of a workload, and the devices and memory that they need."""

    #: Requested workers; the maximum for elastic frameworks, the exact number for the others.
    num_worker: int = 1
    #: Minimum number of workers of an elastic workload.
    min_workers: int = 1
    #: Driver plus elastic workers (edt*), instead of `num_worker` equal workers.
    elastic: bool = False
    #: "cpu" or "gpu" as requested; None if the submission does not say.
    device_type: str | None = None
    #: Devices (slots) per worker; if the number is 1, the fraction of the device.
    device_num: int = 1
    device_share: float = 1.0
    #: Profile of the requested MIG slice, ANY_SLICE for any profile; empty for none.
    mig_profile: str = ""
    #: --msd-pack-id: the pack of the user's jobs that share one device. Then the part of a GPU, and of the CPUs, that a
    #: worker in the pack takes; None if the submission does not say.
    pack: str = ""
    gpu_limit: float | None = None
    cpu_limit: float | None = None
    #: Labels that the machine must have; an empty value matches any value.
    labels: dict[str, str] = field(default_factory=dict)
    #: Limit on the resident memory of one worker in bytes, None for no limit.
    memory: int | None = None

    @property
    def shares(self) -> bool:
        """Whether the workload shares its device with others. If it is elastic, it then has one worker."""
        return self.device_share < 1.0 or bool(self.pack)

    @property
    def engines(self) -> int:
        """Maximum number of workers of an elastic workload. Each worker has a slot of its own."""
        return self.num_worker * self.device_num


@dataclass(frozen=True)
class Scheduling:
    """The place of a workload among the others."""

    #: User that its slots count for: the creator, or the user of --submit-user.
    user: str
    #: --consumer, as given: the resource plan that the workload counts for.
    consumer: str = ""
    #: --msd-priority; larger is more urgent.
    priority: int = 5000
    #: Seconds that the workload may be pending for slots before it ends in state ERROR; None for no limit.
    pending_timeout: int | None = None


@dataclass(frozen=True)
class Membership:
    """The search for hyper-parameters that a workload is an experiment of, and the number of the experiment."""

    search: str
    id: int


@dataclass(frozen=True)
class Service:
    """What the kernels of a workload of kind `service` need: one revision of a model. Times are seconds.

    The resources of such a workload are elastic. Its `min_workers` are the kernels that it has at least, 0 if it may
    have none while there are no requests, and its `num_worker` those that it has at most.
    """

    model: str
    revision: int
    #: Text that a kernel shows to the gateway, which knows by it that the kernel is one of this revision.
    key: str
    #: Unix socket of the gateway, in a folder of its own: kernels in a sandbox see this folder.
    socket: str
    #: Description of the model (model.json), as kernels read it, without the paths.
    description: dict[str, Any]
    #: Command that speaks the kernel protocol; None for a kernel file in Python, `program.main`. With a name of a
    #: ready-made kernel, `program.main` is None, too.
    command: tuple[str, ...] | None = None
    ready_made: str | None = None
    #: Longest time from the start of a kernel until it is ready, and longest time that one which leaves may take.
    connection_timeout: float = 90.0
    leave_timeout: float = 90.0
    #: Kernels that share one slot.
    kernels_per_slot: int = 1


@dataclass(frozen=True)
class Workload:
    """A checked submission: everything that the runtime needs to start it."""

    id: str
    name: str
    #: The user that submitted it and owns its files.
    creator: str
    program: Program
    scheduling: Scheduling
    environment: Environment = field(default_factory=Environment)
    data: Data = field(default_factory=Data)
    resources: Resources = field(default_factory=Resources)
    kind: Kind = TRAINING
    #: Id of the workload or search that it is a part of; None if it stands alone.
    parent: str | None = None
    #: Its place in a search; None if it is not an experiment.
    experiment: Membership | None = None
    #: Id of the workload that it repeats or verifies; None if it is a new one.
    repeats: str | None = None
    #: What its kernels need; None if it is not a service.
    service: Service | None = None
    #: The `sigName` of a client of the first product generation; such clients get it back. None for other clients.
    sig_name: str | None = None

    def to_json(self) -> str:
        """Return the workload as one JSON object."""
        return json.dumps({"version": VERSION} | asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Workload:
        """Return the workload of a JSON text: the inverse of `to_json`. Texts of version 1 are read, too.

        Raises ValueError, TypeError, KeyError or AttributeError for any other text.
        """
        value = json.loads(text)
        version = value.pop("version", 1)
        if version == 1:
            value = _from_flat(value)
        elif version != VERSION:
            raise ValueError(f"version {version!r} of a workload is unknown")
        if value["kind"] not in get_args(Kind):
            raise ValueError(f"kind {value['kind']!r} of a workload is unknown")
        program, data = value["program"], value["data"]
        command, experiment, service = program["user_cmd"], value.get("experiment"), value.get("service")
        return cls(**value | {
            "program": Program(**program | {
                "user_cmd": None if command is None else tuple(command), "arguments": tuple(program["arguments"]),
            }),
            "scheduling": Scheduling(**value["scheduling"]),
            "environment": Environment(**value["environment"]),
            "data": Data(**data | {"sources": tuple(DataSource(**source) for source in data["sources"])}),
            "resources": Resources(**value["resources"]),
            "experiment": None if experiment is None else Membership(**experiment),
            "service": None if service is None else Service(**service | {
                "command": None if service["command"] is None else tuple(service["command"])}),
        })


#: Part of a workload → its fields that have the same names in version 1.
_SAME: dict[str, tuple[str, ...]] = {
    "program": ("framework", "model_dir", "main", "user_cmd", "attributes"),
    "environment": ("conda_env",),
    "data": ("sources", "data_dir", "datastore_meta"),
    "resources": ("num_worker", "min_workers", "elastic", "device_type", "device_num", "device_share", "mig_profile",
                  "pack", "gpu_limit", "cpu_limit", "labels", "memory"),
    "scheduling": ("consumer", "priority", "pending_timeout"),
}


def _from_flat(flat: dict[str, Any]) -> dict[str, Any]:
    """Return the value of version 2 for a value of version 1."""
    flat = {"sources": []} | flat  # the first servers had no data sources
    parts = {part: {name: flat[name] for name in names} for part, names in _SAME.items()}
    parts["program"]["arguments"] = flat["program_args"]
    parts["environment"]["variables"] = flat["env"]
    parts["scheduling"]["user"] = flat["submit_user"] or flat["user"]
    return {
        "id": flat["exec_id"], "name": flat["app_name"], "creator": flat["user"], "kind": TRAINING,
        "sig_name": flat["sig_name"], **parts,
    }
