"""A search for hyper-parameters for people: the page about it, its table of experiments, and lines while it runs."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TextIO

from dlicmd.cli.console import paint
from dlicmd.cli.show.numbers import shown
from dlicmd.cli.show.table import Column, ranked
from dlicmd.contract import states, wire
from dlicmd.contract.exits import Exit
from dlicmd.sdk import hints
from dlicmd.sdk.experiments import EXEC, VALUE, best_first, best_so_far, table
from dlicmd.sdk.messages import inert, one_line
from dlicmd.sdk.search_objects import Experiment, Search

_STYLES = {"RUNNING": "green", "FINISHED": "", "FAILED": "red", "STOPPED": "yellow", "KILLED": "yellow",
           "ERROR": "red", "SUBMITTED": "cyan", "NOTRUN": "dim", "WAITING": "cyan"}
#: Columns of the longest bar of an importance, most experiments of a page, and most of those that say why they failed.
_BAR, MOST, _REASONS = 24, 20, 5


def exit_code(found: Search) -> int:
    """Return dlicmd's exit code for a search that has ended."""
    return {states.FINISHED: Exit.DONE, states.STOPPED: Exit.JOB_KILLED}.get(found.state, Exit.JOB_ERROR)


def outcome(found: Search) -> str:
    """Return how a search ended or how it goes, in one line."""
    parts = [f"{found.name} {found.state or states.SUBMITTED}", _counts(found)]
    if (best := found.best) is not None:
        parts.append(f"best {_value(found, best)} of experiment {best.id} ({settings(best)})")
    if found.message:
        parts.append(found.message)
    return one_line("; ".join(filter(None, parts)))


def settings(one: Experiment) -> str:
    """Return the parameters of an experiment: `lr=0.01 batch=32`."""
    return " ".join(f"{name}={_text(value)}" for name, value in one.parameters.items())


def _text(value: object) -> str:
    return shown(value) if isinstance(value, float) else str(value)


def _value(found: Search, one: Experiment) -> str:
    value = one.metric_val
    return f"{found.metric} {'n/a' if value is None else shown(value)}".strip()


def _counts(found: Search) -> str:
    known = ((found.complete, "ended"), (found.running, "running"), (found.failed, "failed"))
    parts = [f"{count:,} {what}" for count, what in known if count]
    return ", ".join([*([found.progress] if found.progress else []), *parts])


def page(
    found: Search, importances: Mapping[str, float], width: int | None, best_has_files: bool = True
) -> list[str]:
    """Return the facts about a search, its best experiment, the importances of its parameters, its experiments, and the
    commands that are useful next. For `best_has_files` see `next_commands`."""
    head = [paint(one_line(found.name), "bold"), paint(one_line(found.state), _STYLES.get(found.state) or "bold"),
            one_line(_counts(found))]
    way = "maximize" if found.is_maximized else "minimize"
    facts = [("metric", f"{way} {found.metric}" if found.metric else ""), ("algorithm", found.algorithm),
             ("submitted", " by ".join(filter(None, (found.createtime, found.creator)))),
             ("took" if found.has_ended else "running for", found.duration), ("why", found.message)]
    if (best := found.best) is not None:
        facts += [("best", f"{_value(found, best)}, experiment {best.id}" + (f", job {best.app_id}" if best.app_id
                                                                               else "")),
                  ("with", settings(best))]
    facts.append(("not surpassed", f"experiments {', '.join(found.pareto)}" if found.pareto else ""))
    known = [(label, one_line(text)) for label, text in facts if text]
    lines = ["  ".join(filter(None, head)), *(paint(f"  {label}".ljust(17), "dim") + text for label, text in known)]
    if importances:
        lines += ["", paint("importance of the parameters", "bold"), *_bars(importances)]
    if found.experiments:
        lines += ["", *experiments(found, width, MOST)]
    return [*lines, "", paint(f"next: {'; '.join(next_commands(found, best_has_files))}", "dim")]


def reasons(found: Search) -> list[str]:
    """Return why a search is in its state: the server's message, and those of its first experiments that have one."""
    told = [f"{found.name} {found.state}: {found.message}" if found.message else outcome(found)]
    for one in [one for one in found.experiments if one.message][:_REASONS]:
        told.append(f"  experiment {one.id} {one.state}: {one.message}")
    return [*map(one_line, told), paint(f"next: {'; '.join(next_commands(found))}", "dim")]


def listing(searches: Sequence[Search], width: int | None) -> list[str]:
    """Return a table of searches, a line for each."""
    rows = [{"name": one.name, wire.STATE: one.state, wire.PROGRESS: one.progress,
             "best": "" if one.best is None else _value(one, one.best), "submitted": one.createtime,
             "took": one.duration} for one in searches]
    return ranked(rows, [
        Column("name"), Column(wire.STATE, style=lambda state: _STYLES.get(state, "")), Column(wire.PROGRESS),
        Column("best", 0, 1), Column("submitted", 0, 2), Column("took", 0, 3)], width)


