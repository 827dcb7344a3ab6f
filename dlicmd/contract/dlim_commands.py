"""The table of the commands of `dlim`. Parsing, help, completion and docs/dlim.md come from it."""

from __future__ import annotations

from typing import NamedTuple

from dlicmd.contract.dlim import KERNEL_TYPES, LAUNCHER_LOG, STDERR, STDOUT
from dlicmd.contract.options import BY_NAME, Form, Local, Option, Section, Travel

MANY = 10**9
#: The variable with which a shell's completion script asks for candidates.
COMPLETION = "_DLIM_COMPLETE"
#: First words that need a second one.
GROUPS = ("model", "runtime")


class DlimCommand(NamedTuple):
    """One command. `name` has 1 or 2 words; `least` and `most` limit the number of operands.

    `recorded`: a command of the original dlim, whose lines automation compares, so that no other line is printed.
    `destroys`: no slip of the fingers leads to it. The first operand of a command in `OF_MODELS` is a model's name.
    """

    name: str
    operands: str
    help: str
    examples: tuple[tuple[str, str], ...]
    least: int = 0
    most: int = 0
    options: tuple[Option, ...] = ()
    recorded: bool = False
    destroys: bool = False


def _own(
    name: str, text: str, metavar: str = "", *aliases: str, kind: Form | None = None, choices: tuple[str, ...] = (),
) -> Option:
    taken = kind or (Form.TEXT if metavar or choices else Form.FLAG)
    return Option(name, taken, Section.OUTPUT, text, metavar, aliases, choices, travel=Travel.CLIENT,
                  local=Local.CLIENT)


HELP = _own("--help", "show this help", "", "-h")
#: The server with the path of the inference service, as the original dlim takes it.
SERVER = _own("--rest-server", "server to connect to, such as https://HOST:PORT/dlim/v1/; default: that of dlim config "
              "-c, or the local backend", "URL")._replace(group=Section.CONNECTION)
#: Options of dlicmd that every command takes, some with a help text of their own.
_CONNECTION = {
    "--jwt-token": "token to use instead of the stored one; safer: DLICMD_TOKEN", "--profile": "", "--ca-cert": "",
    "--trust-fingerprint": "", "--insecure": "",
    "--keyring": "store the token of dlim config -t in the system keyring, not in a file", "--call-timeout": "",
    "--output": "json or yaml, for programs; table; custom-columns=COLUMN,... for lists",
    "--debug-level": "level of messages on standard error; default: error for the commands of WMLA, else info",
}
_OF_DLICMD = ("--rest-host", "--rest-port", "--http")
#: Options of every command.
COMMON: tuple[Option, ...] = (
    SERVER, *(BY_NAME[name]._replace(help=text or BY_NAME[name].help) for name, text in _CONNECTION.items()),
    *(BY_NAME[name]._replace(hidden=True) for name in _OF_DLICMD),
)

FORCE = _own("--force", "do not ask", "", "-f")
WAIT = _own("--wait", "return when the model is ready, or stopped")
TIMEOUT = BY_NAME["--wait-timeout"]._replace(help="stop waiting after this many seconds; default 300")
FILE = _own("--file", "file with JSON or YAML", "FILE", "-f")
FOLDER = _own("--path", "folder of the model", "DIR", "-p")
KERNEL_TYPE = _own("--kernel-type", "use a ready-made kernel; the folder then needs only the model",
                   choices=KERNEL_TYPES)
NAME = _own("--name", "name of the model", "NAME")
_PROFILE_JSON = _own("--json", "print JSON", "", "-j")

