"""All file names of the backend and of an exec. No other module builds them."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tempfile
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, ClassVar

from dlicmd.contract.home import LOCK_FILE, SERVED_FILE, STAGING
from local_backend.files import open_regular
from local_backend.workload import Workload

#: Name of the file with the hyper-parameters of an experiment, in the working directory of its program.
CONFIG = "config.json"
#: Name of the driver task of an elastic job; workers are task12n-1, task12n-2, ... as in the contract's task groups.
DRIVER = "task0"
_GROUP = "task12n"
_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"
_MARKS = len(_ALPHABET) ** 5
#: Coprime to _MARKS, so that its multiples modulo _MARKS are all different.
_STRIDE = 23_456_789
#: Maximum bytes of a user-given name within a file name: systems allow 255, and the file name has other parts.
_LONGEST_NAME = 200
#: Maximum bytes of the path of a folder with sockets.
_LONGEST_SOCKETS = 80


def worker_task(number: int) -> str:
    """Return the name of worker `number` (1-based)."""
    return f"{_GROUP}-{number}"


def worker_number(task: str) -> int | None:
    """Return the number in a worker's name (inverse of `worker_task`); None if the name is not a worker's."""
    group, _, number = task.partition("-")
    return int(number) if group == _GROUP and re.fullmatch("[1-9][0-9]{0,8}", number) else None


def pod_name(exec_id: str, task: str) -> str:
    """Return the name of a process on the wire and in its LOG_DIR: `<appId>-task12n-<5 characters>`.

    The characters look random, but no two workers of an exec share them, however many workers there are.
    """
    group = task.partition("-")[0]
    start = int.from_bytes(hashlib.sha256(f"{exec_id} {group}".encode()).digest()[:8], "big")
    mark = (start + (worker_number(task) or 0) * _STRIDE) % _MARKS
    letters = "".join(_ALPHABET[mark // len(_ALPHABET) ** place % len(_ALPHABET)] for place in range(5))
    return f"{exec_id}-{group}-{letters}"


def _file_name(name: str) -> str:
    """Return the part of a name that a file name may contain: letters of any script that this system can encode, with
    their combining marks, digits, and `.`, `_` and `-`."""
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
        """Audit log: which user changed which object. Older files have a number suffix."""
        return self.home / "audit.log"

    @property
    def refused_logons(self) -> Path:
        """Log of refused logons, with one line per interval for each account and address."""
        return self.home / "refused-logons.log"

    @property
    def refused_calls(self) -> Path:
        """Refused calls of users, counted, beyond those in `audit`."""
        return self.home / "refused-calls.log"

    @property
    def lock(self) -> Path:
        """Lock file that the only server of this home holds with flock."""
        return self.home / LOCK_FILE

    @property
    def served(self) -> Path:
        """Settings that the running server, or else the last server, was started with."""
        return self.home / SERVED_FILE

    @property
    def restoring(self) -> Path:
        """Marker that exists while a backup is being restored. The home then holds neither the old nor the new
        state."""
        return self.home / "restoring"

    @property
    def backed_up(self) -> Path:
        """When the last backup was made, and its file."""
        return self.home / "backup.json"

    @property
    def before_upgrade(self) -> Path:
        """Copies of the database from before its migrations."""
        return self.home / "before-upgrade"

    @property
    def keys(self) -> Path:
        """Private keys that sign tokens."""
        return self.home / "keys"

    @property
    def vault(self) -> Path:
        """Keys that seal secrets."""
        return self.home / "vault" / "secrets.key"

    @property
    def tls(self) -> Path:
        """Keys and certificates of `--tls-self-signed`."""
        return self.home / "tls"

    @property
    def tls_server(self) -> Path:
        """The server's own certificate and its key; see serving/self_signed.py."""
        return self.tls / "server.pem"

    @property
    def jobs(self) -> Path:
        return self.home / "jobs"

    @property
    def bundles(self) -> Path:
        """Submitted code, stored once by its content; see bundles.py."""
        return self.home / "bundles"

    def bundle(self, digest: str) -> Path:
        """Return the folder of one code bundle."""
        return self.bundles / digest

    @property
    def plugins(self) -> Path:
        """The installed search algorithms."""
        return self.home / "plugins"

    def plugin(self, name: str) -> Path:
        """Return the folder of one installed search algorithm."""
        return self.plugins / name

    @property
    def incoming(self) -> Path:
        """Uploads in progress. All files found here at server start are leftovers."""
        return self.home / "incoming"

    @property
    def staging(self) -> Path:
        """Folders that clients of the server's own user copied here; see submit/staged.py."""
        return self.home / STAGING

    @property
    def forwarding(self) -> Path:
        """Execs whose metrics are forwarded, and the targets (0600; tokens and passwords are sealed)."""
        return self.home / "forwarding"

    def order(self, exec_id: str) -> Path:
        """Return the file that says what to forward for one exec."""
        return self.forwarding / f"{exec_id}.json"

    def forwarded(self, exec_id: str, kind: str) -> Path:
        """Return the file that says how far the exec's metrics were sent to its target of this kind."""
        return self.forwarding / f"{exec_id}.{kind}.json"

    @property
    def volumes(self) -> Path:
        """Named storage volumes, unless the settings name another path: one directory, or link to a directory, per
        volume."""
        return self.home / "volumes"

    @property
    def volume_users(self) -> Path:
        """Allowed users of each volume that is not open to everybody."""
        return self.home / "volumes.json"

    @property
    def cache(self) -> Path:
        """Data that was fetched for jobs, unless the settings name another path."""
        return self.home / "cache"

    @property
    def fabric_home(self) -> Path:
        """FABRIC_HOME of jobs: holds libs/fabric.zip and tools/dli_utils."""
        return self.home / "fabric"

    @property
    def program_modules(self) -> Path:
        """Modules at the end of PYTHONPATH of jobs."""
        return self.home / "fabric" / "program"

    @property
    def scripts(self) -> Path:
        """Commands of the server's Python environment, for the Python of a job."""
        return self.home / "scripts"

    def search_log(self, search_id: str) -> Path:
        """Return the log of the plugin that decides about a search."""
        return self.home / "search-logs" / f"{search_id}.log"

    @property
    def users(self) -> Path:
        """Folders of the users: files that the programs of a user keep between jobs, apart from results."""
        return self.home / "users"

    def user(self, name: str) -> Path:
        """Return the folder of one user. It is removed together with the user."""
        return self.users / name

    def user_python(self, name: str, conda_env: str | None = None) -> Path:
        """Return PYTHONUSERBASE of a user's jobs: one for jobs without a conda environment, and one for each conda
        environment, whose packages may be of other versions."""
        if conda_env is None:
            return self.user(name) / "python"
        mark = hashlib.sha256(conda_env.encode(errors="surrogateescape")).hexdigest()[:8]
        return self.user(name) / "conda" / f"{_file_name(Path(conda_env).name)}-{mark}"

    def user_home(self, name: str) -> Path:
        """Return HOME of a user's jobs if the server has no usable HOME."""
        return self.user(name) / "home"

    @property
    def gateway(self) -> Path:
        """Files of the gateway, which takes requests for models."""
        return self.home / "gateway"

    @property
    def gateway_config(self) -> Path:
        """Configuration of the gateway (0600)."""
        return self.gateway / "config.json"

    @property
    def gateway_log(self) -> Path:
        return self.gateway / "gateway.log"

    @property
    def gateway_ports(self) -> Path:
        """The ports that the gateway had last, so that its addresses stay the same."""
        return self.gateway / "ports.json"

    @property
    def gateway_sockets(self) -> Path:
        """Folder of the sockets of the gateway: `control.sock`, `http.sock` and `kernels/kernels.sock`. The path of a
        socket may have 107 bytes, so a home with a long path has the folder elsewhere."""
        if len(os.fsencode(self.gateway)) <= _LONGEST_SOCKETS:
            return self.gateway
        mark = hashlib.sha256(os.fsencode(self.home)).hexdigest()[:16]
        return Path(tempfile.gettempdir(), f"dli-gateway-{mark}")

    def job(self, exec_id: str, user: str) -> ExecPaths:
        """Return the paths of one exec."""
        return ExecPaths(self.jobs / exec_id, self.result_fs / user / "batchworkdir" / exec_id, exec_id)