def next_commands(found: Search, best_has_files: bool = True) -> list[str]:
    """Return the commands that are useful for a search in this state. `best_has_files` says whether the job of the best
    experiment has files to fetch."""
    if not found.has_ended:
        return [hints.command("--follow", found.name), hints.command("--hpo-stop", found.name)]
    told = [hints.command("--hpo-restart", found.name)] if found.state == states.STOPPED else []
    if (best := found.best) is not None and best.app_id and best_has_files:
        told.append(hints.command("--exec-trainresult", best.app_id))
    if found.best is not None:
        return [*told, hints.command("--hpo-plot", found.name)]
    failed = next((one.app_id for one in found.experiments if one.app_id and one.state == states.FAILED), None)
    return [*told, hints.command("--hpo-get", found.name) if failed is None else
            hints.command("--exec-trainlogs", failed)]


def _bars(importances: Mapping[str, float]) -> list[str]:
    longest = max(map(len, importances))
    most = max(*importances.values(), 1e-9)
    mark = "█" if (sys.stdout.encoding or "").lower().startswith("utf") else "#"
    return [f"  {one_line(name):<{longest}}  {share:6.1%}  {mark * round(share / most * _BAR)}".rstrip()
            for name, share in importances.items()]


def experiments(found: Search, width: int | None, most: int) -> list[str]:
    """Return a table of the experiments: those that go on, then the best values first, at most `most`."""
    made, metric = table(found), one_line(found.metric) or VALUE
    going_on = [row for row in made.rows if row[wire.STATE] in states.OPEN_EXPERIMENTS]
    ended = best_first(found, (row for row in made.rows if row[wire.STATE] not in states.OPEN_EXPERIMENTS))
    most_ended = max(1, most - min(len(going_on), most // 2))
    shown_rows = [*going_on[:most - min(len(ended), most_ended)], *ended[:most_ended]]
    optional = [wire.MESSAGE] if wire.MESSAGE in made.columns else []
    names = [wire.ID, wire.STATE, VALUE, *made.parameters, *optional, EXEC]
    rows = [{metric if name == VALUE else name: "" if row[name] is None else _text(row[name]) for name in names}
            for row in shown_rows]
    columns = [Column(wire.ID), Column(wire.STATE, style=lambda state: _STYLES.get(state, "")), Column(metric),
               *(Column(name, 8, 3 + at) for at, name in enumerate(made.parameters)),
               *(Column(name, 8, 1) for name in optional), Column(EXEC, 0, 2)]
    lines = ranked(rows, columns, width)
    more = len(made.rows) - len(shown_rows)
    export = hints.command("--hpo-export", found.name, "FILE.csv")
    return [*lines, *([paint(f"... and {more:,} more: {export}", "dim")] if more else [])]


class PlainSearch:
    """Prints a line for each experiment that starts or ends, on standard output; with `data_on_stdout`, on standard
    error."""

    def __init__(self, data_on_stdout: bool = False) -> None:
        self._out: TextIO = sys.stderr if data_on_stdout else sys.stdout
        self._known: dict[str, str] = {}
        self._state = ""

    def show(self, found: Search) -> None:
        """Print the lines for what is new."""
        best = {step.experiment.id: step for step in best_so_far(found)}
        if not found.has_ended:
            self._tell_state(found)
        for one in found.experiments:
            if self._known.get(one.id) == one.state or one.state == "NOTRUN":
                continue
            self._known[one.id] = one.state
            told = f"experiment {one.id} {one.state}"
            if one.id in best:
                step = best[one.id]
                told += f"; {_value(found, one)}; best so far {shown(step.best)} (experiment {step.leader.id})"
            elif one.state == states.WAITING and one.value is not None:
                told += f"; {_value(found, one)}"
            self._say("; ".join(filter(None, (told, settings(one), one.message))))
        self._tell_state(found)

    def _tell_state(self, found: Search) -> None:
        if found.state != self._state:
            self._state = found.state
            self._say(f"search {found.name} {found.state}")

    def _say(self, text: str) -> None:
        print(one_line(inert(text)), file=self._out, flush=True)

    def close(self) -> None:
        """End the view."""


def steps(found: Search) -> Sequence[dict[str, float | int]]:
    """Return the experiments that have finished as rows with their value and the best value until then."""
    return [{"experiment": int(one.experiment.id) if one.experiment.id.isdecimal() else place,
             "value": one.value, "best": one.best} for place, one in enumerate(best_so_far(found), 1)]
