"""A submission, checked and complete. The API writes it once; the scheduler and the runtime read it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from dlicmd.contract.data_sources import MOUNT


@dataclass(frozen=True)
class Source:
    """Checked data of a job: a path on this machine, or data that is fetched before the job starts."""

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


#: A MIG slice of any profile.
ANY_SLICE = "slice"


@dataclass(frozen=True)
class JobSpec:
    """A checked submission: everything that the runtime needs to start the job, and nothing that can change later."""

    exec_id: str
    framework: str
    user: str
    app_name: str
    #: Requested workers; the maximum for elastic frameworks, the exact number for the others.
    num_worker: int
    #: Driver plus elastic workers (edt*), instead of `num_worker` equal workers.
    elastic: bool = False
    #: Base name of the uploaded folder, None for a single file or no upload.
    model_dir: str | None = None
    #: Main file, relative to the code directory; None with a user command.
    main: str | None = None
    #: The words of --user-cmd, None for a Python program.
    user_cmd: tuple[str, ...] | None = None
    #: The program's own arguments.
    program_args: tuple[str, ...] = ()
    #: --msd-env, in order of the command line. The values are sealed (vault.py), because specs are stored on disks.
    env: dict[str, str] = field(default_factory=dict)
    #: DATA_DIR of a job whose first data source is on this machine: resolved, checked, absolute. Empty if it is not,
    #: and if no data directory is configured.
    data_dir: str = ""
    #: All data sources of --data-source, in order; empty for jobs without it.
    sources: tuple[Source, ...] = ()
    #: Raw text of --cs-datastore-meta, exported as DLI_CS_DATASTORE_META.
    datastore_meta: str = ""
    #: "cpu" or "gpu" as requested; None if the submission does not say.
    device_type: str | None = None
    #: Devices (slots) per worker; if the number is 1, the fraction of the device.
    device_num: int = 1
    device_share: float = 1.0
    #: Minimum number of workers of an elastic job.
    min_workers: int = 1
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
    #: Directory of the Python environment to run in (its bin/python exists), None for the backend's own.
    conda_env: str | None = None
    #: Seconds that the job may be pending for slots before it ends in state ERROR; None for no limit.
    pending_timeout: int | None = None
    #: --submit-user: the user that the job counts for, empty for `user`.
    submit_user: str = ""
    #: --consumer, as given: the resource plan that the job counts for.
    consumer: str = ""
    #: --msd-priority; larger is more urgent.
    priority: int = 5000
    #: --msd-attr: options for the engine.
    attributes: dict[str, str] = field(default_factory=dict)
    #: The `sigName` of a client of the first product generation; such clients get it back. None for other clients.
    sig_name: str | None = None

    @property
    def shares(self) -> bool:
        """Whether the job shares its device with other jobs. If the job is elastic, it then has one worker."""
        return self.device_share < 1.0 or bool(self.pack)

    @property
    def engines(self) -> int:
        """Maximum number of workers of an elastic job. Each worker has a slot of its own."""
        return self.num_worker * self.device_num

    @property
    def fetches(self) -> bool:
        """Whether data must be fetched before the job can start."""
        return any(source.fetched for source in self.sources)

    @property
    def counts_for(self) -> str:
        """User that the job's slots count for when slots are shared out."""
        return self.submit_user or self.user

    def to_json(self) -> str:
        """Return the spec as one JSON object."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> JobSpec:
        """Return the spec from its JSON text. Inverse of `to_json`."""
        data = json.loads(text)
        for name in ("user_cmd", "program_args"):
            if data[name] is not None:
                data[name] = tuple(data[name])
        data["sources"] = tuple(Source(**source) for source in data.get("sources", ()))
        return cls(**data)