COMMANDS: tuple[DlimCommand, ...] = (
    DlimCommand("config", "", "set the server, fetch tokens", (
        ("dlim config -c https://gpu1.example.org:9443/dlim/v1/", "use this server from now on"),
        ("dlim config -t -u ada -x PASSWORD", "fetch a token, and store it"),
        ("dlim config -s", "print a token for programs that only send requests"),
        ("dlim config -c local", "use the local backend again"),
    ), options=(
        _own("--connect", "server to use from now on; local: the local backend", "URL", "-c"),
        _own("--user-token", "fetch a token of the user, and store it", "", "-t"),
        _own("--service-token", "print a token that only sends requests", "", "-s"),
        _own("--username", "user for -t and -s", "USER", "-u"),
        _own("--password", "password of the user; safer: DLICMD_PASSWORD, or the prompt", "PASSWORD", "-x"),
        _own("--apikey", "API key, or API token, in place of a password", "APIKEY", "-k"),
    ), recorded=True),
    DlimCommand("model list", "", "list the models", (("dlim model list", "names and addresses"),), recorded=True),
    DlimCommand("model deploy", "", "deploy a folder as a model, or as its next revision", (
        ("dlim model deploy -p ./digits", "the folder has model.json, README.md and the kernel"),
        ("dlim model deploy -p ./digits -f", "the same without a question, if the model exists"),
        ("dlim model deploy -p ./onnx --kernel-type onnx", "a model file and a ready-made kernel"),
        ("dlim model deploy --saved digits:2 --kernel-type torch", "version 2 of a model of the model store"),
    ), options=(FOLDER, FORCE, KERNEL_TYPE, NAME,
                _own("--saved", "deploy a model of the model store", "NAME[:VERSION]"),
                _own("--kernel", "with --saved: file of the kernel among the files of the model", "FILE"),
                _own("--weight", "with --saved: file of the weights among the files of the model", "FILE"),
                _own("--attribute", "with --saved: attribute of the kernel, such as class=network:Net; repeatable",
                     "NAME=VALUE")._replace(multiple=True)),
        recorded=True),
    DlimCommand("model start", "NAME", "start the kernels of a model", (
        ("dlim model start digits", "return immediately"),
        ("dlim model start digits --wait", "return when it answers"),
    ), 1, 1, (FORCE, WAIT, TIMEOUT), recorded=True),
    DlimCommand("model stop", "NAME", "stop the kernels of a model", (
        ("dlim model stop digits -f", "stop without a question"),
    ), 1, 1, (FORCE, WAIT, TIMEOUT), recorded=True, destroys=True),
    DlimCommand("model undeploy", "NAME", "delete a stopped model", (
        ("dlim model undeploy digits -f", "delete without a question"),
    ), 1, 1, (FORCE,), recorded=True, destroys=True),
    DlimCommand("model view", "NAME", "show a model, or what it does now", (
        ("dlim model view digits", "what was deployed"),
        ("dlim model view digits -s", "state, requests and kernels"),
        ("dlim model view digits -s -a", "the same with each kernel"),
    ), 1, 1, (_own("--status", "show what the model does now", "", "-s"),
              _own("--all", "with -s: show each kernel, too", "", "-a")), recorded=True),
    DlimCommand("model viewprofile", "NAME", "show the profile of a model: kernels, limits, resources", (
        ("dlim model viewprofile digits -j > profile.json", "as JSON, to change it"),
    ), 1, 1, (_PROFILE_JSON,), recorded=True),
    DlimCommand("model updateprofile", "NAME", "replace the profile of a model", (
        ("dlim model updateprofile digits -f profile.json", "the changed file of viewprofile"),
    ), 1, 1, (FILE,), recorded=True),
    DlimCommand("runtime list", "", "list the runtimes", (("dlim runtime list", "names and descriptions"),),
                recorded=True),
    DlimCommand("runtime view", "NAME", "show a runtime", (("dlim runtime view dlipy3", "as JSON"),), 1, 1,
                recorded=True),
    DlimCommand("runtime create", "", "create a runtime", (
        ("dlim runtime create -f runtime.json", "the name is the key type of the file"),), options=(FILE,),
        recorded=True),
    DlimCommand("runtime update", "NAME", "replace a runtime", (
        ("dlim runtime update dlipy3 -f runtime.json", "later starts use it"),), 1, 1, (FILE,), recorded=True),
    DlimCommand("runtime delete", "NAME", "delete a runtime", (
        ("dlim runtime delete old -f", "delete without a question"),), 1, 1, (FORCE,), recorded=True, destroys=True),
    DlimCommand("run", "DIR", "deploy a folder, start it, print how to call it, follow its log", (
        ("dlim run ./digits", "Ctrl-C leaves the model running; a model that exists gets its next revision"),
        ("dlim run ./onnx --kernel-type onnx --no-follow", "return when the model answers"),
    ), 1, 1, (KERNEL_TYPE, NAME, TIMEOUT, _own("--no-follow", "return when the model answers; the default in a pipe"))),
    DlimCommand("invoke", "NAME [FILE|-]", "send a request to a model, print its answer", (
        ("dlim invoke digits input.json", "send a file"),
        ("dlim invoke digits -d '{\"seq\": 1}'", "send a text"),
        ("cat image.png | dlim invoke digits -", "send standard input"),
    ), 1, 2, (_own("--data", "body of the request; @FILE: content of a file", "DATA", "-d"),
              _own("--timeout", "seconds for which the answer is useful", "SECONDS", kind=Form.SECONDS),
              _own("--content-type", "type of the body; default: JSON if it begins like JSON", "TYPE"))),
    DlimCommand("logs", "NAME", "show what a kernel of a model wrote", (
        ("dlim logs digits --tail 20", "the last 20 lines"),
        ("dlim logs digits -f", "new lines, too, until the model stops"),
        ("dlim logs digits --stream stdout --kernel 2", "what kernel 2 printed"),
    ), 1, 1, (_own("--follow", "show new lines until the model stops", "", "-f"),
              _own("--tail", "only the last N lines", "N", kind=Form.COUNT),
              _own("--kernel", "number of the kernel; default: the newest one", "N", kind=Form.POSITIVE),
              _own("--stream", "stdout: what it prints; stderr: its log (default); launcherlog: starts and ends of "
                   "kernels", choices=(STDOUT, STDERR, LAUNCHER_LOG)))),
    DlimCommand("why", "NAME", "show why a model does not serve, or has too few kernels", (
        ("dlim why digits", "the reason, and what to do"),), 1, 1),
    DlimCommand("top", "", "watch models, kernels, requests and queues", (
        ("dlim top", "scroll with arrows, quit with q"),)),
    DlimCommand("debug", "DIR", "call a kernel on this machine, without a server", (
        ("dlim debug ./digits --input input.json", "start the kernel, and give it 1 batch"),
        ("dlim debug ./digits --input 1.json --input 2.json", "a batch of 2 tasks"),
    ), 1, 1, (_own("--input", "file with the body of a request; several make a batch of 1 task each, and one a batch "
                   "of 5 tasks; default: example.json or input.json of the folder", "FILE")._replace(multiple=True),
              KERNEL_TYPE)),
    DlimCommand("model traffic", "NAME REVISION=PART...", "divide the requests between revisions", (
        ("dlim model traffic digits 3=90 4=10", "10 % of the requests go to revision 4"),), 2, MANY),
    DlimCommand("model promote", "NAME[:VERSION]", "send all requests to a revision; put a saved model into a space", (
        ("dlim model promote digits --revision 4", "revision 4 gets all requests"),
        ("dlim model promote digits --space production", "put the saved model into a space"),
    ), 1, 1, (_own("--revision", "revision that gets all requests", "N", kind=Form.POSITIVE),
              _own("--space", "space of the model store", "SPACE"))),
    DlimCommand("model rollback", "NAME", "send all requests to the previous revision", (
        ("dlim model rollback digits", "no request fails"),), 1, 1),
    DlimCommand("model share", "NAME [USER...]", "let other users send requests to a model", (
        ("dlim model share digits ada bob", "only these users"),
        ("dlim model share digits --all", "all users"),
        ("dlim model share digits", "no other user"),
    ), 1, MANY, (_own("--all", "all users"),)),
    DlimCommand("model save", "EXEC", "save the result of a job as a model of the model store", (
        ("dlim model save last --name digits", "the model that your newest job trained"),), 1, 1,
        (NAME, _own("--path", "file or folder of the result; .: the whole result; default: the files that serving "
                              "needs", "PATH"))),
    DlimCommand("model saved", "[NAME[:VERSION]]", "list the saved models, or show what a deployment of one uses", (
        ("dlim model saved", "names, versions and their jobs"),
        ("dlim model saved digits:2", "kernel, weights and class of a deployment, and all in the files"),
    ), 0, 1),
    DlimCommand("model unsave", "NAME[:VERSION]", "delete a model of the model store; deployed models stay", (
        ("dlim model unsave digits:1", "version 1"), ("dlim model unsave digits", "all versions"),
    ), 1, 1, (FORCE,), destroys=True),
    DlimCommand("model readme", "NAME", "show the README of a model", (("dlim model readme digits", "as text"),), 1, 1),
    DlimCommand("completion", "SHELL", "print the completion script for bash, zsh or fish", (
        ('eval "$(dlim completion bash)"', "complete words in this shell; also in ~/.bashrc"),), 1, 1),
)
BY_COMMAND: dict[str, DlimCommand] = {command.name: command for command in COMMANDS}
#: Commands whose first operand is the name of a model.
OF_MODELS = frozenset(command.name for command in COMMANDS
                      if command.operands.startswith("NAME") and not command.name.startswith("runtime"))
