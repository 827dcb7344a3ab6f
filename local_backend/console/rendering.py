"""Makes pages of templates. Every text is escaped; a page has no script and no style of its own."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from starlette.requests import Request
from starlette.responses import HTMLResponse

from dlicmd.contract import states
from dlicmd.contract.data_sources import ACCESS, CONNECTION, ID, LOCATION, NAME, PATH, PATHS, STREAM, VOLUME
from dlicmd.contract.program_kinds import FRAMEWORKS
from dlicmd.contract.verbs import DDP, ELASTIC, SINGLE
from local_backend.api.depends import CALLER, TOKEN
from local_backend.console import places
from local_backend.console.assets import asset_url
from local_backend.console.sessions import csrf_of
from local_backend.services.object_words import in_object_words

_FOLDER = Path(__file__).parent / "templates"
#: Only files of this server; no plugins, no frames, no base address, forms to this server alone.
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'self'; "
        "frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
#: Framework of a submission → how pages name it.
FRAMEWORK_WORDS: Mapping[str, str] = {
    FRAMEWORKS[ELASTIC]: "PyTorch, elastic (FabricModel)", FRAMEWORKS[DDP]: "PyTorch, distributed (DDP)",
    FRAMEWORKS[SINGLE]: "PyTorch, one process",
}
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
#: Numbers outside of these are shown with an exponent.
_SMALLEST, _LARGEST = 1e-4, 1e15
_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_DIRECTION = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def page(request: Request, template: str, status: int = 200, **values: Any) -> HTMLResponse:
    """Return a page, or a part of one, made of a template."""
    text = _environment().get_template(template).render(**_about(request), **{"status": status, **values})
    return HTMLResponse(text, status, HEADERS)


def template(name: str) -> Template:
    """Return a template, for parts of pages that are the same for many calls."""
    return _environment().get_template(name)


def _about(request: Request) -> dict[str, Any]:
    """Return what every page knows about its call."""
    caller, token = request.scope.get(CALLER), request.scope.get(TOKEN)
    path = str(request.scope["path"])
    return {
        "caller": caller,
        "csrf": csrf_of(token) if token else "",
        "path": path,
        "sections": [one for one in places.SECTIONS if caller is not None and (caller.admin or not one.admin)],
        "here": places.current(path),
    }


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(_FOLDER), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, auto_reload=False,
    )
    made.filters.update(
        bytes=shown_bytes, count=shown_count, duration=shown_duration, iso=iso, number=shown_number, moment=moment,
        state_class=state_class, state_word=state_word, data_source=shown_source, hardware=shown_hardware,
        in_order=in_order, object_words=in_object_words,
    )
    made.globals.update(asset=asset_url, places=places, frameworks=FRAMEWORK_WORDS)
    return made


def in_order(text: str) -> str:
    """Return the text of a file with marks in place of the characters that change the order of the others. Code of
    another user could otherwise look like code that does something else (CVE-2021-42574)."""
    return _DIRECTION.sub("\N{REPLACEMENT CHARACTER}", text)


def iso(seconds: float) -> str:
    """Return epoch seconds as an ISO time in UTC."""
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def moment(seconds: float) -> str:
    """Return epoch seconds as the time of the server, with its zone. The browser shows its own zone instead."""
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def shown_duration(seconds: float | None) -> str:
    """Return a duration in its two largest units: `2 h 5 min`. Empty for None."""
    if seconds is None:
        return ""
    whole = max(0, int(seconds))
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE} s"
    if whole < _DAY:
        return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE} min"
    return f"{whole // _DAY} d {whole % _DAY // _HOUR} h"


def shown_number(value: object) -> str:
    """Return a number with 5 significant digits of a fraction and groups of three digits, as charts show it too
    (console.js); any other value as text. Empty for None."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    size = abs(value)
    if math.isfinite(value) and size < _LARGEST and value == int(value):
        return shown_count(value)
    if not _SMALLEST <= size < _LARGEST:
        return re.sub(r"e([+-])0+", r"e\1", f"{value:.5g}")
    digits, point, rest = format(Decimal(f"{value:.5g}"), "f").partition(".")
    return f"{_grouped(digits)}{point}{rest}"