@dataclass(frozen=True)
class ExecPaths:
    """Files of one exec: `state` is the backend's, `root` is the user's RESULT_DIR."""

    #: Name of SAVED_MODEL_DIR, also in the zip of the result.
    RESULT: ClassVar[str] = "model"

    state: Path
    root: Path
    exec_id: str

    def opened(self, path: Path) -> BinaryIO | None:
        """Open one of the exec's files for reading. Return None if it is missing or the program has replaced it with
        something else."""
        return open_regular(path, (self.root if path.is_relative_to(self.root) else self.state).parent)

    # --- the backend's own files, below DLICMD_HOME/jobs/<id>
    @property
    def spec(self) -> Path:
        """Launch description (0600)."""
        return self.state / "job.json"

    @property
    def attempt(self) -> Path:
        """Fencing token: the number of the attempt that may run."""
        return self.state / "attempt"

    @property
    def lock(self) -> Path:
        """Lock file that the runner holds with flock while it lives."""
        return self.state / "runner.lock"

    @property
    def runner(self) -> Path:
        """Identity of the runner of this exec: pid, start time of the process, boot id, attempt."""
        return self.state / "runner.json"

    @property
    def exit(self) -> Path:
        """Outcome of the attempt; the runner writes it once, as its last file."""
        return self.state / "exit.json"

    @property
    def restarts(self) -> Path:
        """Restarts since the last progress, and the highest step of the exec."""
        return self.state / "restarts.json"

    @property
    def socket(self) -> Path:
        """Socket on which the runner listens for servers that start later."""
        return self.state / "runner.sock"

    @property
    def data(self) -> Path:
        """Data fetched for the job: one folder per data source, and the list of all sources."""
        return self.state / "data"

    def data_folder(self, number: int, name: str) -> Path:
        """Return the folder where the program finds data source `number` (from 1), if the source is not mounted."""
        return self.data / f"{number}-{_file_name(name)}"

    @property
    def data_sources(self) -> Path:
        """List of the data sources, for the program."""
        return self.data / "sources.json"

    @property
    def fetching(self) -> Path:
        """Files of the fetcher: its order and its progress."""
        return self.state / "fetch"

    @property
    def fetch_order(self) -> Path:
        return self.fetching / "order.json"

    @property
    def fetch_lock(self) -> Path:
        """Lock file that the fetcher holds with flock while it lives."""
        return self.fetching / "lock"

    @property
    def fetch_progress(self) -> Path:
        return self.fetching / "progress.json"

    @property
    def fetch_outcome(self) -> Path:
        """Outcome of the fetcher, or the part that is done so far."""
        return self.fetching / "outcome.json"

    @property
    def curves(self) -> Path:
        """Curves of the metrics; see curves/file.py."""
        return self.state / "curves.jsonl"

    @property
    def resources(self) -> Path:
        """Curves of the CPU cores and the memory in use; see runtime/metering.py."""
        return self.state / "resources.jsonl"

    @property
    def points(self) -> Path:
        """Folder with all points of long curves; see curves/layout.py."""
        return self.state / "points"

    @property
    def launcher_log(self) -> Path:
        return self.state / "launcher.log"

    @property
    def temporary(self) -> Path:
        """Link to TMPDIR of the attempt. TMPDIR has a short path, because the path of a socket may have 107 bytes."""
        return self.state / "tmp"

    @property
    def captures(self) -> Path:
        """Captured stdout and stderr of processes."""
        return self.state / "logs"

    def output_times(self, task: str, stream: str) -> Path:
        """Return the file with the times at which the output file of a process grew."""
        return self.state / "times" / f"{task}.{stream}"

    # --- the user's tree, RESULT_DIR
    @property
    def submitted(self) -> Path:
        """Working copy of the submitted code; the program may change it."""
        return self.root / "_submitted_code"

    def code(self, spec: Workload) -> Path:
        """Return the working directory of the program: the uploaded folder, or the folder of the single uploaded
        file."""
        return self.submitted / spec.program.model_dir if spec.program.model_dir else self.submitted

    def config(self, spec: Workload) -> Path:
        """Return the file with the hyper-parameters of an experiment."""
        return self.code(spec) / CONFIG

    @property
    def model_description(self) -> Path:
        """What the kernels of a service read about their model."""
        return self.root / "model-description.json"

    @property
    def objective(self) -> Path:
        """Values of metrics that the program of an experiment writes for its search."""
        return self.root / "val_dict_list.json"

    @property
    def model(self) -> Path:
        """SAVED_MODEL_DIR: the folder that --exec-trainresult zips."""
        return self.root / self.RESULT

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoint"

    @property
    def logs(self) -> Path:
        return self.root / "log"

    def log_dir(self, task: str) -> Path:
        """Return the LOG_DIR of one process: `log/app.<appId>-task12n-<5 characters>`."""
        return self.logs / f"app.{pod_name(self.exec_id, task)}"

    def data_folders(self, spec: Workload) -> list[str]:
        """Return the folders where the program finds its data, in submission order; the first one is DATA_DIR."""
        if not spec.data.sources:
            return [spec.data.data_dir]
        return [str(self.data_folder(number, source.name)) if source.fetched else source.path
                for number, source in enumerate(spec.data.sources, 1)]

    def capture(self, task: str, stream: str, elastic: bool) -> Path:
        """Return the file that receives `stream` (stdout, stderr) of a process.

        Elastic programs write LOG_DIR/stdout themselves (ELog), and scripts parse that file. The backend therefore
        captures their streams in another file. For all other programs LOG_DIR/stdout *is* the standard output.
        """
        return self.captures / f"{task}.{stream}" if elastic else self.log_dir(task) / stream
