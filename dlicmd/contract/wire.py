"""Paths, header names and field names of the REST contract."""

from __future__ import annotations

from urllib.parse import quote

BASE = "/platform/rest/deeplearning/v1"
LOGON = "/auth/v1/logon"
LOGOFF = "/auth/v1/logoff"
#: Returns the user of a token, in the format of the platform around the recorded server.
VALIDATE = "/v1/preauth/validateAuth"
#: Exchanges a token of an OIDC issuer for a token of this server. GET says which issuer.
OIDC = "/auth/v1/oidc"
#: Makes a one-time link that opens the console, logged on.
LINK = "/auth/v1/link"
CONF = BASE + "/conf"
STATUS = BASE + "/status"
EXECS = BASE + "/execs"
FRAMEWORKS = BASE + "/execs/frameworks"
#: Checks a command line before a submission.
CHECK = EXECS + "/check"
LABELS = EXECS + "/labels"
VIEWS = EXECS + "/views"
#: Names a request in the logs of both sides. If the client sends none, the server generates one.
REQUEST_ID = "X-Request-ID"
#: The number of items that a list without its limit would have.
TOTAL = "X-Total-Count"
#: The stable code of an error, such as exec.not_found.
ERROR_CODE = "X-DLI-Error-Code"
#: For monitoring: whether the server is alive, whether it can work, and its counters.
HEALTH, READY, METRICS = "/healthz", "/readyz", "/metrics"
ENGINE_APPLICATIONS = BASE + "/scheduler/engine/applications"
APPLICATIONS = BASE + "/scheduler/applications"
#: Stops several applications in one call.
STOP_MANY = APPLICATIONS + "/stop"
KUBERNETES_OBJECTS = BASE + "/scheduler/kubernetesobjects"
PLAN_TREE = BASE + "/resplans/resplantree"
PLAN = BASE + "/resplans/resplan"
#: Our own: slots that are due to plans and users, and a change of the plans before it is made.
PLAN_SHARES = BASE + "/resplans/shares"
PLAN_PREVIEW = BASE + "/resplans/preview"
#: Our own: the audit log, and what the checks of the server find.
AUDIT = BASE + "/audit"
DOCTOR = BASE + "/doctor"
SLOTS_VIEW = BASE + "/scheduler/slots"
HOLDINGS = BASE + "/scheduler/holdings"
SEARCHES = BASE + "/hypersearch"
ALGORITHMS = SEARCHES + "/algorithm"
ALGORITHM_INSTALL = ALGORITHMS + "/install"
USERS = BASE + "/users"
TOKENS = BASE + "/tokens"
DATA_PREVIEW = BASE + "/data/preview"
CONNECTIONS = BASE + "/connections"
#: Objects of the experiment builder, which teams share.
DEFINITIONS, HARDWARE, PLANS_OF_EXPERIMENTS = BASE + "/definitions", BASE + "/hardware", BASE + "/experiments"
#: Our own: kinds of connections with their fields; volumes; folders and files of data.
CONNECTION_KINDS = BASE + "/connection-kinds"
VOLUMES = BASE + "/volumes"
DATA_FILES, DATA_FILE = BASE + "/data/files", BASE + "/data/file"


def exec_path(exec_id: str, action: str = "") -> str:
    """Return the path of one exec, or of one of its actions, such as `stop`."""
    return f"{EXECS}/{quote(exec_id, safe='')}" + (f"/{action}" if action else "")


def task_log_path(app_id: str, task: str, log: str) -> str:
    """Return the path of a scheduler log: `task` is `driver` or `executor/<n>` (1-based), `log` is stdout, stderr or
    launcherlog."""
    return f"{APPLICATIONS}/{quote(app_id, safe='')}/{task}/logs/{log}"


def application_path(app_id: str) -> str:
    """Return the path of one application of the scheduler's engine."""
    return f"{ENGINE_APPLICATIONS}/{quote(app_id, safe='')}"


def application_stop_path(app_id: str) -> str:
    """Return the path that stops an application."""
    return f"{APPLICATIONS}/{quote(app_id, safe='')}/stop"


def plan_path(name: str) -> str:
    """Return the path of one resource plan. The name of a plan is its own path."""
    return f"{PLAN}/{quote(name.strip('/'), safe='/')}"


