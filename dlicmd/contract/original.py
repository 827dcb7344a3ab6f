"""The original client's command line: its options, their abbreviations, and the commands that never fail."""

from __future__ import annotations

from collections.abc import Sequence

from dlicmd.contract.argv import MAX_NUMBER, SUBMITTING, ArgvError
from dlicmd.contract.options import COMMAND_NAMES, FOLLOW, WAIT, Arity, Form, Option, option_named

#: Options of the original client. Its argument parser accepts every abbreviation that matches only one of them.
OPTIONS = (
    "--rest-host", "--master-host", "--rest-port", "--dli-rest-port", "--username", "--password", "--jwt-token",
    "--debug-level", "--query-args", "--output", "--model-main", "--model-dir", "--user-cmd", "--pbmodel-name",
    "--pbmodel-cmd", "--appName", "--submit-user", "--consumer", "--ig", "--conda-home", "--conda-env-name",
    "--conda-env-yaml", "--conda-package", "--cs-datastore-meta", "--numWorker", "--workerDeviceType",
    "--workerDeviceNum", "--workerMemory", "--workerCPULimit", "--workerGPULimit", "--workerMemoryLimit", "--numPs",
    "--numDriver", "--driverDeviceType", "--driverDeviceNum", "--driverMemory", "--driverCPULimit",
    "--driverGPULimit", "--driverMemoryLimit", "--sc-runasuser", "--sc-runasgroup", "--sc-fsgroup", "--cs-rmq-meta",
    "--cs-url-meta", "--cs-url-bearer", "--msd-env", "--msd-attr", "--msd-label", "--msd-image-name",
    "--msd-image-pull-secret", "--msd-image-pull-policy", "--msd-priority", "--msd-task0-node-selector",
    "--msd-task12n-node-selector", "--msd-pending-timeout", "--lsf-gpu-syntax", "--msd-podaffinity-rule",
    "--msd-podaffinity-topology-key", "--msd-pack-id", "--app-search-start", "--app-search-length",
)
#: Commands that exit with 0 although a call fails. Scripts read their sentences.
NEVER_FAIL = frozenset({
    "--exec-stop", "--exec-delete", "--app-stop", "--app-stop-all", "--app-wait", "--hpo-stop", "--hpo-delete",
})
#: Commands with the choice of `-o`. The other commands of the original client ignore it.
WITH_FORMATS = frozenset({
    "--dl-frameworks", "--exec-get-all", "--app-get-all", "--app-history-get-all", "--app-analyze", "--rp-get-all",
    "--pj-get-all", "--hpo-get-all", "--hpo-algorithm-get-all",
})
#: Short options. The value of the second may be in the same word.
_HELP, _FORMAT = "-h", "-o"
#: `--rest` abbreviates 2 options; the original client nevertheless took it for this one.
_HOST = {"--rest": "--rest-host"}
_OBJECT = "--k8s-obj-get"
_PREBUILT, _PREBUILT_COMMAND = "--pbmodel-name", "--pbmodel-cmd"
#: The most operands of a command.
_MOST = {Arity.MANY: MAX_NUMBER, Arity.TWO: 2}


class CheckFailed(ArgvError):
    """A command line that the original client refuses after its argument parser has accepted it."""


def spelled_out(words: Sequence[str]) -> list[str]:
    """Return the words of a command line for `parse_argv`: with each abbreviated option spelled out, and without words
    that the original client ignores, which are unknown words of a command that submits nothing.

    Words after `--` and values of options are returned unchanged. Raises ArgvError for an abbreviation that matches
    several options.
    """
    own = list(words[: words.index("--")] if "--" in words else words)
    command = next((name for name in (word.partition("=")[0] for word in own) if name in COMMAND_NAMES), None)
    submits = command in SUBMITTING
    found: list[str] = []
    option: Option | None = None
    left = 0  # words that the last option takes
    for word in own:
        name, equals, value = word.partition("=")
        if left and _is_value(word, option, command):
            found.append(word)
            left -= 1
            continue
        name = _meant(name, command)
        option = option_named(name, command)
        left = _taken(option, command) if option is not None and not equals else 0
        if option is None and not submits and word.startswith(_FORMAT):
            found += [_FORMAT, word.removeprefix(_FORMAT)]
        elif option is not None or submits or word == _HELP:
            found.append(name + equals + value)
    _check(command, found)
    return [*found, *words[len(own):]]


def _check(command: str | None, words: Sequence[str]) -> None:
    """Raise CheckFailed for a line that the original client refuses in words of its own."""
    if command == _OBJECT and _OBJECT in words and len(_operands(words, _OBJECT)) != 2:
        raise CheckFailed(f"{_OBJECT} needs a type and a name: {_OBJECT} TYPE NAME")
    names = {word.partition("=")[0] for word in words}
    if command in SUBMITTING and _PREBUILT in names and _PREBUILT_COMMAND not in names:
        raise CheckFailed(f"{_PREBUILT} needs a command for the model: {_PREBUILT_COMMAND} train")


def _taken(option: Option, command: str | None) -> int:
    """Return how many words an option or command takes at most."""
    if option in (FOLLOW, WAIT) and command is None:
        return 1
    return 0 if option.kind is Form.FLAG else _MOST.get(option.arity, 1)


def _is_value(word: str, option: Option | None, command: str | None) -> bool:
    """Return whether a word after an option is its value. The value of an option may begin with a dash, that of a
    command may not."""
    if option_named(word.partition("=")[0], command) is not None:
        return False
    return not word.startswith("-") or (option is not None and option.name not in COMMAND_NAMES)


def _operands(words: Sequence[str], command: str) -> list[str]:
    """Return the words after a command, up to the next option."""
    rest = words[words.index(command) + 1:]
    end = next((at for at, word in enumerate(rest) if word.startswith("-")), len(rest))
    return list(rest[:end])


def _meant(name: str, command: str | None) -> str:
    """Return the option that begins with `name`, or `name` if there is none."""
    if not name.startswith("--") or option_named(name, command) is not None:
        return name
    near = [option for option in OPTIONS if option.startswith(name)]
    if len(near) > 1 and name not in _HOST:
        raise ArgvError(f"ambiguous option: {name} could match {', '.join(near)}")
    return _HOST.get(name) or (near[0] if near else name)
