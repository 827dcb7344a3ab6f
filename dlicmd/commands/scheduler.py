"""The commands about the scheduler: applications, slots, resource plans, objects of the cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dlicmd.console import inert, info
from dlicmd.contract import wire
from dlicmd.contract.exits import Exit
from dlicmd.errors import DlicmdError
from dlicmd.render import emit, emit_said, emit_value
from dlicmd.session import Session

#: The name of the call for `each.tell`.
_STOP = "Stop application"


def _app_get_all(session: Session) -> int:
    from dlicmd.show.apps import active, show_applications

    show_applications(session.client, active(session.client, *_part(session)), session.output)
    return Exit.DONE


def _app_history_get_all(session: Session) -> int:
    from dlicmd.show.apps import HISTORY, ended, show_applications

    show_applications(session.client, ended(session.client, *_part(session)), session.output, HISTORY)
    return Exit.DONE


def _part(session: Session) -> tuple[int, int]:
    """Return the part of a long list to request: its first position and its length."""
    from dlicmd.client import MOST_APPLICATIONS

    start, length = (session.line.number(name) for name in ("--app-search-start", "--app-search-length"))
    return start or 0, MOST_APPLICATIONS if length is None else length


def _app_get(session: Session) -> int:
    from dlicmd.show.apps import show_applications

    found = [session.client.application(session.operand)]
    if session.output.columns or session.output.form == "table":
        show_applications(session.client, found, session.output)
    else:
        emit_value(found, session.output)
    return Exit.DONE


def _app_wait(session: Session) -> int:
    from dlicmd import follow
    from dlicmd.commands import app_wait
    from dlicmd.console import aside

    app_id, output = session.operand, session.output
    clock = follow.Clock(app_id, session.line.number("--wait-timeout"), "--app-wait")
    found = app_wait.wait(session.client, app_id, clock, aside if output.is_data else emit)
    if output.is_data:
        emit_value(found, output)
    code = follow.exit_code(found, session.line.flag("--pass-exit-code"))
    if code != Exit.DONE:
        why = f": {found[wire.MESSAGE]}" if found.get(wire.MESSAGE) else ""
        info(inert(f"{app_id} ended {found.get(wire.STATE)}{why}"))
    return code


def _app_stop(session: Session) -> int:
    return _stop(session, session.operands)


def _app_stop_all(session: Session) -> int:
    from dlicmd.contract.application import identity, is_active
    from dlicmd.show.apps import active

    found = active(session.client, *_part(session))
    if not found and not session.output.is_data:
        emit("No result found")

    def ended(app_id: str) -> bool:
        return not is_active(session.client.application(app_id))

    return _stop(session, [identity(app) for app in found], ended)


def _stop(session: Session, names: Sequence[str], ended: Callable[[str], bool] | None = None) -> int:
    """Stop applications, several in one call if the server offers that. Return the exit code. With `ended`, an
    application that has ended is no failure."""
    from dlicmd.commands.each import tell, tell_together

    client = session.client
    if len(names) > 1 and wire.EXT_STOP_MANY in client.extensions():
        return tell_together(_STOP, client.stop_applications(names), session.output, over_is_done=ended is not None)
    return tell(_STOP, names, client.stop_application, session.output, ended or (lambda _: False))


def _app_analyze(session: Session) -> int:
    from dlicmd.show.apps import show_summary

    show_summary(session.client, session.output, int(session.operand) if session.operand else None)
    return Exit.DONE


def _app_logs(log: str) -> Callable[[Session], int]:
    def show(session: Session) -> int:
        from dlicmd.commands.logs import show_application_logs

        return show_application_logs(session.client, session.operand, log)

    return show


def _top(session: Session) -> int:
    _need(session, wire.EXT_SLOT_VIEW, "does not report its slots")
    from dlicmd.show.top import show

    return show(session.client, session.output)


def _need(session: Session, extension: str, lack: str) -> None:
    """Raise DlicmdError when the server lacks an extension."""
    if extension not in session.client.extensions():
        raise DlicmdError(f"this server {lack} (it lacks the extension '{extension}')")


def _rp_get_all(session: Session) -> int:
    from dlicmd.commands.plans import show_plans_with_jobs

    show_plans_with_jobs(session.client, session.output)
    return Exit.DONE


def _rp_get(session: Session) -> int:
    emit_value(session.client.plan(session.operand), session.output)
    return Exit.DONE


def _rp_apply(session: Session) -> int:
    from dlicmd.commands.plans import apply_plans, read_plans, show_plans

    show_plans(apply_plans(session.client, read_plans(session.operand)), session.output)
    return Exit.DONE


def _rp_delete(session: Session) -> int:
    emit_said(session.client.delete_plan(session.operand), session.output)
    return Exit.DONE


def _rp_usage(session: Session) -> int:
    _need(session, wire.EXT_HOLDINGS, "does not record the use of its slots")
    from dlicmd.commands.queries import OF_HOLDINGS, query_of
    from dlicmd.show.usage import show_usage

    show_usage(session.client.holdings(query_of(session, OF_HOLDINGS)), session.output)
    return Exit.DONE


def _pj_get_all(session: Session) -> int:
    from dlicmd.show.cluster import show_jobs

    show_jobs(session.client, session.output)
    return Exit.DONE


def _k8s_obj_get_all(session: Session) -> int:
    emit_value(session.client.kubernetes_objects(session.operand), session.output)
    return Exit.DONE


def _k8s_obj_get(session: Session) -> int:
    kind, name = session.operands
    emit_value(session.client.kubernetes_object(kind, name), session.output)
    return Exit.DONE


COMMANDS: dict[str, Callable[[Session], int]] = {
    "--app-get-all": _app_get_all,
    "--app-history-get-all": _app_history_get_all,
    "--app-get": _app_get,
    "--app-wait": _app_wait,
    "--app-stop": _app_stop,
    "--app-stop-all": _app_stop_all,
    "--app-analyze": _app_analyze,
    "--app-launcherlogs": _app_logs("launcherlog"),
    "--app-outlogs": _app_logs("stdout"),
    "--app-errlogs": _app_logs("stderr"),
    "--top": _top,
    "--rp-get-all": _rp_get_all,
    "--rp-get": _rp_get,
    "--rp-apply": _rp_apply,
    "--rp-delete": _rp_delete,
    "--rp-usage": _rp_usage,
    "--pj-get-all": _pj_get_all,
    "--k8s-obj-get-all": _k8s_obj_get_all,
    "--k8s-obj-get": _k8s_obj_get,
}