def team_path(top: str, name: str, action: str = "") -> str:
    """Return the path of a model definition, hardware specification or experiment, or of a part of it. `top` is one of
    DEFINITIONS, HARDWARE, PLANS_OF_EXPERIMENTS; `name` is NAME or OWNER/NAME."""
    return f"{top}/{quote(name.strip('/'), safe='/')}" + (f"/{action}" if action else "")


def search_path(name: str, action: str = "") -> str:
    """Return the path of one search for hyper-parameters, or of an action on it."""
    return f"{SEARCHES}/{quote(name, safe='')}" + (f"/{action}" if action else "")


def view_path(name: str) -> str:
    """Return the path of a saved view."""
    return f"{VIEWS}/{quote(name, safe='')}"


def search_query(name: str) -> str:
    """Return the query that selects the execs of a search. Servers without searches ignore it."""
    return f"{SEARCH}={quote(name, safe='')}"


def algorithm_path(name: str) -> str:
    """Return the path of one algorithm that searches for hyper-parameters."""
    return f"{ALGORITHMS}/{quote(name, safe='')}"


def user_path(name: str, action: str = "") -> str:
    """Return the path of one user, or of that user's `password`."""
    return f"{USERS}/{quote(name, safe='')}" + (f"/{action}" if action else "")


def connection_path(name: str, action: str = "") -> str:
    """Return the path of one connection by its name or id, or of its `test`."""
    return f"{CONNECTIONS}/{quote(name, safe='')}" + (f"/{action}" if action else "")


# Keys of GET /conf
MSD_ENABLED = "MSD_ENABLED"
#: Comma-separated names of the extensions that a server offers beyond the recorded contract; absent from other servers.
EXTENSIONS = "DLICMD_EXTENSIONS"
#: The `data` part may carry `argv`, the exact words of the command line, so that quoting survives.
EXT_ARGV = "argv"
#: GET /execs/{id}/follow returns the exec, new output and a cursor in one call (long poll).
EXT_FOLLOW = "follow"
#: PUT /execs/{id}/slots changes the number of slots of a running elastic exec.
EXT_SLOTS = "slots"
#: GET /execs/{id}/why returns the resources that a pending exec lacks, the execs that hold them, and advice.
EXT_WHY = "why"
#: GET /scheduler/slots returns the slots, their holders, and the running and pending execs in one call.
EXT_SLOT_VIEW = "slot-view"
#: GET /scheduler/holdings sums up how long slots were held, `by` consumer, user, exec or slot.
EXT_HOLDINGS = "holdings"
#: `data_path` in --cs-datastore-meta and `paths` of type fs may be absolute: the server reads this machine's files
#: as the submitting user.
EXT_LOCAL_PATHS = "local-paths"
#: `--create-data-path` in the command line: the server creates missing data paths below DLI_DATA_FS.
EXT_CREATE = "create-data-path"
#: `--allow-cpu` in the command line: a job that asks for GPUs may run on CPU slots.
EXT_ALLOW_CPU = "allow-cpu"
#: `stagedFolder` in the `data` part: the server takes over a folder that its own user has copied into its home.
EXT_STAGED = "staged-folder"
#: POST /execs/check returns the refusal of a submission before its files are sent.
EXT_CHECK = "check"
#: A POST /execs with a known key returns the exec that the first such request created.
EXT_IDEMPOTENCY = "idempotency-key"
#: /connections: servers with data, to which data sources refer.
EXT_CONNECTIONS = "connections"
#: POST /data/preview returns the contents of data sources before a submission.
EXT_DATA_PREVIEW = "data-preview"
#: POST /data/files stores files in a volume or in DLI_DATA_FS.
EXT_DATA_UPLOAD = "data-upload"
#: POST /scheduler/applications/stop stops many applications in one call.
EXT_STOP_MANY = "stop-many"
#: GET /execs/{id}/metrics returns the lines of evaluation-metrics.txt.
EXT_METRICS = "metrics"
#: GET /hypersearch/{name}/experiments, /hypersearch/{name}/experiments/{id}/values and /hypersearch/{name}/importances;
#: GET /execs?search=NAME; the local backend runs searches.
EXT_SEARCHES = "searches"
#: GET /execs/{id}/curves returns the metrics of any program as curves.
EXT_CURVES = "curves"
#: GET /execs/{id}/resources returns the CPU cores, the memory and the GPUs in use as curves.
EXT_RESOURCES = "resources"
#: GET /execs/{id}/code returns the submitted files.
EXT_CODE = "code"
#: GET /execs/{id}/files lists the files that the program wrote, and GET /execs/{id}/files/content returns one of them.
EXT_FILES = "files"
#: GET /execs/{id}/lines returns lines of the output: the last ones, those since a time, or those of one worker.
EXT_LINES = "log-lines"
#: POST /execs/{id}/verify runs the first steps of an exec again, with two numbers of workers, and compares the results.
EXT_VERIFY = "verify"
#: POST /execs/{id}/again submits an exec once more, perhaps with another name, number of workers, or other arguments.
EXT_AGAIN = "again"
#: /dlim/v1: revisions, traffic, sharing, logs and the store of models; POST /execs/{id}/deploy.
EXT_MODELS = "models"
#: /definitions, /hardware, /experiments: model definitions, hardware specifications and experiments, kept for a team.
EXT_EXPERIMENTS = "experiments"
#: POST /execs/labels changes notes, tags and favorites of execs, and GET /execs/labels lists the tags; `find` and
#: `offset` in the query of GET /execs.
EXT_LABELS = "labels"
#: /execs/views: what lists of execs show, under a name, for each user.
EXT_VIEWS = "views"
#: The extensions that matter for a submission to the local backend, while it does not run and cannot be asked.
EMBEDDED_EXTENSIONS = frozenset({
    EXT_ARGV, EXT_CREATE, EXT_ALLOW_CPU, EXT_LOCAL_PATHS, EXT_STAGED, EXT_IDEMPOTENCY,
})

