"""Paths, keys and sentences of the REST contract of inference (`/dlim/v1`), and of the command line `dlim`.

The sentences are those of the original `dlim`: automation compares whole lines.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import quote

BASE = "/dlim/v1"
#: Exchanges user name and password for tokens; a token of a user for a token that only sends requests.
TOKEN, SERVICE_TOKEN = BASE + "/auth/token", BASE + "/auth/token/inference"
INFERENCE = BASE + "/inference"
DEPLOYMENT = BASE + "/deployment/model"
RUNTIMES = BASE + "/deployment/runtime"
MODELS = BASE + "/model"
EXTENSION = BASE + "/modelextension"
STORE = BASE + "/modelstore"

# Actions on a model, the last part of its path
START, STOP = "operation/start", "operation/stop"
PROMOTE, ROLLBACK = "operation/promote", "operation/rollback"
INSTANCE, PROFILE, README, STREAMING = "instance", "appprofile", "readme", "streaming"
REVISIONS, TRAFFIC, LOGS, SHARED, WHY, LOAD = "revisions", "traffic", "logs", "shared", "why", "load"
#: Actions on a model of the store.
TO_SPACE, DEPLOY = "promote", "deploy"


#: Names of the file with an example of a request in the folder of a model; the first one that exists counts.
EXAMPLE_FILES = ("example.json", "input.json")


def example_file(folder: Path) -> Path:
    """Return the file with the example of a request in the folder of a model. It may be missing."""
    found = [folder / name for name in EXAMPLE_FILES]
    return next((path for path in found if path.is_file()), found[-1])


def model_path(name: str, action: str = "") -> str:
    """Return the path of one model, or of an action on it."""
    return f"{MODELS}/{quote(name, safe='')}" + (f"/{action}" if action else "")


def inference_path(name: str) -> str:
    """Return the path that takes requests for a model."""
    return f"{INFERENCE}/{quote(name, safe='')}"


def deployment_path(name: str = "") -> str:
    """Return the path that takes a new model; with a name, the path that takes a new revision of it."""
    return DEPLOYMENT + (f"/{quote(name, safe='')}" if name else "")


def runtime_path(name: str) -> str:
    """Return the path of one runtime."""
    return f"{RUNTIMES}/{quote(name, safe='')}"


def store_path(name: str, action: str = "") -> str:
    """Return the path of one model of the store, or of an action on it."""
    return f"{STORE}/{quote(name, safe='')}" + (f"/{action}" if action else "")


# Keys of the answer to TOKEN
USER_TOKEN, ACCESS_TOKEN, INFERENCE_TOKEN = "user_token", "access_token", "service_token"

# Keys of a model. Times are epoch seconds, 0: never
NAME, UID, TAG, SIZE, CREATOR = "name", "uid", "tag", "size", "creator"
WEIGHT_PATH, MODEL_PATH, KERNEL_PATH, RUNTIME = "weight_path", "model_path", "kernel_path", "runtime"
CREATE_TIME, UPDATE_TIME, START_TIME = "create_time", "last_updated_time", "started_at"
SERVICE_URI, STREAM_URI = "service_uri", "stream_uri"  # "" while the model is stopped
ATTRIBUTES, ENVIRONMENTS, SCHEMA = "attributes", "mk_environments", "schema_version"
FRAMEWORK, READ_ME = "framework", "readme"
# Keys beyond the recorded ones
STATE, MESSAGE, IS_SHARED = "state", "message", "shared"
#: Keys of a revision, beside `state` and `creator`.
NUMBER, WEIGHT, REVISION_TIME = "number", "weight", "createTime"
EXEC_ID, SOURCE, KERNELS = "execId", "source", "kernels"
#: The list of MODELS, and that of RUNTIMES.
MODEL_LIST, RUNTIME_LIST = "model_list", "runtimes"

# Keys of INSTANCE. Its states
INSTANCES = "instances"
ENABLED, DISABLED, NOT_AVAILABLE = "enabled", "disabled", "not-available"
SERVICE_ID, SERVICE_JOB, GPU_MODE, GPU_PACK = "isd_uid", "pj_jobid", "gpu_mode", "gpu_packid"
CLIENTS, PENDING, REQUEST_RATE, DATA_RATE = "client_number", "pending_tasks", "request_per_sec", "data_size_per_sec"
CONTAINERS = "isd_container"
KERNEL_ID, KERNEL_HOST, KERNEL_STATUS = "container_uid", "container_host", "container_status"
TOTAL, RUNNING, FINISHED, FAILED = "total_task", "running_task", "finished_task", "failed_task"
#: Status of a kernel that waits for requests.
IDLE = "IDLE"

# States of a model
STARTED, STOPPED, STARTING, FAILED_STATE = "Started", "Stopped", "Starting", "Failed"
#: State of INSTANCE → state of the model.
SHOWN_STATE = {ENABLED: STARTED, DISABLED: STOPPED, NOT_AVAILABLE: STARTING}

#: States of a revision whose kernels start, or cannot start.
STARTING_REVISION, FAILED_REVISION = "starting", "failed"

# Keys of a runtime
TYPE, LAUNCHER, CONDA_HOME, CONDA_ENV, DESCRIPTION = "type", "launcher", "conda_home", "conda_env_name", "description"
# Keys of a model of the store
EXEC, PATH, SPACE, VERSION = "exec", "path", "space", "version"
KERNEL_FILE, WEIGHT_FILE, MODEL_CLASS, ERROR = "kernel", "weight", "modelClass", "error"

# Queries and headers
KERNEL_TYPE, REVISION, KERNEL, STREAM, FROM = "kernel_type", "revision", "kernel", "stream", "from"
#: The offset after the last byte of an answer of LOGS.
NEXT_OFFSET = "X-Next-Offset"
#: Seconds for which a request is worth an answer.
REQUEST_TIMEOUT = "Request-Timeout"
STDOUT, STDERR, LAUNCHER_LOG = "stdout", "stderr", "launcherlog"

# Files of a submission
MODEL_JSON, README_FILE = "model.json", "README.md"
#: Keys that model.json must have; `model_path` is set by the server.
REQUIRED = (NAME, TAG, WEIGHT_PATH, RUNTIME, KERNEL_PATH, SCHEMA)
NAME_PATTERN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
LONGEST_NAME = 63
KERNEL_TYPES = ("onnx", "torch", "sklearn", "xgboost", "huggingface")

# Stable codes of the server
NO_SUCH_MODEL, IN_USE = "model.not_found", "model.started"

# Sentences of the original dlim
UPLOADING, REGISTERING = "Uploading...", "Registering..."
UPDATED = "Model is updated successfully"
CANNOT_BE_REMOVED = "The model cannot be removed if it's started."


def usual_name(text: str) -> str:
    """Return a text, such as the name of a folder or a run, as the name of a model; "" if nothing usable is left."""
    return re.sub("[^a-z0-9]+", "-", text.lower()).strip("-")[:LONGEST_NAME].strip("-")


def uploaded(path: str) -> str:
    """Return the line about an uploaded file."""
    return f"<{path}> uploaded to server."


def deployed(name: str) -> str:
    """Return the last line of a deployment."""
    return f"Model <{name}> is deployed successfully"


def exists(name: str) -> str:
    """Return the question before a model is replaced."""
    return f"Model <{name}> already exists on inference service, do you want to update it? (y|n):"


def starting(name: str) -> str:
    """Return the first line of a start."""
    return f'Starting model "{name}", run "dlim model view {name} -s" to ensure startup.'


def stopping(name: str) -> str:
    """Return the first line of a stop."""
    return f'Stopping model "{name}", run "dlim model view {name} -s" to ensure stop.'


def missing(name: str) -> str:
    """Return the line about a model that does not exist."""
    return f"Model <{name}> doesn't exist."


def undeployed(name: str) -> str:
    """Return the line after a model was removed."""
    return f"Model <{name}> is undeployed successfully"


def no_runtime(name: str) -> str:
    """Return the line about a runtime that does not exist."""
    return f"Runtime <{name}> does not exist."
