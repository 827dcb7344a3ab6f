"""The original client's command line: its options, their abbreviations, and the commands that never fail."""

from __future__ import annotations

from collections.abc import Sequence

from dlicmd.contract.argv import ArgvError
from dlicmd.contract.options import BY_NAME, Form

#: Options of the original client. Its argument parser accepts every beginning that names only one of them.
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


def spelled_out(words: Sequence[str]) -> list[str]:
    """Return the words of a command line with each abbreviated option spelled out. Words after `--`, values of options
    and names of other options are returned unchanged. Raises ArgvError for the beginning of several options."""
    found: list[str] = []
    takes_value = False
    for at, word in enumerate(words):
        if word == "--":
            return [*found, *words[at:]]
        name, equals, value = word.partition("=")
        if takes_value or not name.startswith("--") or name in BY_NAME:
            found.append(word)
        else:
            name = _meant(name)
            found.append(name + equals + value)
        option = BY_NAME.get(name)
        takes_value = not takes_value and not equals and option is not None and option.kind is not Form.FLAG
    return found


def _meant(name: str) -> str:
    """Return the option that begins with `name`, or `name` if there is none."""
    near = [option for option in OPTIONS if option.startswith(name)]
    if len(near) > 1:
        raise ArgvError(f"ambiguous option: {name} could match {', '.join(near)}")
    return near[0] if near else name