# Keys of GET /status, beyond the recorded contract
EMBEDDED = "embedded"  # bool: the server has one user, who may use all paths of the machine
STOP_GRACE = "stopGrace"  # seconds between SIGTERM and SIGKILL of a stopped job

# Keys of the logon answer
ACCESS_TOKEN = "accessToken"
USERNAME = "username"

# Keys of the answer to GET /auth/v1/oidc, and of the body of POST
ISSUER = "issuer"
CLIENT_ID = "clientId"
SCOPES = "scopes"  # separated by spaces
OIDC_TOKEN = "token"
NONCE = "nonce"

# Keys of a user, and of the body that creates or changes one
NAME = "name"
ROLE = "role"  # user or admin
CREATED = "created"  # ISO-8601, Z
SUBJECT = "subject"  # the account of an OIDC issuer that logs on as this user
PASSWORD = "password"
OLD_PASSWORD = "oldPassword"

# Keys of a token for a program, beside `id`, `name`, `user` and `created`, and of the body that makes one. Only the
# answer to this body contains the token
SCOPE = "scope"  # read, submit, admin or inference
EXPIRES = "expires"  # ISO-8601, Z
EXPIRES_IN = "expiresIn"  # int, seconds
TOKEN = "token"

# Keys of a connection, beside `id`, `name` and `created`, and of the body that creates one. Secret `values` are never
# shown. `secrets` says where each is stored: "sealed", "env:NAME" or "keyring:SERVICE/USER"
TYPE = "type"
OWNER = "owner"
VALUES = "values"
SECRETS = "secrets"
SHARED_WITH = "sharedWith"  # list of users, or "everybody"
REPLACE = "replace"  # bool: replace the connection of that name
FROM_FILE = "fromFile"  # bool: from the file of --connections, which only the operator of the server changes
TEST = "test"
OK = "ok"  # bool: the test or the action succeeded; otherwise `message` says why not
EVERYBODY = "everybody"

# Key of the answer to POST /execs alone: a text that the submitter should know
WARNING = "warning"

# Multipart parts, keys and headers of POST /execs
KEY_HEADER = "Idempotency-Key"
#: A preference (RFC 7240): the server refuses what it cannot run. Without it, the server answers as the recorded one.
PREFER, STRICT = "Prefer", "handling=strict"
#: A preference for GET /execs and GET /execs/{id}: with ARGUMENTS, values and labels, which are not scalars. The
#: recorded clients expect scalars.
DETAILS = "details"
PART_FILE = "file"
PART_DATA = "data"
ARGS = "args"
ARGV = "argv"
DATA_SOURCE = "dataSource"
HARDWARE_SPEC = "hardwareSpec"
STAGED_FOLDER = "stagedFolder"
ARCHIVE_SUFFIX = ".modelDir.tar"