#: Words that are not commands → the command that is probably meant.
SYNONYMS: dict[str, str] = {
    **dict.fromkeys(("list", "ls", "models", "ps"), "model list"),
    **dict.fromkeys(("deploy", "push", "upload", "create", "publish"), "model deploy"),
    **dict.fromkeys(("start",), "model start"), **dict.fromkeys(("stop",), "model stop"),
    **dict.fromkeys(("undeploy", "delete", "rm", "remove", "undelpoy"), "model undeploy"),
    **dict.fromkeys(("view", "status", "show", "get", "describe"), "model view"),
    **dict.fromkeys(("viewprofile", "profile"), "model viewprofile"), "updateprofile": "model updateprofile",
    **dict.fromkeys(("runtimes",), "runtime list"), **dict.fromkeys(("promote",), "model promote"),
    **dict.fromkeys(("rollback",), "model rollback"), **dict.fromkeys(("traffic",), "model traffic"),
    **dict.fromkeys(("share",), "model share"), **dict.fromkeys(("save",), "model save"),
    **dict.fromkeys(("login", "logon", "auth", "token", "server"), "config"),
    **dict.fromkeys(("serve", "up"), "run"), **dict.fromkeys(("log", "tail"), "logs"),
    **dict.fromkeys(("infer", "predict", "call", "request", "send", "test"), "invoke"),
    **dict.fromkeys(("explain",), "why"), **dict.fromkeys(("monitor", "watch"), "top"),
}
#: Second words of `model` and `runtime` that are not commands → the command that is probably meant.
SECOND = {
    **dict.fromkeys(("ls", "get", "ps"), "list"), **dict.fromkeys(("update", "redeploy", "create", "push"), "deploy"),
    **dict.fromkeys(("delete", "remove", "rm", "undelpoy", "undeploi"), "undeploy"),
    **dict.fromkeys(("show", "status", "describe", "info"), "view"), "profile": "viewprofile",
    **dict.fromkeys(("setprofile", "editprofile", "changeprofile"), "updateprofile"),
}
SECOND_OF_RUNTIMES = {
    **dict.fromkeys(("ls", "get"), "list"), **dict.fromkeys(("show", "describe"), "view"),
    **dict.fromkeys(("add", "new"), "create"), **dict.fromkeys(("remove", "rm"), "delete"),
    **dict.fromkeys(("change", "edit", "replace"), "update"),
}


def options_of(command: DlimCommand | None) -> tuple[Option, ...]:
    """Return all options of a command; without a command, those of every command. Its own precede the others."""
    own = command.options if command is not None else ()
    return (*own, *COMMON)


def option_of(command: DlimCommand | None, spelling: str) -> Option | None:
    """Return the option of a command with this exact spelling, or None."""
    return next((one for one in options_of(command) if spelling in (one.name, *one.aliases)), None)
