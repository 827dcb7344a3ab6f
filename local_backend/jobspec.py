"""What a submission asks for, checked and complete: written once by the API, read by scheduler and runtime."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field


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
    #: --msd-env, in order of the command line.
    env: dict[str, str] = field(default_factory=dict)
    #: DATA_DIR of the job, resolved and checked, absolute; empty when no data directory is configured.
    data_dir: str = ""
    #: Raw text of --cs-datastore-meta, exported as DLI_CS_DATASTORE_META.
    datastore_meta: str = ""
    #: "cpu" or "gpu" as asked for; None when not said.
    device_type: str | None = None
    #: Devices (slots) per worker.
    device_num: int = 1
    #: Limit on the resident memory of one worker in bytes, None for no limit.
    memory: int | None = None
    #: Directory of the Python environment to run in (its bin/python exists), None for the backend's own.
    conda_env: str | None = None
    #: Seconds the job may wait for slots before it ends ERROR; None to wait for ever.
    pending_timeout: int | None = None
    #: --consumer, as it was given: the resource plan that the job counts for.
    consumer: str = ""
    #: --msd-priority; larger is more urgent.
    priority: int = 5000
    #: --msd-attr, for the engine.
    attributes: dict[str, str] = field(default_factory=dict)
    #: `sigName` of clients of the first product generation, shown to them again; None from all others.
    sig_name: str | None = None

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
        return cls(**data)
