"""The table of the verbs: short commands, each of which does what a long option of the option table does.

Parsing, help and completion come from this table. Servers know no verbs: the client sends the long option.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from dlicmd.contract.options import (
    BY_NAME,
    COMMAND_NAMES,
    DESTROYING,
    DRY_RUN,
    FILE,
    FOLLOW,
    OPTIONS,
    SEARCH_OPTIONS,
    WAIT,
    YES,
    Form,
    Local,
    Option,
    Section,
    Travel,
    option_named,
)
from dlicmd.contract.states import NAMED

MANY = 10**9
#: Option of a verb → the option of the option table that it stands for.
STANDS_FOR = {
    "--name": "--appName", "--workers": "--numWorker", "--gpus": "--numWorker", "--env": "--msd-env",
    "--priority": "--msd-priority", "--plan": "--consumer",
}


class Verb(NamedTuple):
    """One verb. `command` is the long option that does the same.

    `least` and `most` limit the number of operands; the first `ids` operands are ids of execs. `own` are options of
    this verb alone. `takes` are options of the option table, beside those that every verb takes (`COMMON`). `program`:
    words after `--` belong to the program of the job. `stands_for` maps own options to options of the option table.
    """

    name: str
    command: str
    operands: str
    help: str
    examples: tuple[tuple[str, str], ...]
    least: int = 0
    most: int = 0
    ids: int = 0
    own: tuple[Option, ...] = ()
    takes: tuple[Option, ...] = ()
    program: bool = False
    stands_for: Mapping[str, str] = STANDS_FOR


def _own(
    name: str, kind: Form, text: str, metavar: str = "", *, section: Section = Section.OUTPUT, multiple: bool = False,
    aliases: tuple[str, ...] = (), choices: tuple[str, ...] = (),
) -> Option:
    return Option(name, kind, section, text, metavar, aliases, choices, multiple, travel=Travel.CLIENT,
                  local=Local.CLIENT)


#: Kinds of programs that `run` distinguishes.
ELASTIC, DDP, SINGLE, COMMAND = "elastic", "ddp", "single", "command"
#: In place of operands: all jobs.
ALL, STATE = "--all", "--state"
HELP = _own("--help", Form.FLAG, "show this help", aliases=("-h",))

_S, _R, _E = Section.SUBMIT, Section.RESOURCES, Section.SCHEDULING
_RUN_OPTIONS = (
    _own("--as", Form.TEXT, "how to run the program; default: chosen from its source", section=_S,
         choices=(ELASTIC, DDP, SINGLE, COMMAND)),
    _own("--name", Form.TEXT, "name of the job; default: name of the program", "NAME", section=_S),
    _own("--data", Form.TEXT, "data of the job: a file or folder of this machine, a path in the data folder "
         "of the server, or KEY=VALUE,... as --cs-datastore-meta", "PATH", section=_S),
    _own("--workers", Form.POSITIVE, "number of workers; for elastic programs, the maximum", "N", section=_R),
    _own("--gpus", Form.POSITIVE, "the same as --workers N, and each worker uses 1 GPU", "N", section=_R),
    _own("--env", Form.TEXT, "environment variable of the job; repeatable", "NAME=VALUE", section=_E, multiple=True),
    _own("--priority", Form.POSITIVE, "priority of the job; larger is more urgent; default 5000", "N", section=_E),
    _own("--plan", Form.TEXT, "resource plan of the job", "PATH", section=_E),
    _own("--no-follow", Form.FLAG, "print the id and return; the default in a pipe or file"),
)
_H = Section.SEARCH
_SEARCH_OPTIONS = (
    *(_own(f"--{option.name.removeprefix('--hpo-')}", option.kind, option.help.replace("--hpo-", "--"), option.metavar,
           section=_H, multiple=option.multiple) for option in SEARCH_OPTIONS),
    *(option for option in _RUN_OPTIONS if option.name not in ("--name", "--gpus")),
)
#: The same for `search`, whose `--name` is that of the search.
_OF_SEARCH = {**STANDS_FOR, **{f"--{option.name.removeprefix('--hpo-')}": option.name for option in SEARCH_OPTIONS}}
#: Option of a verb → an option that it also gives, and its value.
IMPLIES = {"--gpus": ("--workerDeviceType", "gpu")}

COMMON: tuple[Option, ...] = (
    *(option for option in OPTIONS if option.group is Section.CONNECTION), BY_NAME["--output"],
    BY_NAME["--debug-level"],
)
_WAITING = tuple(BY_NAME[name] for name in ("--wait-timeout", "--junit", "--pass-exit-code"))
_WATCHING = (
    FOLLOW._replace(help="follow the job live until it ends"), WAIT._replace(help="wait silently until the job ends"),
    *_WAITING,
)
_SUBMISSION = (
    *(option for option in OPTIONS if option.group in (_S, _R, _E)),
    DRY_RUN._replace(help="show the request of the submission without sending it"), *_WATCHING)
_SEARCH_TAKES = tuple(option for option in _SUBMISSION if option.name not in ("--junit", "--pass-exit-code"))
_SELECTION = (
    _own(ALL, Form.FLAG, "all your jobs; with --state: all in this state"),
    _own(STATE, Form.TEXT, "with --all: only jobs in this state", "STATE"),
    _own(YES, Form.FLAG, "do not ask; required for more than 1 job without a terminal"),
)

VERBS: tuple[Verb, ...] = (
    Verb("run", "--exec-start", "[DIR|FILE]", "submit a program and watch it", (
        ("dlicmd run train.py", "submit train.py with its folder, and follow it"),
        ("dlicmd run train.py --gpus 2 --name trial -- --epochs 10", "use 2 GPUs; pass the words after -- to train.py"),
        ("dlicmd run . --as ddp --workers 4 --wait", "run the program of this folder in 4 DDP processes"),
        ("dlicmd run -- torchrun --nproc-per-node=2 train.py", "run a command in the current folder"),
    ), most=1, own=_RUN_OPTIONS, takes=(*_SUBMISSION, FILE), program=True),
    Verb("search", "--hpo-start", "[DIR|FILE]", "search for the best hyper-parameters of a program", (
        ("dlicmd search train.py --param lr=log:1e-4..1e-1 --metric accuracy", "run train.py with 20 values of lr"),
        ("dlicmd search . --param batch=16,32 --metric loss -- --batch {batch}", "put the values into its arguments"),
        ("dlicmd search --job last --param lr=0.1,0.01 --metric loss", "run the code of a job again with other values"),
        ("dlicmd search", "list your searches; get, why, follow, plot, stop and rm take the name of a search, too"),
    ), most=1, own=_SEARCH_OPTIONS, takes=_SEARCH_TAKES, program=True, stands_for=_OF_SEARCH),
    Verb("ls", "--exec-get-all", "", "list your jobs", (
        ("dlicmd ls", "the newest jobs"),
        ("dlicmd ls --state finished --limit 5", "the newest 5 finished jobs"),
        ("dlicmd ls --since 1d --sort loss", "the jobs of the last day, the smallest loss first"),
        ("dlicmd ls --find 'lr<0.1 digits' --tag best", "jobs with this parameter, word and tag"),
        ("dlicmd ls --sort f1 --column lr --column batch", "the best f1 first, with 2 parameters"),
        ("dlicmd ls --find tag:best --sort f1 --save-view best", "keep the list: dlicmd ls --view best"),
    ), own=(
        _own("--limit", Form.COUNT, "show at most N jobs; 0: all; default on a terminal: 20", "N"),
        _own(STATE, Form.TEXT, f"only jobs in these states, such as running or error,killed; the states are "
             f"{', '.join(NAMED)}", "STATE"),
        _own("--since", Form.TEXT, "only jobs submitted since a time, such as 14:30, or within a period, such as 3d",
             "TIME"),
        _own("--sort", Form.TEXT, "sort by a column, by a metric with the best value first, or by a parameter; -NAME: "
             "reverse order", "NAME"),
        _own("--column", Form.TEXT, "show a metric or a parameter, such as f1, metric.lr or param.lr; repeatable",
             "NAME", multiple=True),
        _own("--search", Form.TEXT, "only the experiments of a search", "NAME"),
        _own("--find", Form.TEXT, "only jobs that fit all words: parts of names, ids, users, tags and parameters; or "
             "state:running, tag:best, user:ada, search:NAME, is:favorite, lr=0.1, 'f1>0.9', 'lr<0.1', -tag:old",
             "WORDS"),
        _own("--tag", Form.TEXT, "only jobs with this tag; repeatable", "TAG", multiple=True),
        _own("--all-users", Form.FLAG, "jobs of all users; for administrators only"),
        _own("--view", Form.TEXT, "show a saved view: its words, states, order and columns; other options add to it or "
             "replace them", "NAME"),
        _own("--save-view", Form.TEXT, "save words, states, order and columns as a view of the console and of --view",
             "NAME"),
        _own("--delete-view", Form.TEXT, "delete a saved view", "NAME"),
        _own("--views", Form.FLAG, "list your saved views"),
    )),
    Verb("get", "--exec-get", "ID", "show one job", (
        ("dlicmd get last", "your newest job"),
        ("dlicmd get 7 -o json", "local-7 as JSON"),
    ), 1, 1, 1),
    Verb("logs", "--exec-trainlogs", "ID", "show the output of the program", (
        ("dlicmd logs last --tail 20", "the last 20 lines"),
        ("dlicmd logs 7 -f", "all lines so far, then new lines until the job ends"),
        ("dlicmd logs last --grep 'loss|error' --worker 2", "matching lines of worker 2"),
    ), 1, 1, 1, own=(
        _own("--tail", Form.COUNT, "only the last N lines", "N"),
        _own("--since", Form.TEXT, "only lines since a time, such as 14:30, or within a period, such as 10m", "TIME"),
        _own("--worker", Form.COUNT, "only lines of this worker; 0: the driver", "N"),
        _own("--grep", Form.TEXT, "only lines that match a regular expression", "REGEX"),
        _own("--follow", Form.FLAG, "show new lines until the job ends", aliases=("-f",)),
        _own("--timestamps", Form.FLAG, "show the time of each line"),
    ), takes=(BY_NAME["--wait-timeout"],)),
    Verb("follow", "--follow", "ID", "watch a job until it ends", (
        ("dlicmd follow last", "Ctrl-C detaches; the job continues"),
    ), 1, 1, 1, takes=_WAITING),
    Verb("wait", "--wait", "ID", "wait silently until a job ends", (
        ("dlicmd wait last && dlicmd result last", "fetch the model if the job finished"),
    ), 1, 1, 1, takes=_WAITING),
    Verb("stop", "--exec-stop", "ID...", "stop jobs; their files remain", (
        ("dlicmd stop last", "stop your newest job"),
        ("dlicmd stop --all --state PENDING", "ask, then stop all pending jobs"),
    ), 0, MANY, MANY, own=_SELECTION),
    Verb("rm", "--exec-delete", "ID...", "delete jobs and their files", (
        ("dlicmd rm 7", "delete local-7"),
        ("dlicmd rm --all --state ERROR --yes", "delete all failed jobs without a question"),
    ), 0, MANY, MANY, own=_SELECTION),
    Verb("tag", "--exec-tag", "ID [TAG...]", "add tags to a job, or show its labels", (
        ("dlicmd tag last best baseline", "add 2 tags to your newest job; ls --tag best lists it"),
        ("dlicmd tag 7 baseline --remove", "remove a tag of local-7"),
        ("dlicmd tag 7", "show tags and note of local-7"),
    ), 1, MANY, 1, own=(_own("--remove", Form.FLAG, "remove the tags"),)),
    Verb("note", "--exec-note", "ID [TEXT]", "write a note about a job, or show its labels", (
        ("dlicmd note last 'lower rate, same seed'", "dlicmd get shows the note, too"),
        ("dlicmd note 7 --remove", "remove the note"),
    ), 1, 2, 1, own=(_own("--remove", Form.FLAG, "remove the note"),)),
    Verb("favorite", "--exec-favorite", "ID...", "make jobs your favorites", (
        ("dlicmd favorite last", "dlicmd ls --find is:favorite lists your favorites"),
        ("dlicmd favorite 7 --remove", "local-7 is no longer a favorite"),
    ), 1, MANY, MANY, own=(_own("--remove", Form.FLAG, "remove the jobs from your favorites"),)),
    Verb("result", "--exec-trainresult", "ID [PATH...]", "fetch the files that a job wrote", (
        ("dlicmd result last", "fetch the trained model as a zip"),
        ("dlicmd result last --list", "list all files that the job wrote"),
        ("dlicmd result last weights.bin --to DIR", "fetch one file into a folder"),
    ), 1, MANY, 1, own=(
        _own(ALL, Form.FLAG, "all files that the job wrote"),
        _own("--list", Form.FLAG, "list the files; fetch none"),
    ), takes=(
        BY_NAME["--to"]._replace(help="folder for the files; dlicmd makes it; default: the current folder"),
        BY_NAME["--unpack"]._replace(help="unpack the trained model; keep no zip"), BY_NAME["--force"])),
    Verb("plot", "--exec-plot", "ID...", "draw metrics of jobs as curves", (
        ("dlicmd plot last", "draw the losses of your newest job"),
        ("dlicmd plot 7 9 --metric val_accuracy", "draw 2 jobs in one chart"),
        ("dlicmd plot last --resources", "draw the CPU cores, the memory and the GPUs in use"),
        ("dlicmd plot 7 8 9 --group lr", "draw the mean of the jobs with the same learning rate"),
    ), 1, MANY, MANY, own=(
        _own("--metric", Form.TEXT, "metric to draw; repeatable; default: the losses", "NAME", multiple=True),
        _own("--resources", Form.FLAG, "the CPU cores, the memory and the GPUs in use, in place of metrics"),
        _own("--group", Form.TEXT, "draw the mean of the jobs with the same value of a parameter; repeatable", "NAME",
             multiple=True),
        _own("--export", Form.TEXT, "write the points to a file that ends with .csv or .parquet", "FILE"),
    )),
    Verb("why", "--exec-why", "ID", "show why a job waits, runs or failed, and what to do", (
        ("dlicmd why last", "for a pending job, name the jobs that hold the slots"),
    ), 1, 1, 1),
    Verb("diff", "--exec-diff", "ID ID...", "compare jobs: options, metrics, code", (
        ("dlicmd diff 7 9", "compare 2 jobs"),
        ("dlicmd diff 7 8 9 --sort loss", "compare several jobs, the smallest loss first"),
    ), 2, MANY, MANY, own=(
        _own("--sort", Form.TEXT, "sort the jobs by a metric, the best value first; -METRIC: reverse order",
             "METRIC"),
        _own("--export", Form.TEXT, "write the table to a file that ends with .csv or .parquet", "FILE"),
    )),
    Verb("top", "--top", "", "watch the slots, their jobs and the queue", (
        ("dlicmd top", "scroll with arrows, filter with /, quit with q"),
    )),
    Verb("resize", "--exec-resize", "ID N|auto", "change the number of slots of a running elastic job", (
        ("dlicmd resize last 4", "keep the job on 4 slots"),
        ("dlicmd resize last auto", "return to its fair share"),
    ), 2, 2, 1),
    Verb("open", "--open", "[ID]", "open the folder with the files of a job", (
        ("dlicmd open last", "print the folder if no program can show it"),
    ), 0, 1, 1),
    Verb("console", "--console", "", "open the console in the browser and log on", (
        ("dlicmd console", "watch, compare and start runs in the browser"),
        ("dlicmd console --no-browser", "print only the address; it is valid once, for 1 minute"),
    ), own=(_own("--no-browser", Form.FLAG, "print only the address"),)),
    Verb("data", "--data-preview", "SOURCE", "preview data, or upload it with --to", (
        ("dlicmd data ./images", "preview a folder of this machine"),
        ("dlicmd data warehouse:sales", "preview a table or path of a connection"),
        ("dlicmd data ./images --to images", "upload a folder to the data folder of the server"),
    ), 1, 1, takes=(
        BY_NAME["--to"]._replace(help="upload SOURCE, a file or folder of this machine, into this folder for data on "
                                      "the server; . stands for the folder of all your data", metavar="FOLDER"),
    ), own=(
        _own("--volume", Form.TEXT, "with --to: a folder of this volume", "NAME"),
        _own("--replace", Form.FLAG, "with --to: replace files that exist"),
    )),
    Verb("demo", "--demo", "", "train the sample model and watch it", (
        ("dlicmd demo", "train on 2 workers; needs no files of yours"),
        ("dlicmd demo --no-follow", "print the id and return"),
    ), takes=_SUBMISSION, own=(_own("--no-follow", Form.FLAG, "print the id and return"),), program=True),
    Verb("verify", "--exec-verify", "ID", "check an elastic job: compute its first steps again", (
        ("dlicmd verify last --steps 50", "compare the first 50 steps with 2 numbers of workers"),
    ), 1, 1, 1, own=(_own("--steps", Form.POSITIVE, "steps to compare; default 20", "N"),), takes=(
        *_WATCHING,)),
    Verb("again", "--exec-again", "ID", "submit a job again, as it was or with changes", (
        ("dlicmd again last", "run your newest job again, and follow it"),
        ("dlicmd again 7 --workers 4 --name wide", "the same with 4 workers and another name"),
        ("dlicmd again 7 -- --epochs 20", "the same program with other arguments"),
        ("dlicmd again 7 --data ./images", "the same program with other data"),
    ), 1, 1, 1, own=tuple(one for one in _RUN_OPTIONS if one.name in ("--name", "--data", "--workers", "--no-follow")),
        takes=_WATCHING, program=True),
    Verb("login", "--logon", "[HOST[:PORT]]", "log on to a server, and use it for later verbs", (
        ("dlicmd login gpu1.example.org:9443", "ask for user and password"),
        ("dlicmd login gpu1.example.org:9443 --oidc", "confirm the logon in a browser"),
    ), most=1, own=(
        _own("--oidc", Form.FLAG, "log on with your account of the server's OIDC issuer, in a browser"),
        _own("--oidc-token-file", Form.TEXT, "log on with the ID token in a file, as pipelines have it; or set "
             "DLICMD_OIDC_TOKEN", "FILE"),
    )),
    Verb("logout", "--logoff", "[SERVER]", "log off from the current server, or from another one", (
        ("dlicmd logout", "log off; later verbs use the local backend"),
        ("dlicmd logout gpu1.example.org:9443", "log off from this server; dlicmd server ls lists the names"),
    ), most=1),
    Verb("whoami", "--whoami", "", "show user, role and server", (
        ("dlicmd whoami -o json", "print JSON for scripts"),
    )),
    Verb("server", "--server", "[ls|use NAME]", "list servers, or select the one for later verbs", (
        ("dlicmd server ls", "list the local backend and the servers that you logged on to"),
        ("dlicmd server use local", "return to the local backend"),
    ), 0, 2),
)
BY_VERB: dict[str, Verb] = {verb.name: verb for verb in VERBS}

#: First word that is not a verb → the command that is probably meant. It never destroys more than the word says.
SYNONYMS: dict[str, str] = {
    **dict.fromkeys(("tune", "hpo", "hypersearch", "optimize", "sweep", "searches"), "search"),
    **dict.fromkeys(("list", "lst", "jobs", "ps", "squeue", "queue", "history", "sacct", "runs", "clean", "purge",
                     "prune", "clear", "reset"), "ls"),
    **dict.fromkeys(("status", "show", "describe", "info", "inspect", "job", "state"), "get ID"),
    **dict.fromkeys(("log", "tail", "cat", "output", "stdout", "print"), "logs ID"),
    **dict.fromkeys(("watch", "attach", "join"), "follow ID"),
    **dict.fromkeys(("kill", "cancel", "scancel", "abort", "terminate", "end", "quit", "down"), "stop ID"),
    **dict.fromkeys(("delete", "remove", "del", "erase", "drop"), "rm ID"),
    **dict.fromkeys(("submit", "start", "train", "exec", "execute", "launch", "sbatch", "srun", "python", "torchrun",
                     "up", "create", "new"), "run train.py"),
    **dict.fromkeys(("download", "fetch", "pull", "results", "model", "artifacts", "files", "cp", "copy", "save"),
                    "result ID"),
    **dict.fromkeys(("graph", "chart", "curve", "curves", "metrics", "metric", "loss", "draw"), "plot ID"),
    **dict.fromkeys(("compare", "cmp"), "diff ID ID"),
    **dict.fromkeys(("explain", "reason", "pending"), "why ID"),
    **dict.fromkeys(("label", "tags", "labels"), "tag ID TAG"),
    **dict.fromkeys(("comment", "notes", "annotate"), "note ID TEXT"),
    **dict.fromkeys(("star", "pin", "bookmark", "favorites"), "favorite ID"),
    **dict.fromkeys(("nvidia-smi", "gpu", "gpus", "slots", "sinfo", "nodes", "htop", "usage", "monitor"),
                    "top"),
    **dict.fromkeys(("scale", "grow", "shrink"), "resize ID N"),
    **dict.fromkeys(("preview", "dataset", "datasets"), "data SOURCE"),
    "folder": "open ID",
    **dict.fromkeys(("ui", "browse", "browser", "web", "dashboard"), "console"),
    **dict.fromkeys(("example", "sample", "try", "hello", "quickstart", "init"), "demo"),
    **dict.fromkeys(("logon", "signin", "auth", "connect"), "login HOST"),
    **dict.fromkeys(("logoff", "signout", "disconnect"), "logout"),
    **dict.fromkeys(("who", "user", "me", "account"), "whoami"),
    **dict.fromkeys(("servers", "use", "switch", "host", "hosts", "context"), "server ls"),
    **dict.fromkeys(("config", "profile", "profiles", "settings"), "--config-show"),
    **dict.fromkeys(("version", "v", "V"), "--version"),
    **dict.fromkeys(("usage-text", "man", "h", "?"), "help"),
    **dict.fromkeys(("frameworks", "framework"), "--dl-frameworks"),
    **dict.fromkeys(("completion", "complete"), "--completion bash"),
    **dict.fromkeys(("plans", "plan", "quota"), "--rp-get-all"),
}
#: Option that a verb lacks → options that are probably meant; a verb has at most one of them.
OPTION_SYNONYMS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("--gpu", "--ngpus", "--num-gpus", "--gpus-per-node"), ("--gpus",)),
    **dict.fromkeys(("--np", "-np", "-n", "-w", "--num-workers", "--nproc", "--nproc-per-node", "--processes",
                     "--procs", "--ntasks", "--worker", "--cpus"), ("--workers", "--tail", "--limit")),
    **dict.fromkeys(("--memory", "--mem", "--ram"), ("--workerMemory",)),
    **dict.fromkeys(("--job-name", "-J", "--title"), ("--name",)),
    **dict.fromkeys(("--lines", "--last", "--head"), ("--tail", "--limit")),
    **dict.fromkeys(("--watch", "--attach", "--stream"), ("--follow",)),
    **dict.fromkeys(("--detach", "-d", "--background", "--no-wait"), ("--no-follow",)),
    **dict.fromkeys(("--kind", "--type", "--framework", "--mode"), ("--as",)),
    **dict.fromkeys(("-e", "--environment"), ("--env",)),
    **dict.fromkeys(("--out", "--dest", "--dir", "--output-dir", "-d"), ("--to",)),
    **dict.fromkeys(("--overwrite",), ("--force",)),
    **dict.fromkeys(("-y", "--force", "-f", "--assume-yes", "--no-confirm"), ("--yes",)),
    **dict.fromkeys(("-a", "-A"), (ALL, "--all-users")),
    **dict.fromkeys(("--status",), (STATE,)),
    **dict.fromkeys(("--user", "-u", "--everyone"), ("--all-users",)),
    **dict.fromkeys(("--order", "--sort-by", "--order-by"), ("--sort",)),
    **dict.fromkeys(("--columns", "--show", "--fields"), ("--column",)),
    **dict.fromkeys(("-t", "--time", "--times"), ("--timestamps",)),
    **dict.fromkeys(("--key", "--metrics", "-m"), ("--metric",)),
    **dict.fromkeys(("--json",), ("-o json",)), **dict.fromkeys(("--yaml",), ("-o yaml",)),
    **dict.fromkeys(("--format",), ("--output",)),
    **dict.fromkeys(("--host",), ("--rest-host",)), **dict.fromkeys(("--port",), ("--rest-port",)),
    **dict.fromkeys(("--queue", "--partition", "-p"), ("--plan",)),
    **dict.fromkeys(("--dataset", "--data-path"), ("--data",)),
    **dict.fromkeys(("--verbose", "-v", "--debug"), ("--debug-level debug",)),
}


def options_of(verb: Verb) -> tuple[Option, ...]:
    """Return all options of a verb. Its own options precede options of the table with the same spelling."""
    return (*verb.own, *verb.takes, *COMMON)


def verb_option(verb: Verb, spelling: str) -> Option | None:
    """Return the option of a verb with this exact spelling, or None."""
    return next((option for option in options_of(verb) if spelling in (option.name, *option.aliases)), None)


def canonical(option: Option, verb: Verb) -> Option:
    """Return the option of the option table that an option of a verb stands for, or the option itself."""
    named = verb.stands_for.get(option.name) if option.travel is Travel.CLIENT else None
    return (option_named(named, verb.command) or option) if named else option


def meant_command(word: str) -> str | None:
    """Return the command that a word probably means if it is not a verb, or None. `word` may have leading dashes. A
    typing error never leads to a command that destroys: only a word with that meaning does."""
    plain = word.lstrip("-").lower()
    if plain.endswith((".py", ".sh")):
        return f"run {word}"
    if plain in BY_VERB or plain in SYNONYMS:
        return _advice(plain)
    if f"--{plain}" in COMMAND_NAMES:
        return f"--{plain} {BY_NAME[f'--{plain}'].metavar}".strip()
    if plain.startswith("exec-") and (command := meant_long_command(plain)):
        return command
    # Every short word is near rm. A word that is nearest to another verb that destroys means no harmless one either.
    found = _near(plain, BY_VERB.keys() - {"rm"}, 0.7) or _near(plain, SYNONYMS, 0.75)
    return None if found is None or destroys(_advice(found)) else _advice(found)


def _advice(known: str) -> str:
    """Return what to type for a verb or a synonym."""
    return SYNONYMS[known] if known in SYNONYMS else f"{known} {BY_VERB[known].operands}".strip()


def meant_long_command(word: str) -> str | None:
    """Return the long command, with its value, whose verb an unknown word names, or None: `--exec-list` means that of
    `ls`. `word` may have leading dashes."""
    plain = word.lstrip("-").lower().removeprefix("exec-")
    if plain not in SYNONYMS and plain not in BY_VERB:
        return None
    verb = BY_VERB.get(SYNONYMS.get(plain, plain).partition(" ")[0])
    return None if verb is None else f"{verb.command} {BY_NAME[verb.command].metavar}".strip()


def destroys(meant: str) -> bool:
    """Return whether words that begin with a verb or a long command end jobs, delete or replace something."""
    head = meant.partition(" ")[0]
    return (BY_VERB[head].command if head in BY_VERB else head) in DESTROYING


def meant_option(verb: Verb, word: str) -> str | None:
    """Return the option of a verb that an unknown option probably means, or None."""
    known = [spelling for option in options_of(verb) if not option.hidden
             for spelling in (option.name, *option.aliases) if spelling.startswith("--")]
    if destroys(verb.name):
        known.remove(ALL)
    for name in OPTION_SYNONYMS.get(word, ()):
        if name.partition(" ")[0] in (*known, "-o"):
            return name
    return _near(word, known, 0.75)


def _near(word: str, known: Iterable[str], cutoff: float) -> str | None:
    """Return the known word with 2 neighboring letters of `word` swapped; else, of those with the same first letter,
    the most similar one from `cutoff` on; else None."""
    import difflib  # only for wrong words

    swapped = {word[:at] + word[at : at + 2][::-1] + word[at + 2 :] for at in range(len(word) - 1)}
    if found := swapped.intersection(known):
        return min(found)
    begin = word[: len(word) - len(word.lstrip("-")) + 1]
    near = difflib.get_close_matches(word, sorted(one for one in known if one.startswith(begin)), 1, cutoff)
    return near[0] if near else None
