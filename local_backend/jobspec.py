"""What a submission asks for, checked and complete: written once by the API, read by scheduler and runtime."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from dlicmd.contract.data_sources import MOUNT


@dataclass(frozen=True)
class Source:
    """Data that a job is to find, checked: a place on this machine, or what is fetched before the job starts."""

    #: As the submission calls it, or after what it is: any text that can be shown.
    name: str
    type: str
    #: mount, download or stream.
    access: str
    #: Of a mount: where it is, absolute; empty for all others.
    path: str = ""
    #: Of all others: the kind of connection; the one that is meant, or its values that are no secrets; what is asked of
    #: it; and whose disk it comes to: `local`, `shared`, or the directory of a volume.
    kind: str = ""
    connection: dict[str, str] = field(default_factory=dict)
    location: dict[str, Any] = field(default_factory=dict)
    target: str = "local"

    @property
    def fetched(self) -> bool:
        """Whether it has to come from elsewhere."""
        return self.access != MOUNT


#: A MIG slice of whatever profile.
ANY_SLICE = "slice"


@dataclass(frozen=True)
class JobSpec:
    """A checked submission. Everything that the runtime needs to start the job, and nothing that can change later."""

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
    #: --msd-env, in order of the command line: the values are sealed (vault.py), for a spec lies on disks.
    env: dict[str, str] = field(default_factory=dict)
    #: DATA_DIR of a job whose first data lie on this machine, resolved and checked, absolute; empty when they do not,
    #: and when no data directory is configured.
    data_dir: str = ""
    #: All data that --data-source names, in order; none for jobs without it.
    sources: tuple[Source, ...] = ()
    #: Raw text of --cs-datastore-meta, exported as DLI_CS_DATASTORE_META.
    datastore_meta: str = ""
    #: "cpu" or "gpu" as asked for; None when not said.
    device_type: str | None = None
    #: Devices (slots) per worker, and when it is one: which part of it.
    device_num: int = 1
    device_share: float = 1.0
    #: An elastic job does not run with fewer workers than that.
    min_workers: int = 1
    #: Profile of the MIG slice that it asks for, ANY_SLICE for any; empty for none.
    mig_profile: str = ""
    #: --msd-pack-id: the pack of the user's jobs that share one device; and how much of a GPU or of the CPUs a worker
    #: in it takes, None when not said.
    pack: str = ""
    gpu_limit: float | None = None
    cpu_limit: float | None = None
    #: Labels that the machine must have; an empty value stands for any.
    labels: dict[str, str] = field(default_factory=dict)
    #: Limit on the resident memory of one worker in bytes, None for no limit.
    memory: int | None = None
    #: Directory of the Python environment to run in (its bin/python exists), None for the backend's own.
    conda_env: str | None = None
    #: Seconds the job may wait for slots before it ends ERROR; None to wait for ever.
    pending_timeout: int | None = None
    #: --submit-user: the user that the job counts for, empty for `user`.
    submit_user: str = ""
    #: --consumer, as it was given: the resource plan that the job counts for.
    consumer: str = ""
    #: --msd-priority; larger is more urgent.
    priority: int = 5000
    #: --msd-attr, for the engine.
    attributes: dict[str, str] = field(default_factory=dict)
    #: `sigName` of clients of the first product generation, shown to them again; None from all others.
    sig_name: str | None = None

    @property
    def shares(self) -> bool:
        """Whether it shares its device with others; it has one worker then, if it is elastic."""
        return self.device_share < 1.0 or bool(self.pack)

    @property
    def engines(self) -> int:
        """Of an elastic job: workers that it can have, each on a slot of its own."""
        return self.num_worker * self.device_num

    @property
    def fetches(self) -> bool:
        """Whether data has to come before it can start."""
        return any(source.fetched for source in self.sources)

    @property
    def counts_for(self) -> str:
        """The user in whose name slots are shared out to it."""
        return self.submit_user or self.user

    def to_json(self) -> str:
        """The spec as one JSON object."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> JobSpec:
        """Inverse of `to_json`."""
        data = json.loads(text)
        for name in ("user_cmd", "program_args"):
            if data[name] is not None:
                data[name] = tuple(data[name])
        data["sources"] = tuple(Source(**source) for source in data.get("sources", ()))
        return cls(**data)
