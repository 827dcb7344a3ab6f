"""The losses of an exec as a curve on the terminal."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Mapping
from itertools import groupby
from typing import Any

from dlicmd.cli.commands.logs import tasks
from dlicmd.cli.console import paint
from dlicmd.cli.render import emit, scalar, show_rows
from dlicmd.cli.session import Session
from dlicmd.cli.show.chart import MARK, STAR, chart
from dlicmd.cli.show.execs import application_id
from dlicmd.contract import wire
from dlicmd.contract.exits import Exit
from dlicmd.contract.trainlog import TEST, TRAIN, Losses, losses, merged, recorded
from dlicmd.sdk.client import Client
from dlicmd.sdk.errors import Denied, DlicmdError, NoSuchExec, ServerError
from dlicmd.sdk.messages import debug, info
from dlicmd.sdk.transport import Answer

SERIES = "series"
_LINE = "⣿"
#: Rows of a chart: the fewest, the most, and the rows of the terminal that axis, legend and prompt need.
_LEAST_ROWS, _MOST_ROWS, _OTHER_ROWS = 4, 20, 4
_COLOURS = {TRAIN: "cyan", TEST: "yellow"}


def plot(session: Session) -> int:
    """Draw the losses of an exec; as data or in columns, print the points. Raises DlicmdError when there are none."""
    exec_id, output = session.operand, session.output
    found = _losses(session.client, exec_id)
    if not (found.train or found.test):
        lost = (f"none of its {found.lost} losses is a finite number" if found.lost else
                "its logs and recorded metrics contain no losses (yet)")
        raise DlicmdError(f"nothing to plot for {exec_id}: {lost}")
    if found.lost:
        info(f"left out {found.lost} losses of {exec_id} that are not finite numbers")
    if output.form:
        points = [{SERIES: name, wire.STEP: step, wire.LOSS: loss}
                  for name, line in ((TRAIN, found.train), (TEST, found.test)) for step, loss in line.items()]
        show_rows(points, output, (SERIES, wire.STEP, wire.LOSS), lambda row, name: scalar(row.get(name)))
    else:
        emit(_drawn(found))
    return Exit.DONE


def _losses(client: Client, exec_id: str) -> Losses:
    """Return the losses that the program recorded as metrics, or else those in its logs. For an elastic exec, the logs
    come first, because they cover the whole job."""
    found = client.exec(exec_id)
    looks: list[Callable[[], Losses]] = [
        lambda: _recorded(client, exec_id), lambda: _logged(client, exec_id, found),
    ]
    lost = 0
    for look in reversed(looks) if found.get(wire.ELASTIC) is True else looks:
        seen = look()
        if seen.train or seen.test:
            return seen
        lost += seen.lost
    return Losses({}, {}, lost)


def _recorded(client: Client, exec_id: str) -> Losses:
    """Return the recorded losses, the mean of several processes; none if the server does not offer metrics."""
    if wire.EXT_METRICS not in client.extensions():
        return Losses({}, {})
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


def _drawn(found: Losses) -> str:
    """Return the chart, as large as the terminal allows, and its legend."""
    size = shutil.get_terminal_size()
    height = min(_MOST_ROWS, max(_LEAST_ROWS, size.lines - _OTHER_ROWS))
    braille = _has_braille()
    rows = chart(found.train, found.test, size.columns, height, braille)
    signs = {TRAIN: _LINE if braille else STAR, TEST: MARK}
    named = [(name, line) for name, line in ((TRAIN, found.train), (TEST, found.test)) if line]
    legend = [paint(f"{signs[name]} {name} {line[max(line)]:.4g}", _COLOURS[name]) for name, line in named]
    return "\n".join([*map(_painted, rows[:height]), *rows[height:], "  ".join(["loss over steps:", *legend])])


def _painted(row: str) -> str:
    row = re.sub("[\u2801-\u28ff*]+", lambda found: paint(found[0], _COLOURS[TRAIN]), row)
    return re.sub(f"{MARK}+", lambda found: paint(found[0], _COLOURS[TEST]), row)


def _has_braille() -> bool:
    """Return whether standard output can encode the characters."""
    try:
        _LINE.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