# Keys of a framework, beside `name`
FRAMEWORK_VERSION = "frameworkVersion"
DESC = "desc"  # list of lines

# Keys of an exec object
ID = "id"
APP_ID = "appId"
SUBMISSION_ID = "submissionId"
STATE = "state"
CREATOR = "creator"
WORK_FOLDER = "workDir"  # the folder of the submitted program on the server
APP_NAME = "appName"
FRAMEWORK = "framework"
ELASTIC = "elastic"
NUM_WORKER = "numWorker"
CREATE_TIME = "createTime"
# Keys beyond the recorded ones, present when known; scalars, like all the others.
START_TIME = "startTime"  # ISO-8601, Z
END_TIME = "endTime"  # ISO-8601, Z
MESSAGE = "message"  # one line: why the exec ended ERROR, what it waits for, or what its program reports
REASON = "reason"  # a stable code for `message`, see below
QUEUE_POSITION = "queuePosition"  # int, from 1: position of a pending exec in its queue
EXPECTED_START = "expectedStart"  # ISO-8601, Z: the earliest possible start, when known
EXIT_CODE = "exitCode"  # int, the program's own
HAS_RESULT = "hasResult"  # bool, once the exec has ended: whether there is a result to fetch
SLOTS = "slots"  # int, slots that a running exec holds now
FIXED_SLOTS = "fixedSlots"  # int, slots that an administrator has fixed; absent when the scheduler decides
RECOVERING = "recovering"  # true while the driver or all workers have died and new ones are being started
WORKERS = "workers"  # int, workers that train now
EPOCH = "epoch"  # int, 1-based
EPOCHS = "epochs"
STEP = "step"  # int, committed optimizer steps over the whole job
STEPS = "steps"
LOSS = "loss"
ACCURACY = "accuracy"
SAMPLES_PER_SECOND = "samplesPerSecond"
SECONDS_LEFT = "secondsLeft"
GENERATION = "generation"  # int, number of the current membership
RESIZES = "resizes"  # int, number of intended changes of the membership
DEATHS = "deaths"  # int, workers that died without ending the job
WANTED = "wanted"  # int, kernels that a service can use now
READY_KERNELS = "ready"  # int, kernels of a service that take requests now

# Labels of an exec, for clients that prefer DETAILS, and keys of POST /execs/labels, beside `ids` and `remove`
TAGS = "tags"  # list of words
NOTE = "note"
FAVORITE = "favorite"  # bool: of the calling user
ADD, REMOVE = "add", "remove"  # lists of tags
COUNT = "count"  # of GET /execs/labels: the execs with this `tag`
TAG = "tag"

# Keys of an exec for clients that prefer DETAILS, and of the follow answer
ARGUMENTS = "arguments"  # list of the words of the program, with secrets masked
LAST_METRICS = "lastMetrics"  # name → {value, step, stepUnit, steps, left}: last values of main metrics, losses first
ALL_METRICS = "metrics"  # name → number: their last values
PARAMETERS = "parameters"  # name → number, text or true: options of the program without dashes

# Keys of a driver's progress report that are not shown. `pause` is the cost of the last resize and `stepSeconds` the
# time of a step, in seconds. `usable` is the number of workers that the driver can use.
PAUSE = "pause"
STEP_SECONDS = "stepSeconds"
USABLE = "usable"

# Values of `reason`
NEVER_SCHEDULABLE = "NEVER_SCHEDULABLE"
OUT_OF_MEMORY = "OUT_OF_MEMORY"
PENDING_TIMEOUT = "PENDING_TIMEOUT"
LOST = "LOST"
DATA = "DATA"  # also of a pending exec: the server fetches its data
PROGRAM_FAILED = "PROGRAM_FAILED"
UNSUPPORTED = "UNSUPPORTED"  # the server cannot run a framework or model that it lists
STOPPED = "STOPPED"

# Keys of PUT /execs/{id}/slots: `slots` in the body; in the answer `slots`, and `before` for the previous value
BEFORE = "before"

