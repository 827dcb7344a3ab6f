"""Every file name of the backend and of an exec is made here, and nowhere else."""

from __future__ import annotations

import hashlib
import re
import sys
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from dlicmd.contract.home import SERVED_FILE
from local_backend.files import open_regular
from local_backend.jobspec import JobSpec

#: Name of the driver task of an elastic job; workers are task12n-1, task12n-2, ... as in the contract's task groups.
DRIVER = "task0"
_GROUP = "task12n"
_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"
_MARKS = len(_ALPHABET) ** 5
#: Has no divisor in common with _MARKS, so that its multiples are all different.
_STRIDE = 23_456_789
#: Bytes of a name that somebody gave in the name of a file: systems take 255, and more stands around it.
_LONGEST_NAME = 200


def worker_task(number: int) -> str:
    """Name of worker `number` (1-based)."""
    return f"{_GROUP}-{number}"


def worker_number(task: str) -> int | None:
    """Inverse of `worker_task`; None for what is no worker's name."""
    group, _, number = task.partition("-")
    return int(number) if group == _GROUP and re.fullmatch("[1-9][0-9]{0,8}", number) else None


def pod_name(exec_id: str, task: str) -> str:
    """Name of a process on the wire and in its LOG_DIR: `<appId>-task12n-<5 characters>`.

    The characters look random, but no two workers of an exec share them, however many there are.
    """
    group = task.partition("-")[0]
    start = int.from_bytes(hashlib.sha256(f"{exec_id} {group}".encode()).digest()[:8], "big")
    mark = (start + (worker_number(task) or 0) * _STRIDE) % _MARKS
    letters = "".join(_ALPHABET[mark // len(_ALPHABET) ** place % len(_ALPHABET)] for place in range(5))
    return f"{exec_id}-{group}-{letters}"


def _file_name(name: str) -> str:
    """What of a name may be part of the name of a file: letters of any script that this system can write, with their
    marks, digits, and few signs."""
    text = name.encode(sys.getfilesystemencoding(), "replace").decode(sys.getfilesystemencoding())
    safe = "".join(
        sign if sign.isalnum() or sign in "._-" or unicodedata.category(sign).startswith("M") else " " for sign in text
    )
    return "-".join(safe.split()).encode()[:_LONGEST_NAME].decode(errors="ignore") or "data"


@dataclass(frozen=True)
class HomePaths:
    """The state directory of one backend."""

    home: Path
    data_fs: Path
    result_fs: Path

    @property
    def database(self) -> Path:
        return self.home / "backend.db"

    @property
    def log(self) -> Path:
        return self.home / "backend.log"

    @property
    def audit(self) -> Path:
        """Who changed what; older files have a number behind it."""
        return self.home / "audit.log"

    @property
    def lock(self) -> Path:
        """Held with flock by the one server of this home."""
        return self.home / "backend.lock"

    @property
    def served(self) -> Path:
        """With which settings the server that runs, or was the last to, was started."""
        return self.home / SERVED_FILE

    @property
    def restoring(self) -> Path:
        """There while a backup is put in place: what the home holds then is neither the old nor the new."""
        return self.home / "restoring"

    @property
    def keys(self) -> Path:
        """The private keys that sign tokens."""
        return self.home / "keys"

    @property
    def vault(self) -> Path:
        """The keys that seal secrets."""
        return self.home / "vault" / "secrets.key"

    @property
    def tls(self) -> Path:
        """Keys and certificates of `--tls-self-signed`."""
        return self.home / "tls"

    @property
    def jobs(self) -> Path:
        return self.home / "jobs"

    @property
    def nudges(self) -> Path:
        """FIFO through which runners wake the server."""
        return self.home / "runners.fifo"

    @property
    def incoming(self) -> Path:
        """Uploads in progress; whatever lies here when a server starts is a leftover."""
        return self.home / "incoming"

    @property
    def forwarding(self) -> Path:
        """Which execs have metrics to forward, and where to (0600; tokens and passwords are sealed)."""
        return self.home / "forwarding"

    def order(self, exec_id: str) -> Path:
        """What is to be forwarded of one exec."""
        return self.forwarding / f"{exec_id}.json"

    def forwarded(self, exec_id: str, kind: str) -> Path:
        """Up to where its metrics have been sent to the target of a kind."""
        return self.forwarding / f"{exec_id}.{kind}.json"

    @property
    def volumes(self) -> Path:
        """Named storage volumes, unless the settings say another place: a directory, or a link to one, per volume."""
        return self.home / "volumes"

    @property
    def volume_users(self) -> Path:
        """Who may use the volumes that are not for everybody."""
        return self.home / "volumes.json"

    @property
    def cache(self) -> Path:
        """Data that was fetched for jobs, unless the settings say another place."""
        return self.home / "cache"

    @property
    def fabric_home(self) -> Path:
        """FABRIC_HOME of jobs: holds libs/fabric.zip and tools/dli_utils."""
        return self.home / "fabric"

    def job(self, exec_id: str, user: str) -> ExecPaths:
        """Paths of one exec."""
        return ExecPaths(self.jobs / exec_id, self.result_fs / user / "batchworkdir" / exec_id, exec_id)


@dataclass(frozen=True)
class ExecPaths:
    """Files of one exec: `state` is the backend's, `root` is the user's RESULT_DIR."""

    state: Path
    root: Path
    exec_id: str

    def opened(self, path: Path) -> BinaryIO | None:
        """One of its files, to read; None when it is not there or its program has put something else in its place."""
        return open_regular(path, (self.root if path.is_relative_to(self.root) else self.state).parent)

    # --- the backend's own files, below DLICMD_HOME/jobs/<id>
    @property
    def spec(self) -> Path:
        """Launch description (0600)."""
        return self.state / "job.json"

    @property
    def submitted_names(self) -> Path:
        """Which files were submitted: their program may add others to them."""
        return self.state / "submitted.json"

    @property
    def attempt(self) -> Path:
        """Fencing token: the number of the attempt that may run."""
        return self.state / "attempt"

    @property
    def lock(self) -> Path:
        """Held with flock by the runner for as long as it lives."""
        return self.state / "runner.lock"

    @property
    def runner(self) -> Path:
        """Who runs this exec: pid, start time of the process, boot id, attempt."""
        return self.state / "runner.json"

    @property
    def exit(self) -> Path:
        """How the attempt ended; written once, last."""
        return self.state / "exit.json"

    @property
    def allocation(self) -> Path:
        """The slots that a running elastic job has now; written by the server."""
        return self.state / "allocation.json"

    @property
    def report(self) -> Path:
        """What the runner of an elastic job holds and does; written by the runner."""
        return self.state / "report.json"

    @property
    def progress(self) -> Path:
        return self.state / "progress.json"

    @property
    def data(self) -> Path:
        """What was fetched for the job: a folder for each data source, and the list of all."""
        return self.state / "data"

    def data_folder(self, number: int, name: str) -> Path:
        """Where the program finds data source `number` (from 1), when it is not mounted."""
        return self.data / f"{number}-{_file_name(name)}"

    @property
    def data_sources(self) -> Path:
        """The list of the data sources, for the program."""
        return self.data / "sources.json"

    @property
    def fetching(self) -> Path:
        """What is to be fetched for the job, and how far that is: files of the fetcher."""
        return self.state / "fetch"

    @property
    def fetch_order(self) -> Path:
        return self.fetching / "order.json"

    @property
    def fetch_lock(self) -> Path:
        """Held with flock by the fetcher for as long as it lives."""
        return self.fetching / "lock"

    @property
    def fetch_progress(self) -> Path:
        return self.fetching / "progress.json"

    @property
    def fetch_outcome(self) -> Path:
        """How it came out, or what is done so far."""
        return self.fetching / "outcome.json"

    @property
    def launcher_log(self) -> Path:
        return self.state / "launcher.log"

    @property
    def captures(self) -> Path:
        """What processes wrote to their own stdout and stderr."""
        return self.state / "logs"

    # --- the user's tree, RESULT_DIR
    @property
    def submitted(self) -> Path:
        return self.root / "_submitted_code"

    def code(self, spec: JobSpec) -> Path:
        """Working directory of the program: the uploaded folder, or where the single file lies."""
        return self.submitted / spec.model_dir if spec.model_dir else self.submitted

    @property
    def model(self) -> Path:
        """SAVED_MODEL_DIR: what --exec-trainresult zips."""
        return self.root / "model"

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoint"

    @property
    def logs(self) -> Path:
        return self.root / "log"

    def log_dir(self, task: str) -> Path:
        """LOG_DIR of one process: `log/app.<appId>-task12n-<5 characters>`."""
        return self.logs / f"app.{pod_name(self.exec_id, task)}"

    def data_folders(self, spec: JobSpec) -> list[str]:
        """Where the program finds its data, in the order of the submission; the first one is DATA_DIR."""
        if not spec.sources:
            return [spec.data_dir]
        return [str(self.data_folder(number, source.name)) if source.fetched else source.path
                for number, source in enumerate(spec.sources, 1)]

    def capture(self, task: str, stream: str, elastic: bool) -> Path:
        """Where `stream` (stdout, stderr) of a process goes.

        Elastic programs write LOG_DIR/stdout themselves (ELog), and scripts parse it: theirs is captured elsewhere.
        For all others LOG_DIR/stdout *is* the program's standard output.
        """
        return self.captures / f"{task}.{stream}" if elastic else self.log_dir(task) / stream
