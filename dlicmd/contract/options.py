"""The one option table. The client's parsing and help, the server's parsing of `args`, and the docs come from it."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Form(Enum):
    """The form of the value of an option; a flag has no value."""

    FLAG = "flag"
    TEXT = "text"
    POSITIVE = "positive integer"
    COUNT = "whole number"
    PORT = "port"
    INTEGER = "integer"
    SIZE = "memory size"
    SECONDS = "seconds"
    DEVICES = "number of devices, or part of one"
    AMOUNT = "amount"


class Travel(Enum):
    """The part of a submission that carries the option."""

    ARGS = "in args"
    CLIENT = "stays with the client"
    DATA = "in the data part"


class Arity(Enum):
    """The number of operands of a command with a metavar."""

    ONE = "one"
    MANY = "one or more"
    TWO = "two"
    OPTIONAL = "one or none"


class Local(Enum):
    """The effect of a submission option on the local backend."""

    ACTS = "takes effect"
    IGNORED = "accepted and ignored"
    REFUSED = "refused"
    CLIENT = "used by the client only"


class Section(Enum):
    """Section of the help."""

    COMMAND = "Commands"
    CONNECTION = "Connection"
    SUBMIT = "Submission"
    RESOURCES = "Resources"
    SCHEDULING = "Scheduling and environment"
    SEARCH = "Searches for hyper-parameters"
    OUTPUT = "Output and waiting"
    DEPLOYMENT = "Deployment, only with --exec-deploy"


class Option(NamedTuple):
    """One option or command. `name` is the canonical spelling, `aliases` are other exact spellings."""

    name: str
    kind: Form
    group: Section
    help: str
    metavar: str = ""
    aliases: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    multiple: bool = False
    hidden: bool = False
    travel: Travel = Travel.ARGS
    local: Local = Local.ACTS
    arity: Arity = Arity.ONE


def _command(
    name: str, text: str, metavar: str = "", *, hidden: bool = False, arity: Arity = Arity.ONE, kind: Form = Form.TEXT,
) -> Option:
    taken = kind if metavar else Form.FLAG
    return Option(name, taken, Section.COMMAND, text, metavar, hidden=hidden, local=Local.CLIENT, arity=arity)


def _client(name: str, kind: Form, group: Section, text: str, metavar: str = "", **more: object) -> Option:
    more.setdefault("local", Local.CLIENT)
    more.setdefault("travel", Travel.CLIENT)
    return Option(name, kind, group, text, metavar, **more)  # type: ignore[arg-type]


def _ignored(name: str, text: str, group: Section, metavar: str = "", kind: Form = Form.TEXT, **more: object) -> Option:
    return Option(name, kind, group, text, metavar, local=Local.IGNORED, **more)  # type: ignore[arg-type]


_C, _S, _R, _E, _O = Section.CONNECTION, Section.SUBMIT, Section.RESOURCES, Section.SCHEDULING, Section.OUTPUT

COMMANDS: tuple[Option, ...] = (
    _command("--help", "show this help"),
    _command("--version", "show the version"),
    _command("--logon", "log on to a remote server and store the token in ~/.dlicmd"),
    _command("--logoff", "delete the token and revoke it on the server", hidden=True),
    _command("--whoami", "show user, role and server"),
    _command("--server", "list the servers that you logged on to, or select the one for verbs: ls, or use NAME",
             "ls|use NAME", arity=Arity.MANY),
    _command("--console", "open the console in the browser and log on"),
    _command("--open", "open the folder with the files of a job of the local backend", "ID"),
    _command("--status", "show the server's status", hidden=True),
    Option("--completion", Form.TEXT, Section.COMMAND, "print the completion script of dlicmd for bash, zsh or fish",
           "SHELL", choices=("bash", "zsh", "fish"), local=Local.CLIENT),
    _command("--config-show", "show connection settings and defaults, with the source of each"),
    _command("--dl-frameworks", "list the frameworks for --exec-start"),
    _command("--exec-start", "submit a model folder", "FRAMEWORK"),
    _command("--data-preview", "preview data: JSON as for --data-source, CONNECTION:PATH, or a path", "SOURCE"),
    _command("--exec-get-all", "list your jobs (see --query-args)"),
    _command("--exec-get", "show one job", "ID"),
    _command("--exec-why", "show why a job is pending, which jobs hold slots, and what you can do", "ID"),
    _command("--exec-diff", "show the differences between 2 jobs", "ID ID", arity=Arity.TWO),
    _command("--exec-plot", "draw the losses of a job as a curve", "ID"),
    _command("--exec-verify", "compute the first steps of a job again with 2 numbers of workers, and compare them "
             "(--steps N, default 20)", "ID"),
    _command("--exec-again", "submit a job again; optional: --appName, --numWorker, --data-source, and after --, other "
             "arguments of the program", "ID"),
    _command("--exec-stop", "stop a job", "ID"),
    _command("--exec-delete", "delete a job and its files", "ID"),
    _command("--exec-resize", "fix the number of slots of a running elastic job, or return to its fair share",
             "ID N|auto", arity=Arity.TWO),
    _command("--exec-deploy", "deploy the trained model: --kernel FILE; optional: --name, --runtime, --weight, "
             "--tag, --attributes, --envs", "ID"),
    _command("--exec-tag", "add tags to a job, or with --remove remove them; without tags, show the labels of the job",
             "ID [TAG...]", hidden=True, arity=Arity.MANY),
    _command("--exec-note", "write a note about a job, or with --remove remove it", "ID [TEXT]", hidden=True,
             arity=Arity.MANY),
    _command("--exec-favorite", "make jobs your favorites; with --remove, remove them from your favorites",
             "ID...", hidden=True, arity=Arity.MANY),
    _command("--exec-delete-all", "delete all your jobs"),
    _command("--exec-launcherlogs", "show the launcher log of a job", "ID"),
    _command("--exec-outlogs", "show the standard output of every process of a job", "ID"),
    _command("--exec-errlogs", "show the standard error of every process of a job", "ID"),
    _command("--exec-trainlogs", "show standard output and standard error of the program", "ID"),
    _command("--exec-trainoutlogs", "show the standard output of the program", "ID"),
    _command("--exec-trainerrlogs", "show the standard error of the program", "ID"),
    _command("--exec-trainresult", "fetch the trained model as a zip", "ID"),
    _command("--app-get-all", "list pending and running jobs, with their resources and why they are pending"),
    _command("--app-history-get-all", "list the jobs that have ended", hidden=True),
    _command("--app-get", "show the scheduler's view of one job", "ID", hidden=True),
    _command("--app-wait", "print the state of a job repeatedly until the job ends", "ID"),
    _command("--app-stop", "stop jobs", "ID...", arity=Arity.MANY),
    _command("--app-stop-all", "stop all jobs that --app-get-all lists", hidden=True),
    _command("--app-analyze", "count the jobs of the last hours (default 2) and their resources", "[HOURS]",
             hidden=True, arity=Arity.OPTIONAL, kind=Form.POSITIVE),
    _command("--app-launcherlogs", "show the launcher log of a job", "ID", hidden=True),
    _command("--app-outlogs", "show the standard output of every process of a job", "ID", hidden=True),
    _command("--app-errlogs", "show the standard error of every process of a job", "ID", hidden=True),
    _command("--top", "watch the slots with holders and utilization, and the pending jobs"),
    _command("--rp-get-all", "show the resource plans with their jobs"),
    _command("--rp-get", "show one resource plan", "NAME"),
    _command("--rp-apply", "replace all resource plans with those in a YAML file", "FILE"),
    _command("--rp-delete", "delete a resource plan", "NAME"),
    _command("--rp-usage", "show used slot-hours (see --query-args)"),
    _command("--pj-get-all", "list the scheduler's parallel jobs and their nodes", hidden=True),
    _command("--k8s-obj-get-all", "show all objects of a type, such as pod", "TYPE", hidden=True),
    _command("--k8s-obj-get", "show one object", "TYPE NAME", hidden=True, arity=Arity.TWO),
    _command("--hpo-start", "start a hyper-parameter search from a JSON or YAML file, or from --hpo-param, with the "
             "model of --model-dir", "[FILE]", hidden=True, arity=Arity.OPTIONAL),
    _command("--hpo-get-all", "list your searches with their experiments (see --query-args)", hidden=True),
    _command("--hpo-get", "show one search", "NAME", hidden=True),
    _command("--hpo-plot", "draw the best value of a search over its experiments", "NAME", hidden=True),
    _command("--hpo-export", "write the experiments of a search to a file that ends with .csv or .parquet", "NAME FILE",
             hidden=True, arity=Arity.TWO),
    _command("--hpo-stop", "stop searches; with --force, kill their experiments", "NAME...", hidden=True,
             arity=Arity.MANY),
    _command("--hpo-restart", "continue a stopped search", "NAME", hidden=True),
    _command("--hpo-delete", "delete searches", "NAME...", hidden=True, arity=Arity.MANY),
    _command("--hpo-delete-all", "delete all your searches", hidden=True),
    _command("--hpo-algorithm-get-all", "list the search algorithms", hidden=True),
    _command("--hpo-algorithm-get", "show one search algorithm", "NAME", hidden=True),
    _command("--hpo-algorithm-install", "install a search algorithm: a folder or a packed file with optimizer.py",
             "PATH", hidden=True),
    _command("--hpo-algorithm-delete", "delete an installed search algorithm", "NAME", hidden=True),
    _command("--definition-get-all", "list the model definitions that you may use", hidden=True),
    _command("--definition-get", "show a model definition (--of-version N: an older version)", "NAME", hidden=True),
    _command("--definition-save", "save the model definition in a JSON or YAML file, with the code of --model-dir, as "
             "a new version", "FILE", hidden=True),
    _command("--definition-delete", "delete a model definition with all versions", "NAME", hidden=True),
    _command("--hardware-get-all", "list the hardware specifications: predefined ones, and those that you may use",
             hidden=True),
    _command("--hardware-get", "show a hardware specification (--of-version N: an older version)", "NAME", hidden=True),
    _command("--hardware-save", "save the hardware specification in a JSON or YAML file as a new version", "FILE",
             hidden=True),
    _command("--hardware-delete", "delete a hardware specification with all versions", "NAME", hidden=True),
    _command("--experiment-get-all", "list the experiments that you may use, with the states of your last runs"),
    _command("--experiment-get", "show an experiment (--of-version N: an older version)", "NAME", hidden=True),
    _command("--experiment-save", "save the experiment in a JSON or YAML file as a new version; with --run, run it",
             "FILE"),
    _command("--experiment-run", "run an experiment: submit a job for each of its model definitions", "NAME"),
    _command("--experiment-runs", "list your last runs of an experiment, with their jobs", "NAME", hidden=True),
    _command("--experiment-delete", "delete an experiment with all versions; its jobs stay", "NAME", hidden=True),
    _command("--demo", "train the sample model on the local backend and follow the job"),
)

#: `--follow ID` and `--wait ID` are commands as the first option, and flags beside another command.
FOLLOW = _client("--follow", Form.FLAG, _O, "follow the job live until it ends; as a command: --follow ID")
WAIT = _client("--wait", Form.FLAG, _O, "wait silently until the job ends; as a command: --wait ID")

#: For --exec-start alone, and not part of the grammar. The words of the file replace the option before the parsing. If
#: the value names no such file, the option goes to the program.
FILE = _client("--file", Form.TEXT, _S, "YAML file with options; only with --exec-start", "FILE",
               aliases=("-f",))

PROFILE = _client("--profile", Form.TEXT, _C, "profile of the configuration file, for values that are not given; "
                  "none: no profile", "NAME")
#: The value of `--profile` for no profile.
NO_PROFILE = "none"
#: For a submission alone: with another command, a user could take that command for harmless.
DRY_RUN = _client("--dry-run", Form.FLAG, _O, "show the request of a submission without sending it; with --rp-apply, "
                  "show which plan, user and job would get which slots")

OPTIONS: tuple[Option, ...] = (
    # Connection
    _client("--rest-host", Form.TEXT, _C, "server to connect to; default: the local backend", "HOST",
            aliases=("--master-host",)),
    _client("--rest-port", Form.PORT, _C, "port of the server", "PORT", aliases=("--dli-rest-port",)),
    _client("--username", Form.TEXT, _C, "user for --logon", "USER"),
    _client("--password", Form.TEXT, _C, "password for --logon; safer: DLICMD_PASSWORD, or the prompt",
            "PASSWORD"),
    _client("--jwt-token", Form.TEXT, _C, "token to use instead of the stored token of --logon; safer: DLICMD_TOKEN",
            "TOKEN"),
    _client("--ca-cert", Form.TEXT, _C, "certificate authority of the server", "FILE"),
    _client("--trust-fingerprint", Form.TEXT, _C, "SHA-256 fingerprint of the server's certificate, or of its "
            "authority, to trust", "SHA256:HEX"),
    _client("--insecure", Form.FLAG, _C, "do not verify the server's certificate"),
    _client("--http", Form.FLAG, _C, "use plain HTTP for --rest-host"),
    _client("--keyring", Form.FLAG, _C, "store the token of --logon in the system keyring, not in ~/.dlicmd"),
    _client("--call-timeout", Form.SECONDS, _C, "seconds that a server may be silent before a call fails; default 60, "
            "more for submissions, previews and results", "SECONDS"),
    PROFILE,
    # Submission
    Option("--model-main", Form.TEXT, _S, "program to run", "FILE"),
    Option("--model-dir", Form.TEXT, _S, "folder to upload", "DIR"),
    Option("--user-cmd", Form.FLAG, _S, "run the command after -- instead of a Python program"),
    Option("--appName", Form.TEXT, _S, "name of the job", "NAME"),
    Option("--cs-datastore-meta", Form.TEXT, _S, "data of the job: type=fs,data_path=PATH", "KEY=VALUE,..."),
    Option("--create-data-path", Form.FLAG, _S, "create data paths below DLI_DATA_FS that do not exist yet; the job "
           "fills them"),
    Option("--data-source", Form.TEXT, _S, "data of the job as a JSON list, see docs/data-sources.md; repeatable",
           "JSON", multiple=True, travel=Travel.DATA),
    Option("--conda-env-name", Form.TEXT, _S, "name or path of the conda environment of the job", "NAME"),
    Option("--conda-home", Form.TEXT, _S, "installation folder of conda", "DIR", hidden=True),
    _ignored("--conda-env-yaml", "conda environment file", _S, "FILE", hidden=True),
    _ignored("--conda-package", "conda package file", _S, "FILE", hidden=True),
    Option("--pbmodel-name", Form.TEXT, _S, "prebuilt model, only on servers that have such models", "NAME",
           local=Local.REFUSED),
    _ignored("--pbmodel-cmd", "command for the prebuilt model", _S, "CMD", hidden=True),
    Option("--submit-user", Form.TEXT, _S, "user that the job counts for", "USER", hidden=True),
    # Resources
    Option("--numWorker", Form.POSITIVE, _R, "number of workers; for elastic frameworks the maximum", "N"),
    Option("--workerDeviceType", Form.TEXT, _R, "device type of a worker", choices=("cpu", "gpu")),
    Option("--workerDeviceNum", Form.DEVICES, _R, "devices per worker; below 1, such as 0.5: part of a shared "
           "device", "N", aliases=("--gpuPerWorker",)),
    Option("--allow-cpu", Form.FLAG, _R, "run on CPU slots if the job asks for GPUs and the server has none"),
    Option("--workerMemory", Form.SIZE, _R, "limit of the resident memory of a worker, for example 8g", "SIZE"),
    Option("--workerCPULimit", Form.AMOUNT, _R, "CPUs of a worker in a pack, for example 0.5", "N"),
    Option("--workerGPULimit", Form.AMOUNT, _R, "part of the pack's GPU for a worker, for example 0.25", "N",
           hidden=True),
    Option("--workerMemoryLimit", Form.SIZE, _R, "limit of the resident memory of a worker in a pack", "SIZE"),
    _ignored("--numPs", "number of parameter servers", _R, "N", Form.INTEGER, hidden=True),
    _ignored("--numDriver", "number of drivers", _R, "N", Form.INTEGER, hidden=True),
    _ignored("--driverDeviceType", "device type of the driver", _R, choices=("cpu", "gpu")),
    _ignored("--driverDeviceNum", "devices of the driver", _R, "N"),
    _ignored("--driverMemory", "memory of the driver; never more than the machine has", _R, "SIZE", Form.SIZE),
    _ignored("--driverCPULimit", "CPU limit of a packed driver", _R, "N"),
    _ignored("--driverGPULimit", "GPU limit of a packed driver", _R, "N", hidden=True),
    _ignored("--driverMemoryLimit", "memory limit of a packed driver; never more than the machine has", _R, "SIZE",
             Form.SIZE),
    # Scheduling and environment
    Option("--msd-env", Form.TEXT, _E, "environment variable of the job; repeatable", "NAME=VALUE", multiple=True),
    Option("--msd-attr", Form.TEXT, _E, "attribute of the job, such as minWorkers=2 of an elastic job; repeatable",
           "NAME=VALUE", multiple=True),
    Option("--msd-pending-timeout", Form.SECONDS, _E, "end the job if it waits longer for slots", "SECONDS"),
    Option("--consumer", Form.TEXT, _E, "resource plan of the job", "PATH"),
    _ignored("--ig", "instance group", _E, "NAME", hidden=True),
    Option("--msd-priority", Form.POSITIVE, _E, "priority of the job; larger is more urgent; default 5000", "N"),
    _ignored("--msd-label", "label; repeatable", _E, "LABEL", multiple=True, hidden=True),
    _ignored("--msd-image-name", "image of the workers", _E, "IMAGE"),
    _ignored("--msd-image-pull-secret", "secret for pulling the image", _E, "NAME"),
    _ignored("--msd-image-pull-policy", "when to pull the image", _E, choices=("Always", "Never", "IfNotPresent")),
    Option("--msd-task0-node-selector", Form.TEXT, _E, "labels that the driver's node must have", "LABEL=VALUE,..."),
    Option("--msd-task12n-node-selector", Form.TEXT, _E, "labels that the workers' nodes must have",
           "LABEL=VALUE,..."),
    _ignored("--lsf-gpu-syntax", "GPU requirement in LSF's syntax", _E, "TEXT"),
    _ignored("--msd-podaffinity-rule", "affinity of the workers: preferred or required", _E, "RULE"),
    _ignored("--msd-podaffinity-topology-key", "topology key of --msd-podaffinity-rule", _E, "KEY"),
    Option("--msd-pack-id", Form.TEXT, _E, "pack of jobs that share 1 device", "ID"),
    _ignored("--sc-runasuser", "user id in the container", _E, "UID", Form.INTEGER, hidden=True),
    _ignored("--sc-runasgroup", "group id in the container", _E, "GID", Form.INTEGER, hidden=True),
    _ignored("--sc-fsgroup", "file system group in the container", _E, "GID", Form.INTEGER, hidden=True),
    Option("--cs-rmq-meta", Form.TEXT, _E, "forward metrics to a RabbitMQ broker: amqps://USER:PASSWORD@HOST/VHOST "
           "with the query ?exchange=NAME&routing_key=KEY, or host=HOST,user=USER,...", "PLACE"),
    Option("--cs-url-meta", Form.TEXT, _E, "forward metrics to a URL with POST", "URL"),
    Option("--cs-url-bearer", Form.TEXT, _E, "bearer token for --cs-url-meta", "TOKEN"),
    # Spellings of the first product generation, from scripts. Consumed here, so that they do not reach the program.
    Option("--edt-options", Form.TEXT, _R, "maxWorkers=N: the maximum number of elastic workers", "KEY=VALUE",
           hidden=True),
    _ignored("--python-version", "Python version of the job", _S, "VERSION", hidden=True),
    _ignored("--exclusive", "do not share devices", _E, kind=Form.FLAG, hidden=True),
    _ignored("--accelerators", "accelerators per node", _R, "N", hidden=True),
    _ignored("--mpiarg", "argument for mpirun", _E, "ARG", hidden=True),
    _ignored("--msd-task12n-device-type", "device type of a worker", _R, "TYPE", hidden=True),
    # Output and waiting
    DRY_RUN,
    _client("--output", Form.TEXT, _O, "table, json, jsonl (1 object per line), yaml or custom-columns=COLUMN,...",
            "FORMAT", aliases=("-o",)),
    _client("--query-args", Form.TEXT, _O, "filter of --exec-get-all: limit=10&state=FINISHED&sort_by=id:desc; "
            "of --rp-usage: from=2026-01-01&to=2026-02-01&by=user (or consumer, exec, slot, holding)", "QUERY"),
    _client("--app-search-start", Form.COUNT, _O, "skip the newest N jobs of a list", "N",
            hidden=True),
    _client("--app-search-length", Form.COUNT, _O, "list at most N jobs; default 10000", "N",
            hidden=True),
    FOLLOW,
    WAIT,
    _client("--wait-timeout", Form.SECONDS, _O, "stop waiting or following after this many seconds", "SECONDS"),
    _client("--junit", Form.TEXT, _O, "when the job has ended, write a JUnit report about it for CI systems",
            "FILE"),
    _client("--pass-exit-code", Form.FLAG, _O, "exit with the exit code of the program if the job ends ERROR"),
    _client("--to", Form.TEXT, _O, "folder for fetched files; default: the current folder", "DIR"),
    _client("--unpack", Form.FLAG, _O, "unpack the fetched result; keep no zip"),
    _client("--force", Form.FLAG, _O, "overwrite existing files of the same name"),
    Option("--debug-level", Form.TEXT, _O, "level of messages on standard error; default info",
           choices=("debug", "info", "warn", "error"), local=Local.CLIENT),
)


#: For commands that ask before they destroy more than one thing.
YES = "--yes"


def _search(name: str, kind: Form, text: str, metavar: str = "", **more: object) -> Option:
    return _client(name, kind, Section.SEARCH, text, metavar, hidden=True, **more)


#: Options that define a search in place of a file.
SEARCH_OPTIONS: tuple[Option, ...] = (
    _search("--hpo-param", Form.TEXT, "parameter and its values: LOW..HIGH, LOW..HIGH/STEP, log:LOW..HIGH or "
            "A,B,C; repeatable", "NAME=VALUES", multiple=True),
    _search("--hpo-metric", Form.TEXT, "metric to optimize; without a direction, losses and errors are minimized and "
            "others maximized; repeatable for several objectives", "METRIC[:minimize|maximize]", multiple=True),
    _search("--hpo-trials", Form.POSITIVE, "most experiments; default 20, for Grid all combinations", "N"),
    _search("--hpo-parallel", Form.POSITIVE, "most experiments at the same time; default 4", "N"),
    _search("--hpo-minutes", Form.POSITIVE, "most minutes for the search", "N"),
    _search("--hpo-algorithm", Form.TEXT, "algorithm; default TPE, with --hpo-resource ASHA", "NAME"),
    _search("--hpo-resource", Form.TEXT, "resource that ASHA and Hyperband divide, such as epochs:27", "NAME:MOST"),
    _search("--hpo-resume", Form.FLAG, "promoted experiments continue their training, and do not repeat it"),
    _search("--hpo-seed", Form.COUNT, "seed of the algorithm; default: chosen by the server", "N"),
    _search("--hpo-name", Form.TEXT, "name of the search; default: chosen by the server", "NAME"),
    _search("--hpo-job", Form.TEXT, "search with the code of a job, without an upload; each parameter takes the place "
            "of its value in the arguments of the job; words after --, such as --lr {lr}, replace them", "ID"),
    _search("--hpo-definition", Form.TEXT, "search with the code of a model definition; each parameter takes the "
            "place of its value in the arguments; words after --, such as --lr {lr}, replace them", "NAME"),
    _search("--hpo-of-version", Form.POSITIVE, "version of the model definition; default: the newest one", "N"),
)


def _deployment(name: str, text: str, metavar: str) -> Option:
    return _client(name, Form.TEXT, Section.DEPLOYMENT, text, metavar, hidden=True)


#: Options of one command alone. With other commands such words go to the program: many programs have their own --name.
OWN_OPTIONS: dict[str, tuple[Option, ...]] = {
    **dict.fromkeys(("--exec-delete-all", "--app-stop-all", "--hpo-delete-all"), (
        _client(YES, Form.FLAG, _O, "do not ask before all jobs or searches are stopped or deleted; without a "
                "terminal, these commands never ask", hidden=True),)),
    "--console": (_client("--no-browser", Form.FLAG, _O, "print only the address", hidden=True),),
    "--exec-get-all": (
        _client("--all-users", Form.FLAG, _O, "with --exec-get-all, for administrators: execs of all users",
                hidden=True),
        _client("--search", Form.TEXT, _O, "with --exec-get-all: only the experiments of a search", "NAME",
                hidden=True),
    ),
    **dict.fromkeys(("--definition-get", "--hardware-get", "--experiment-get", "--experiment-run"), (
        _client("--of-version", Form.POSITIVE, _O, "number of the version; default: the newest one", "N", hidden=True),
    )),
    "--experiment-save": (_client("--run", Form.FLAG, _O, "with --experiment-save: run the experiment", hidden=True),),
    **dict.fromkeys(("--exec-tag", "--exec-note", "--exec-favorite"), (
        _client("--remove", Form.FLAG, _O, "with --exec-tag, --exec-note and --exec-favorite: remove instead of add",
                hidden=True),
    )),
    "--hpo-start": SEARCH_OPTIONS,
    "--hpo-algorithm-install": (
        _client("--name", Form.TEXT, Section.SEARCH, "with --hpo-algorithm-install: name of the algorithm; default: "
                "that of the folder or file", "NAME", hidden=True),
        _client("--log-level", Form.TEXT, Section.SEARCH, "with --hpo-algorithm-install: level of the algorithm's log",
                "LEVEL", hidden=True),
    ),
    "--exec-verify": (_client("--steps", Form.POSITIVE, _O, "with --exec-verify: steps to compare", "N", hidden=True),),
    "--exec-deploy": (
        _deployment("--kernel", "file of the kernel, or a ready-made kernel such as torch; required", "FILE"),
        _deployment("--name", "name of the deployed model", "NAME"),
        _deployment("--runtime", "runtime that the kernel needs", "RUNTIME"),
        _deployment("--weight", "weights of the model", "FILE"),
        _deployment("--tag", "tag of the model", "TAG"),
        _deployment("--attributes", "attributes of the model", "KEY=VALUE,..."),
        _deployment("--envs", "environment variables of the kernel", "NAME=VALUE,..."),
    ),
}

BY_NAME: dict[str, Option] = {
    spelling: option for option in (*COMMANDS, *OPTIONS) for spelling in (option.name, *option.aliases)
}
COMMAND_NAMES: frozenset[str] = frozenset(option.name for option in COMMANDS)
#: Commands that end jobs, delete or replace something, or publish a model. No slip of the fingers leads to one.
DESTROYING: frozenset[str] = frozenset(
    name for name in COMMAND_NAMES if not {"stop", "delete", "apply", "deploy"}.isdisjoint(name.split("-")))
#: In place of an exec's id: the newest exec of the user.
LAST = "last"
#: Commands whose operands are ids of execs.
EXEC_COMMANDS: frozenset[str] = frozenset({FOLLOW.name, WAIT.name}) | frozenset(
    option.name for option in COMMANDS
    if (option.name.startswith("--exec-") or option.name == "--open") and option.metavar.startswith("ID"))

#: Commands whose operands are ids of applications, as the scheduler calls execs.
APP_COMMANDS: frozenset[str] = frozenset(
    option.name for option in COMMANDS if option.name.startswith("--app-") and option.metavar.startswith("ID"))


def help_sections(hidden: bool = False) -> dict[Section, list[Option]]:
    """Return commands and options by section of the help, in the order of the table."""
    sections: dict[Section, list[Option]] = {group: [] for group in Section}
    own = (option for options in OWN_OPTIONS.values() for option in options)
    for option in dict.fromkeys((*COMMANDS, FILE, *OPTIONS, *own)):
        if hidden or not option.hidden:
            sections[option.group].append(option)
    return {group: members for group, members in sections.items() if members}


def option_named(name: str, command: str | None) -> Option | None:
    """Return the option or command with this exact spelling, in a command line whose command is `command` so far; else
    None."""
    own = OWN_OPTIONS.get(command or "", ())
    return BY_NAME.get(name) or next((option for option in own if option.name == name), None)