# Keys of the follow answer
EXEC = "exec"
LINES = "lines"  # list of {task, stream, text}; text without the newline
EVENTS = "events"  # list of {id, time, kind} with further keys that depend on the kind
TIME = "time"  # epoch seconds
CURSOR = "cursor"  # opaque; send it back as ?cursor=
TASK = "task"
STREAM = "stream"
TEXT = "text"

# Keys of POST /scheduler/applications/stop: `ids` in the body. The answer is a list of {id, stopped, state, message}
# in the same order. There is no state if no application has this id
IDS = "ids"
STOPPED_NOW = "stopped"  # bool: the application was active and will be stopped
MOST_IDS = 10_000  # the most in one call

# Keys of GET /execs/{id}/why, beside those of an exec
ADVICE = "advice"  # "wait", "change" the submission, or "ask" an administrator
STARTS = "starts"  # in words: the event that would start the exec
HOLDERS = "holders"  # the execs that hold slots, each with `id`, `slots`, `elastic`, `priority`
PRIORITY = "priority"
GIVES = "gives"  # of a holder: slots that it can give to others while it runs
SHARES = "shares"  # of a holder: whether other execs use its slots, too
SERVED_MODEL = "model"  # of a holder: the model that it serves, or null

# Keys of GET /execs/{id}/curves and /resources: `curves` is a list of {name, source, unit, stepUnit, points, left}. A
# point is [step, value, epoch seconds or null]. `metric` in the query names curves, and `since` is the `cursor` of an
# earlier answer
CURVES = "curves"
SOURCE = "source"
UNIT = "unit"  # of the values, "" if unknown
STEP_UNIT = "stepUnit"  # step, epoch, batch, second, or line: the values are counted, because the program named no step
POINTS = "points"
LEFT = "left"  # int, number of values that are not finite, and so left out; absent if there are none
WHOLE = "whole"  # bool: the answer has all points, not only those since the cursor
METRIC = "metric"
SINCE = "since"
VALUE = "value"

# Keys of GET /execs/{id}/code: `files` is a list of {path, bytes, sha256, text}, the last two if available. `complete`
# is false if the exec has more files than the list
CODE = "code"
FILES = "files"
COMPLETE = "complete"  # bool
VOLUME = "volume"
PATH = "path"  # relative to the folder that the program runs in
BYTES = "bytes"  # int
SHA256 = "sha256"  # hexadecimal

# Keys of GET /execs/{id}/files, which also has `files` and `complete`. Its files have `path` and `bytes`, too
MODIFIED = "modified"  # ISO-8601 with microseconds, Z
WHERE = "where"  # "result": below RESULT_DIR; "code": below the folder that the program runs in
CONTENT = "content"

# Keys of the query of GET /execs/{id}/lines, beside `cursor` and `since`, which is ISO-8601 or epoch seconds
TAIL = "tail"  # the number of last lines
WORKER = "worker"  # a worker from 1; 0: the driver
GREP = "grep"  # a text that the lines contain; repeatable: one of the texts
TIMESTAMPS = "timestamps"  # true: each line begins with its time, task and stream
#: Header of this answer: the cursor after its last line.
CURSOR_HEADER = "X-DLI-Cursor"

#: Value of `sort` of GET /scheduler/engine/applications.
NEWEST_FIRST = "-submit_time"

# Keys of GET /scheduler/slots, beside those of an exec. `slots` is a list there, of {id, kind, profile, state, reason,
# utilisation, holders}. Its holders are {id, user, consumer, share}
KIND = "kind"  # gpu or cpu
PROFILE = "profile"  # of a part of a GPU; "" for a whole one
UTILISATION = "utilisation"  # 0 to 1, absent when unknown
USER = "user"
CONSUMER = "consumer"
SHARE = "share"  # 0 to 1
QUEUE = "queue"  # list of the pending execs
RUNNING = "running"  # list of the running execs

# Keys of an application of the engine, beside those of an exec
SUBMIT_USER = "submit_user"
TASK12N_NUM = "task12n_num"  # requested workers
PACK_ID = "pack_id"  # the pack of jobs that share a device

# Keys of the plans directly below a resource plan
CHILDREN = "childTreeDto"  # in the tree
PLANS = "plans"  # in our own servers' answer about one plan