def shown_count(value: float) -> str:
    """Return a whole number with spaces between groups of three digits."""
    return _grouped(f"{value:.0f}")


def _grouped(digits: str) -> str:
    return re.sub(r"\B(?=(\d{3})+$)", "\u202f", digits)


def shown_bytes(value: float) -> str:
    """Return a size in bytes in the unit that fits."""
    amount, unit = float(value), _UNITS[0]
    for unit in _UNITS:
        if amount < 1024 or unit == _UNITS[-1]:
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"


def shown_source(source: Any) -> str:
    """Return a data source as a line for people: `folder mnist`, `volume images, folder train`."""
    place = source.get(LOCATION) or {} if isinstance(source, dict) else {}
    named = place.get(PATHS) or place.get(PATH) or ""
    path = ", ".join(map(str, named)) if isinstance(named, list) else str(named)
    if not isinstance(source, dict) or not isinstance(place, dict):
        return json.dumps(source, ensure_ascii=False)
    reference = source.get(CONNECTION)
    of = f"connection {reference.get(NAME) or reference.get(ID)}" if isinstance(reference, dict) else ""
    others = [f"{key} {value}" for key, value in place.items() if key not in (PATHS, PATH, VOLUME)]
    parts = [of, f"storage volume {place[VOLUME]}" if VOLUME in place else "", *others,
             f"{_word(path, of)} {path}" if path else "" if of or VOLUME in place else "the data folder of the server",
             {STREAM: "as a stream", "download": "downloaded"}.get(str(source.get(ACCESS)), "")]
    return ", ".join(filter(None, parts))


def _word(path: str, connection: str) -> str:
    """Return the word for paths on the server by their form. A connection can give a meaning of its own to a path."""
    last = path.rstrip("/").rpartition("/")[2]
    if connection or ", " in path or "*" in last:
        return "path" if connection else "paths"
    return "file" if "." in last.strip(".") and not path.endswith("/") else "folder"


def shown_hardware(spec: Mapping[str, Any]) -> str:
    """Return a hardware specification as a line for people."""
    nodes = spec.get("nodes")
    gpus = (nodes.get("gpu") or {}).get("num_gpu") if isinstance(nodes, dict) else None
    memory = (nodes.get("mem") or {}).get("size") if isinstance(nodes, dict) else None
    parts = [f"{gpus} GPU{'' if str(gpus) == '1' else 's'}" if gpus else "", f"{memory} of memory" if memory else ""]
    return ", ".join(filter(None, parts)) or json.dumps(spec, ensure_ascii=False)


_CLASSES: Mapping[str, str] = {
    states.SUBMITTED: "waits", states.PENDING: "waits", states.PENDING_JOB: "waits", states.LAUNCHING: "runs",
    states.RUNNING: "runs", states.RECOVERING: "runs",
    states.FINISHED: "good", states.ERROR: "bad", states.KILLED: "ended",
    # Of searches and experiments; of models and their revisions.
    "FAILED": "bad", "STOPPED": "ended", "NOTRUN": "waits", "WAITING": "waits",
    "starting": "waits", "serving": "runs", "draining": "waits", "failed": "bad", "stored": "ended",
}


def state_class(state: str) -> str:
    """Return the class of a state, which gives it a color. The word is always shown, too."""
    return _CLASSES.get(state, "ended")


_WORDS: Mapping[str, str] = {states.PENDING: "pending", states.PENDING_JOB: "pending", states.LAUNCHING: "starting",
                              "NOTRUN": "not submitted", "WAITING": "resting", "stored": "stopped"}


def state_word(state: str) -> str:
    """Return a state as pages show it."""
    return _WORDS.get(state, state.lower())


def now() -> float:
    """Return the present time in epoch seconds."""
    return time.time()
