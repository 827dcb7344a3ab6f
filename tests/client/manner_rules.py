"""The rules by which the original client printed, written once more for the tests, and its commands and options."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

#: COLUMNS of the test user.
WIDTH = 100
SEPARATOR = "=" * WIDTH + "\n"
DENIED = "Authentication error. The request was denied.\n"

#: All commands of the original client.
COMMANDS = frozenset({
    "--help", "--logon", "--logoff", "--status", "--dl-frameworks", "--exec-start", "--exec-get-all", "--exec-get",
    "--exec-stop", "--exec-delete", "--exec-delete-all", "--exec-deploy", "--exec-launcherlogs", "--exec-outlogs",
    "--exec-errlogs", "--exec-trainlogs", "--exec-trainoutlogs", "--exec-trainerrlogs", "--exec-trainresult",
    "--app-get-all", "--app-history-get-all", "--app-get", "--app-wait", "--app-stop", "--app-stop-all",
    "--app-analyze", "--app-launcherlogs", "--app-outlogs", "--app-errlogs", "--rp-get-all", "--rp-get", "--rp-delete",
    "--pj-get-all", "--k8s-obj-get-all", "--k8s-obj-get", "--hpo-start", "--hpo-get-all", "--hpo-get", "--hpo-stop",
    "--hpo-restart", "--hpo-delete", "--hpo-delete-all", "--hpo-algorithm-get-all", "--hpo-algorithm-get",
    "--hpo-algorithm-delete",
})
#: Options of the original client that stay with the client, with a value.
CLIENT_OPTIONS = frozenset({
    "--rest-host", "--master-host", "--rest-port", "--dli-rest-port", "--username", "--password", "--jwt-token",
    "--query-args", "-o", "--output", "--app-search-start", "--app-search-length",
})
#: Options of `--exec-deploy`.
DEPLOY_OPTIONS = frozenset({"--name", "--runtime", "--kernel", "--weight", "--tag", "--attributes", "--envs"})
#: Options of a submission that travel to the server unchanged, with a value; None for a flag.
SENT_OPTIONS: dict[str, str | None] = {
    "--debug-level": "warn", "--user-cmd": None, "--pbmodel-name": "VGG16", "--pbmodel-cmd": "train", "--appName": "a1",
    "--submit-user": "bob", "--consumer": "/plan/x", "--ig": "dli-edt", "--conda-home": "/opt/conda",
    "--conda-env-name": "env1", "--conda-env-yaml": "env.yaml", "--conda-package": "package.tar",
    "--cs-datastore-meta": "type=fs,data_path=mnist", "--numWorker": "2", "--workerDeviceType": "gpu",
    "--workerDeviceNum": "1", "--workerMemory": "8g", "--workerCPULimit": "0.5", "--workerGPULimit": "0.25",
    "--workerMemoryLimit": "2g", "--numPs": "1", "--numDriver": "1", "--driverDeviceType": "cpu",
    "--driverDeviceNum": "1", "--driverMemory": "2g", "--driverCPULimit": "1", "--driverGPULimit": "1",
    "--driverMemoryLimit": "1g", "--sc-runasuser": "1000", "--sc-runasgroup": "1000", "--sc-fsgroup": "1000",
    "--cs-rmq-meta": "host=h,user=u", "--cs-url-meta": "https://h/x", "--cs-url-bearer": "abc",
    "--msd-env": "A=1", "--msd-attr": "a=1", "--msd-label": "l=1", "--msd-image-name": "img:1",
    "--msd-image-pull-secret": "s", "--msd-image-pull-policy": "Always", "--msd-priority": "7000",
    "--msd-task0-node-selector": "k=v", "--msd-task12n-node-selector": "k=v", "--msd-pending-timeout": "60",
    "--lsf-gpu-syntax": "num=1", "--msd-podaffinity-rule": "preferred",
    "--msd-podaffinity-topology-key": "kubernetes.io/hostname", "--msd-pack-id": "p1",
    # The first product generation
    "--gpuPerWorker": "1", "--edt-options": "maxWorkers=4", "--python-version": "3.6", "--exclusive": None,
    "--accelerators": "2", "--mpiarg": "x", "--msd-task12n-device-type": "cpu",
}
#: Options of a submission that the client changes or sends elsewhere.
CHANGED_OPTIONS = frozenset({"--model-main", "--model-dir", "--data-source"})
#: All options of the original client.
OPTIONS = frozenset({
    "--rest-host", "--master-host", "--rest-port", "--dli-rest-port", "--username", "--password", "--jwt-token",
    "--debug-level", "--query-args", "-o", "--output", "--app-search-start", "--app-search-length", "--model-main",
    "--model-dir", "--user-cmd", "--pbmodel-name", "--pbmodel-cmd", "--appName", "--submit-user", "--consumer", "--ig",
    "--conda-home", "--conda-env-name", "--conda-env-yaml", "--conda-package", "--cs-datastore-meta", "--data-source",
    "--numWorker", "--workerDeviceType", "--workerDeviceNum", "--workerMemory", "--workerCPULimit", "--workerGPULimit",
    "--workerMemoryLimit", "--numPs", "--numDriver", "--driverDeviceType", "--driverDeviceNum", "--driverMemory",
    "--driverCPULimit", "--driverGPULimit", "--driverMemoryLimit", "--sc-runasuser", "--sc-runasgroup", "--sc-fsgroup",
    "--cs-rmq-meta", "--cs-url-meta", "--cs-url-bearer", "--msd-env", "--msd-attr", "--msd-label", "--msd-image-name",
    "--msd-image-pull-secret", "--msd-image-pull-policy", "--msd-priority", "--msd-task0-node-selector",
    "--msd-task12n-node-selector", "--msd-pending-timeout", "--lsf-gpu-syntax", "--msd-podaffinity-rule",
    "--msd-podaffinity-topology-key", "--msd-pack-id", "--gpuPerWorker", "--edt-options", "--python-version",
    "--exclusive", "--accelerators", "--mpiarg", "--msd-task12n-device-type", "--name", "--runtime", "--kernel",
    "--weight", "--tag", "--attributes", "--envs",
})


def pretty(value: object, indent: int = 2) -> str:
    """Return a JSON value as the original client printed it."""
    return json.dumps(value, indent=indent) + "\n"


def table(columns: str, *rows: Sequence[object]) -> str:
    """Return a table of rows of cells; `columns` are the titles with blanks between them."""
    lines = [["", *columns.split()]]
    lines += [[str(at), *("n/a" if cell is None else str(cell) for cell in row)] for at, row in enumerate(rows, 1)]
    widths = [len(str(len(rows))) + 2]
    for column in range(1, len(lines[0])):
        last = column == len(lines[0]) - 1
        widths.append(max(len(line[column]) for line in lines) + (0 if last else 2))
    text = ["".join(cell + " " * (width - len(cell)) for cell, width in zip(line, widths, strict=True))
            for line in lines]
    border = "-" * min(WIDTH, sum(widths))
    return "\n".join([border, *text, border]) + "\n"


def sub_table(indent: str, *rows: Sequence[object]) -> str:
    """Return a table without border, header and numbers, as it is below a search or a plan."""
    cells = [[indent + str(row[0]), *("n/a" if cell is None else str(cell) for cell in row[1:])] for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    return "".join("  ".join(cell + " " * (width - len(cell)) for cell, width in zip(row, widths, strict=True)) + "\n"
                   for row in cells)


def utc(seconds: float) -> str:
    """Return epoch seconds as `2026-11-22 14:57:37`."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))


def iso(seconds: float) -> str:
    """Return epoch seconds as servers send times of execs."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def log(title: str, text: str) -> str:
    """Return one log under its heading."""
    return f"{SEPARATOR}{title}\n{text}\n"