# Keys of a model definition, a hardware specification and an experiment, beside `name`, `owner`, `created` and
# `sharedWith`; and of the bodies that save one
DESCRIPTION = "description"
VERSION, VERSIONS = "version", "versions"  # int: this version, and the newest one
COMMAND, PROGRAM = "command", "program"  # execution command, and the file of the code that it runs
CONDA_ENVIRONMENT, ENVIRONMENT = "condaEnv", "environment"
PREDEFINED, USABLE_HERE = "predefined", "usable"  # bool, of a hardware specification
CREATE_DATA_PATH = "createDataPath"  # bool
DEFINITION, DEFINITIONS_OF = "definition", "definitions"
NODES = "nodes"  # single, multi or elastic
MIN_WORKERS, DEVICE, MIG_PROFILE = "minWorkers", "device", "migProfile"
HARDWARE_OF, HARDWARE_VERSION = "hardware", "hardwareVersion"
LAST_RUN = "lastRun"
RUN, PARTS = "run", "parts"

# Keys of a search for hyper-parameters, and of its experiments. Both may have a `message`
SEARCH_NAME = "hpoName"
RESTART, FORCE = "restart", "force"
REMOTE_EXEC = "remoteExec"
METRIC_VAL = "metricVal"
COMPLETE_COUNT, FAILED_COUNT, PROGRESS = "complete", "failed", "progress"
DURATION, CREATED_AT = "duration", "createtime"
BEST = "best"  # the experiment with the best value; absent until one has FINISHED
PARETO = "pareto"  # with several objectives: the ids of the experiments that no other one surpasses
OBJECTIVE = "objective"  # minimize or maximize `metric`
ALGORITHM = "algorithm"
HYPER_PARAMS = "hyperParams"  # of an experiment: a list of {name, dataType, fixedVal}; of a search: the space
DATA_TYPE, FIXED_VAL = "dataType", "fixedVal"
RESOURCE, RUNG = "resource", "rung"  # of an experiment: the resource that it may use so far, and the number of its rung
ALGO_DEF = "algoDef"
#: GET /hypersearch/{name}/importances returns an object whose `importances` are name → share of a parameter in the
#: differences of the values.
IMPORTANCES = "importances"
#: Keys of the `data` part of POST /hypersearch
MODEL_SPEC, HPO_NAME = "modelSpec", "hpoName"
#: Keys of the `data` part of POST /hypersearch/algorithm/install, beside NAME, PATH and REMOTE_EXEC
CONDA_HOME, CONDA_ENV, LOG_LEVEL = "condaHome", "condaEnv", "logLevel"
#: Keys of an exec that is an experiment: the name of its search, and its number there. `search` in a query selects
#: execs
SEARCH, EXPERIMENT = "search", "experiment"
ALGORITHM_KEYS = (NAME, TYPE, REMOTE_EXEC)
SEARCH_KEYS = ("state", "running", "progress", "creator", "createtime", "duration", "complete", "failed")
EXPERIMENTS = "experiments"
#: Value of the query `experiments`: the search without its experiments
NONE = "none"
EXPERIMENT_KEYS = (ID, APP_ID, STATE, METRIC_VAL, START_TIME, END_TIME)

#: Models that serve, by the paths of the console.
EDI_MODELS = BASE + "/edimodels"

#: Legacy paths of searches are below the paths of models.
MODELS = BASE + "/models"

# Keys of POST /execs/{id}/deploy; keys of one word have the name of their option
DEPLOY = "deploy"
DEPLOYMENT_TEXTS = ("name", "runtime", "kernel", "weight", "tag")
ATTRIBUTES = "attributes"
ENVIRONMENTS = "environments"

# Keys of queries for lists of execs and of GET /scheduler/holdings; with `by` holding, its rows are the single holdings
LIMIT = "limit"
OFFSET = "offset"
FIND = "find"
SORT_BY = "sort_by"
ALL = "all"
COLUMNS = "columns"  # of a saved view, beside `name`, FIND, STATE, SORT_BY and ALL
FROM = "from"
TO = "to"
BY = "by"
ROWS = "rows"
KEY = "key"
SLOT_SECONDS = "slotSeconds"
SLOT = "slot"
EXEC_ID = "execId"
HOLDING = "holding"

#: Header of a result and of a file: `sha-256=:<base64>:` (RFC 9530), over the bytes of the zip or of the file.
DIGEST_HEADER = "Repr-Digest"
