"""The losses of an exec on a server that gives no curves: from recorded metrics, or from logs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from itertools import groupby
from typing import Any

from dlicmd.cli.commands.logs import tasks
from dlicmd.cli.show.execs import application_id
from dlicmd.contract import wire
from dlicmd.contract.trainlog import Losses, losses, merged, recorded
from dlicmd.sdk.client import Client
from dlicmd.sdk.errors import Denied, NoSuchExec, ServerError
from dlicmd.sdk.messages import debug
from dlicmd.sdk.transport import Answer


def logged(client: Client, found: Mapping[str, Any], offered: Collection[str]) -> Losses:
    """Return the losses that the program of an exec recorded as metrics, or else those in its logs. For an elastic
    exec, the logs come first, because they cover the whole job."""
    exec_id = str(found[wire.ID])
    looks: list[Callable[[], Losses]] = [lambda: _logged(client, exec_id, found)]
    if wire.EXT_METRICS in offered:
        looks.insert(1 if found.get(wire.ELASTIC) is True else 0, lambda: _recorded(client, exec_id))
    lost = 0
    for look in looks:
        seen = look()
        if seen.train or seen.test:
            return seen
        lost += seen.lost
    return Losses({}, {}, lost)


def _recorded(client: Client, exec_id: str) -> Losses:
    """Return the recorded losses, the mean of several processes."""
    files = groupby(client.metrics(exec_id), key=lambda found: found[0])
    return merged(recorded(record for _, record in records) for _, records in files)


def _logged(client: Client, exec_id: str, found: Mapping[str, Any]) -> Losses:
    """Return the losses in the program's own log, or in the output of its processes.

    For an elastic exec, the output of its workers comes first. Loggers of such programs record the sum of the batches'
    losses divided by the number of samples. The loss of a test is on another scale.
    """
    app_id = application_id(found)
    own = losses(_text(lambda: client.train_log(exec_id)))
    if app_id is None or ((own.train or own.test) and found.get(wire.ELASTIC) is not True):
        return own
    workers = _of_processes(client, app_id)
    return Losses(workers.train or own.train, own.test or workers.test, (workers if workers.train else own).lost)


def _of_processes(client: Client, app_id: str) -> Losses:
    applications = client.applications(app_id)
    paths = [task for _, task in tasks(applications[0])] if applications else []
    return merged(losses(_text(lambda: client.task_log(app_id, path, "stdout"))) for path in paths)  # noqa: B023


def _text(call: Callable[[], Answer]) -> str:
    """Return the text of a log; "" if the server has none."""
    try:
        return call().text()
    except (Denied, NoSuchExec):
        raise
    except ServerError as problem:
        if problem.status < 400:
            raise
        debug(str(problem))
        return ""
