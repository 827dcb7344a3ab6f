"""`dlim top`: the models, their kernels, requests and queues."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from dlicmd.cli.render import emit, emit_value
from dlicmd.cli.session import Session
from dlicmd.cli.show.table import Column, table
from dlicmd.cli.show.top import TopSection
from dlicmd.contract import dlim
from dlicmd.contract.exits import Exit
from dlicmd.contract.reading import number, objects, words
from dlicmd.sdk.client import Client
from dlicmd.sdk.errors import NoSuchModel
from dlicmd.sdk.messages import one_line
from dlicmd.sdk.model_objects import DeployedModel, ServingState

_MODEL, _STATE = "model", "state"
_TOP = (_MODEL, _STATE, "kernels", "busy kernels", "queue", "requests/s", "clients", "user", "why")
_COLUMNS = {_MODEL: (
    Column(_MODEL, style=lambda _: "bold"),
    Column(_STATE, style=lambda text: {dlim.STARTED: "green", dlim.FAILED_STATE: "red"}.get(text, "yellow")),
    Column("kernels"), Column("busy kernels", 0, 2), Column("queue"), Column("requests/s"), Column("clients", 0, 3),
    Column("user", 8, 4), Column("why", 20, 1),
)}
_MODELS = "models"


def top(session: Session) -> int:
    """Print the models that serve; on a terminal, refresh them in place until Ctrl-C."""
    client, output = session.client, session.output
    found = read_top(client)
    if output.is_data:
        emit_value(found[_MODELS], output)
    elif output.form or not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        emit("\n\n".join([headline(found), *(table(part.rows, part.columns) for part in sections(found) if part.rows)]))
    else:
        from dlicmd.cli.show.top_live import TopLayout, watch  # only for a terminal

        patient = client.impatient()
        watch(found, lambda: read_top(patient), TopLayout(headline, sections, _COLUMNS))
    return Exit.DONE


def read_top(client: Client) -> dict[str, Any]:
    """Return the models, each with what it does now if it is started."""
    rows = []
    for model in client.models():
        row = {**model.json}
        if model.is_started:
            try:
                row[dlim.INSTANCE] = client.serving(model.name).json
            except NoSuchModel:
                continue  # it was deleted in the meantime
        rows.append(row)
    return {_MODELS: rows}


def headline(view: Mapping[str, Any]) -> str:
    """Return `2 models: 1 started; 3 kernels; waiting requests: 4; 12.5 requests/s`."""
    rows = [_top_row(one) for one in objects(view.get(_MODELS))]
    started = sum(row[_STATE] in (dlim.STARTED, dlim.STARTING) for row in rows)

    def total(name: str) -> float:
        return sum(number(row[name]) or 0.0 for row in rows)

    kernels = total("kernels")
    return one_line(f"{len(rows)} model{'' if len(rows) == 1 else 's'}: {started} started; {kernels:.0f} "
                    f"kernel{'' if kernels == 1 else 's'}; waiting requests: {total('queue'):.0f}; "
                    f"{total('requests/s'):.1f} requests/s")


def sections(view: Mapping[str, Any]) -> list[TopSection]:
    """Return the models as rows of text, the started ones first."""
    rows = [_top_row(one) for one in objects(view.get(_MODELS))]
    return [TopSection(_TOP, sorted(rows, key=lambda row: (row[_STATE] == dlim.STOPPED, row[_MODEL])))]


def _top_row(found: Mapping[str, Any]) -> dict[str, str]:
    model, serving = DeployedModel(dict(found)), ServingState(found.get(dlim.INSTANCE) or {})
    is_on = bool(serving.replicas)
    queue = sum(one.pending or 0 for one in serving.replicas)
    return {
        _MODEL: model.name, _STATE: model.state or (serving.state if serving.json else dlim.STOPPED),
        "kernels": str(len(serving.kernels)) if is_on else "",
        "busy kernels": str(sum(bool(one.running) for one in serving.kernels)) if is_on else "",
        "queue": str(queue) if is_on else "",
        "requests/s": f"{sum(one.requests_per_second or 0.0 for one in serving.replicas):.1f}" if is_on else "",
        "clients": str(sum(one.clients or 0 for one in serving.replicas)) if is_on else "",
        "user": words(model.creator), "why": model.message or serving.message,
    }
