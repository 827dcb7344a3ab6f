"""The options of `ls` about saved views: what a list shows, under a name."""

from __future__ import annotations

from collections.abc import Sequence

from dlicmd.cli.render import emit, emit_value
from dlicmd.cli.session import Session
from dlicmd.cli.show.values import METRIC, NamedValue
from dlicmd.contract import wire
from dlicmd.contract.metric_names import is_lower_better
from dlicmd.sdk.errors import NoSuchObject, UsageProblem
from dlicmd.sdk.messages import info, one_line
from dlicmd.sdk.objects import SavedView

VIEW, SAVE, DELETE, LIST = "--view", "--save-view", "--delete-view", "--views"
#: A column of --sort → its field at the server, and whether its usual order is the descending one.
_FIELDS = {
    "started": (wire.START_TIME, True), "took": (wire.DURATION, True), "name": (wire.APP_NAME, False),
    "state": (wire.STATE, False), "user": (wire.CREATOR, False), "id": (wire.ID, False),
}


def managed(session: Session) -> bool:
    """List or delete views if the command line asks for this; return whether it does."""
    name, is_list = session.line.text(DELETE), session.line.flag(LIST)
    if name is None and not is_list:
        return False
    _need(session)
    if name is not None:
        session.client.delete_view(name)
    if is_list:
        found = session.client.saved_views()
        if session.output.is_data:
            emit_value(found, session.output)
        else:
            emit("\n".join(map(_line, found)) or f"no views yet; save one: dlicmd ls --find WORDS {SAVE} NAME")
    return True


def chosen(session: Session) -> SavedView:
    """Return the view that the command line names; an empty one if it names none. Raises NoSuchObject."""
    name = session.line.text(VIEW)
    if name is None:
        return SavedView({})
    _need(session)
    views = {one.name: one for one in session.client.saved_views()}
    if name not in views:
        raise NoSuchObject(one_line(f"you have no view '{name}'; your views are: {', '.join(views) or 'none'}"), 404,
                           "view.not_found")
    return views[name]


def save(
    session: Session, view: SavedView, *, words: str, sorted_by: NamedValue | None, columns: Sequence[NamedValue],
) -> None:
    """Save what the list shows. Raises UsageProblem for an option that a view does not keep, ServerError."""
    line = session.line
    if line.text("--since") is not None:
        raise UsageProblem(f"{SAVE} cannot keep --since: a view has no times; use other words")
    _need(session)
    if (search := line.text("--search")) is not None:
        words = f'{words} search:"{search}"'.strip()
    sort = line.text("--sort")
    saved = session.client.save_view(
        line.text(SAVE) or "", find=words, state=line.text("--state") or view.state,
        sort_by=view.sort_by if sort is None else _order(sort, sorted_by),
        everyone=bool(line.flag("--all-users") or view.everyone), columns=[".".join(one) for one in columns],
    )
    info(f"saved the view {saved.name}")


def _order(sort: str, sorted_by: NamedValue | None) -> str:
    """Return the order of --sort in the words of the server."""
    name, is_back = sort.removeprefix("-"), sort.startswith("-")
    if sorted_by is None:
        field, is_down = _FIELDS[name]
    else:
        field, is_down = ".".join(sorted_by), sorted_by.kind == METRIC and not is_lower_better(sorted_by.name)
    return f"{field}:{'desc' if is_down != is_back else 'asc'}"


def _need(session: Session) -> None:
    session.need(wire.EXT_VIEWS, "cannot store views")


def _line(view: SavedView) -> str:
    """Return the facts of a view in a line."""
    facts = [view.find, f"states: {view.state}" * bool(view.state), f"sorted by {view.sort_by}" * bool(view.sort_by),
             f"columns: {', '.join(view.columns)}" * bool(view.columns), "all users" * bool(view.everyone)]
    return one_line(f"{view.name}  {'; '.join(filter(None, facts))}".rstrip())
