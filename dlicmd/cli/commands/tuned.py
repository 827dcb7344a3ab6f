"""What a search found: the curve of its best value, and its experiments in a file."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

from dlicmd.cli import export
from dlicmd.cli.console import paint
from dlicmd.cli.render import emit, emit_value, scalar, show_rows
from dlicmd.cli.session import Session
from dlicmd.cli.show.chart import chart
from dlicmd.cli.show.panels import colored, has_braille
from dlicmd.cli.show.search import outcome, steps
from dlicmd.cli.show.table import cut
from dlicmd.contract import wire
from dlicmd.contract.exits import Exit
from dlicmd.contract.left_out import IGNORE_FILE
from dlicmd.sdk.errors import DlicmdError, UsageProblem
from dlicmd.sdk.experiments import table
from dlicmd.sdk.messages import inert, info, one_line

EXPORT = "--hpo-export"
_COLUMNS = ("experiment", "value", "best")
#: Rows of a chart: the fewest, the most. Rows of axis, title, facts and prompt.
_LEAST_ROWS, _MOST_ROWS, _OTHER_ROWS = 5, 20, 6


def plot(session: Session) -> int:
    """Draw the best value of a search over its experiments; as data or in columns, print the values. Raises
    DlicmdError when no experiment has finished."""
    if session.line.many("--metric"):
        raise UsageProblem("--metric selects metrics of jobs; a search has the metric of its definition")
    if (file := session.line.text(export.OPTION)) is not None:
        return _export(session, session.operand, file, export.OPTION)
    found = session.client.search(session.operand)
    rows = steps(found)
    if session.output.form:
        show_rows([{name: row[name] for name in _COLUMNS} for row in rows], session.output, _COLUMNS,
                  lambda row, name: scalar(row.get(name)))
        return Exit.DONE
    if not rows:
        raise DlicmdError(f"nothing to plot: no experiment of {found.name} has finished")
    size = shutil.get_terminal_size()
    height = min(_MOST_ROWS, max(_LEAST_ROWS, size.lines - _OTHER_ROWS))
    title = one_line(f"best {found.metric or 'value'} of {found.name}")
    line = [(float(row["experiment"]), float(row["best"])) for row in rows]
    drawn = chart([line], size.columns, height, "experiment", braille=has_braille(1), stepped=True, painted=colored)
    emit("\n".join([paint(cut(title, size.columns), "bold"), *drawn, one_line(outcome(found))]))
    return Exit.DONE


def export_file(session: Session) -> int:
    """Write the experiments of a search to a file."""
    name, file = session.operands
    return _export(session, name, file, EXPORT)


def _export(session: Session, name: str, file: str, option: str) -> int:
    export.checked(file, option)
    made = table(session.client.search(name))
    export.write(file, made.rows, made.columns, option)
    if session.output.is_data:
        emit_value({wire.PATH: file, wire.ROWS: len(made.rows)}, session.output)
    else:
        emit(one_line(f"wrote {len(made.rows)} experiments to {file}"))
        _mind_uploads(Path(file))
    return Exit.DONE


def _mind_uploads(file: Path) -> None:
    """Say that the next submission of a folder with programs sends the file, too, unless the ignore rules name it."""
    folder = file.absolute().parent
    try:
        ignored = (folder / IGNORE_FILE).read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        ignored = []
    if any(folder.glob("*.py")) and not {file.name, f"*{file.suffix}"} & {line.strip() for line in ignored}:
        info(f"{inert(file.name)} is in a folder with programs, which the next job or search of this folder sends; to "
             f"leave it out: echo {shlex.quote(inert(file.name))} >> {IGNORE_FILE}")
