"""The commands. Each takes the session and returns the exit code. Errors are raised."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dlicmd import hints
from dlicmd.commands import scheduler, searches
from dlicmd.console import inert, info, warn
from dlicmd.contract import wire
from dlicmd.contract.argv import SUBMITTING
from dlicmd.contract.exits import Exit
from dlicmd.contract.options import APP_COMMANDS, EXEC_COMMANDS, LAST
from dlicmd.errors import Denied, DlicmdError, Unreachable, UsageProblem, WaitTimeout
from dlicmd.render import emit, emit_chunks, emit_said, emit_value
from dlicmd.session import Session


def _version(session: Session) -> int:
    from dlicmd import __version__

    if session.output.is_data:
        emit_value({"version": __version__}, session.output)
    else:
        emit(f"dlicmd {__version__}")
    return Exit.DONE


def _logon(session: Session) -> int:
    from dlicmd import auth

    if session.line.text("--rest-host") is None:
        raise UsageProblem("the local backend needs no logon; name a server with --rest-host HOST")
    client = session.connect(with_token=False)
    username, password = auth.credentials(session.line.text("--username"), session.line.text("--password"))
    try:
        answer = client.logon(username, password)
    except Denied as problem:
        # A script that continues must not act as the user who was logged on before.
        auth.forget_token(session.keyring)
        said = str(problem).rstrip(".")
        raise Denied(f"{said}; no token is stored now", problem.status) from None
    auth.write_token(answer[wire.ACCESS_TOKEN], session.keyring)
    emit_value(auth.masked(answer), session.output)
    return Exit.DONE


def _logoff(session: Session) -> int:
    from dlicmd import auth

    # DLICMD_TOKEN takes precedence over the stored token. The logoff makes both invalid.
    tokens = dict.fromkeys(filter(None, (auth.token_in_environment(), auth.read_token(session.keyring))))
    auth.forget_token(session.keyring)
    if session.line.text("--jwt-token") is not None or not tokens:
        info("there is no stored token to revoke")
        text = ""
    elif session.line.text("--rest-host") is None:
        info("removed the stored token; only with --rest-host HOST dlicmd also revokes it on the server")
        text = ""
    else:
        try:
            client = session.connect(with_token=False)
            for token in tokens:
                client.use_token(token)
                text = client.logoff().strip()
        except DlicmdError as problem:
            if not isinstance(problem, Denied):  # a denied token is already invalid
                warn("removed the stored token, but could not revoke it: the server accepts it until it expires")
            raise
    emit_said(text, session.output)
    return Exit.DONE


def _status(session: Session) -> int:
    emit_said(session.client.status(), session.output)
    return Exit.DONE


def _config_show(session: Session) -> int:
    from dlicmd.config.settings import show_settings
    from dlicmd.contract.argv import parse_argv

    show_settings(parse_argv(session.words), session.output)
    return Exit.DONE


def _completion(session: Session) -> int:
    from dlicmd.commands.completion import script

    emit(script(session.operand))
    return Exit.DONE


def _frameworks(session: Session) -> int:
    found = session.client.frameworks()
    if session.output.is_data:
        emit_value(found, session.output)
    elif session.output.columns:
        from dlicmd.render import scalar, show_columns

        show_columns(found, session.output.columns, lambda item, name: scalar(item.get(name)))
    else:
        emit("\n".join(_framework_block(item) for item in found).rstrip("\n"))
    return Exit.DONE


def _framework_block(item: dict[str, Any]) -> str:
    said = item.get("desc")
    lines = [str(text) for text in said] if isinstance(said, list) else [str(said or "")]
    block = f"Name: {item.get('name', '')}\nVersion: {item.get('frameworkVersion', '')}\n"
    return inert(block + "Desc: " + "\n      ".join(lines) + "\n")


def _exec_get_all(session: Session) -> int:
    from dlicmd.commands.queries import OF_EXECS, query_of
    from dlicmd.show.execs import show_execs

    show_execs(session.client.execs(query_of(session, OF_EXECS)), session.output)
    return Exit.DONE


def _exec_get(session: Session) -> int:
    from dlicmd.show.execs import show_exec

    show_exec(session.client, session.operand, session.output)
    return Exit.DONE


def _exec_why(session: Session) -> int:
    from dlicmd.show.execs import show_why

    show_why(session.client.why(session.operand), session.output)
    return Exit.DONE


def _exec_diff(session: Session) -> int:
    from dlicmd.commands.diff import show_diff

    first, second = session.operands
    show_diff(session.client, first, second, session.output)
    return Exit.DONE


def _exec_plot(session: Session) -> int:
    from dlicmd.commands.plot import show_plot

    show_plot(session.client, session.operand, session.output)
    return Exit.DONE


def _exec_stop(session: Session) -> int:
    from dlicmd.commands.each import do

    return do("Stop exec", session.operand, session.client.stop_exec, session.output)


def _exec_delete(session: Session) -> int:
    from dlicmd.commands.each import do

    return do("Delete exec", session.operand, session.client.delete_exec, session.output)


def _exec_deploy(session: Session) -> int:
    from dlicmd.commands.deploy import deploy, deployment

    asked = deployment(session.line)
    deploy(session.client, session.operand, asked, session.output)
    return Exit.DONE


def _exec_delete_all(session: Session) -> int:
    session.client.delete_execs()
    emit_said("", session.output, "Execs are deleted")
    return Exit.DONE


def _task_logs(log: str) -> Callable[[Session], int]:
    def show(session: Session) -> int:
        from dlicmd.commands.logs import show_task_logs

        return show_task_logs(session.client, session.operand, log)

    return show


def _train_logs(log_type: str) -> Callable[[Session], int]:
    def show(session: Session) -> int:
        emit_chunks(session.client.train_log(session.operand, log_type).chunks())
        return Exit.DONE

    return show


def _exec_trainresult(session: Session) -> int:
    from dlicmd.results import check_folder, fetch

    folder, force = check_folder(session.line.text("--to")), session.line.flag("--force")
    if session.line.flag("--unpack"):
        from dlicmd.unpack import fetch_unpacked

        count = fetch_unpacked(session.client, session.operand, folder, force)
        said = f"Train result is unpacked to {folder} ({count} file{'' if count == 1 else 's'})"
        found = {wire.ID: session.operand, "path": str(folder), "files": count}
    else:
        saved = fetch(session.client, session.operand, folder, force)
        said, found = f"Train result is saved to {saved}", {wire.ID: session.operand, "path": str(saved)}
    if session.output.is_data:
        emit_value(found, session.output)
    else:
        emit(said)
    return Exit.DONE


def _exec_start(session: Session) -> int:
    if session.line.flag("--dry-run"):
        from dlicmd.commands.dry_run import show_request

        show_request(session)
        return Exit.DONE
    from dlicmd.submit import submit

    if not _watching(session) and session.line.number("--wait-timeout") is not None:
        info("--wait-timeout has no effect without --wait or --follow")
    return _submitted(session, submit(session))


def _watching(session: Session) -> bool:
    return session.line.flag("--follow") or session.line.flag("--wait")


def _submitted(session: Session, found: dict[str, Any]) -> int:
    """Report the submitted exec; follow it or wait for it if the command line says so. Return the exit code."""
    session.watched.update(found)
    ids = {"execId": found[wire.ID], "appId": found[wire.APP_ID]}
    if not (_watching(session) and session.output.is_data):
        emit_value(ids, session.output)
    else:
        info(f"submitted {found[wire.ID]}")
    return _watch(session, str(found[wire.ID])) if _watching(session) else Exit.DONE


def _exec_verify(session: Session) -> int:
    if wire.EXT_VERIFY not in session.client.extensions():
        raise DlicmdError(f"this server cannot verify execs (it lacks the extension '{wire.EXT_VERIFY}'): submit the "
                          "model again with --msd-attr verify=20")
    return _submitted(session, session.client.verify_exec(session.operand, session.line.number("--steps") or 20))


def _data_preview(session: Session) -> int:
    from dlicmd.commands.preview import preview

    return preview(session)


def _demo(session: Session) -> int:
    from dlicmd.submit import demo_session

    with demo_session(session) as started:
        started.watched = session.watched
        return _exec_start(started)


def _watch_command(session: Session) -> int:
    return _watch(session, session.operand)


def _watch(session: Session, exec_id: str) -> int:
    """Follow an exec or wait for it, as the command line says, and report how it ended. Return the exit code."""
    from dlicmd import follow
    from dlicmd.show.views import Silent, last_words

    silent = not (session.line.command == "--follow" or session.line.flag("--follow"))
    clock = follow.Clock(exec_id, session.line.number("--wait-timeout"))
    view = Silent() if silent else _view(session, exec_id)
    try:
        found = (follow.wait if silent else follow.follow)(session.client, exec_id, view, clock)
    except KeyboardInterrupt:
        view.close()
        back = f"{hints.command('--follow', exec_id)}, or {hints.command('--exec-get', exec_id)}"
        info(f"detached; {exec_id} continues. Come back with: {back}")
        _tell_what_goes_on(session)
        return Exit.INTERRUPTED
    except WaitTimeout:
        session.watched.update(session.client.exec(exec_id))
        _tell_what_goes_on(session)
        raise
    except Unreachable:
        _tell_what_goes_on(session)
        raise
    finally:
        view.close()
    session.watched.update(found)
    code = follow.exit_code(found, session.line.flag("--pass-exit-code"))
    if session.output.is_data:
        emit_value(found, session.output)
    if not silent or code != Exit.DONE:
        info(last_words(found, exec_id))
    return code


def _tell_what_goes_on(session: Session) -> None:
    """Print the last known state of the exec for a program, which needs to know the exec to come back to."""
    if session.output.is_data and session.watched:
        emit_value(session.watched, session.output)


def _view(session: Session, exec_id: str) -> Any:
    import sys

    from dlicmd.show.views import Plain

    if sys.stdout.isatty() and not session.output.is_data:
        from dlicmd.show.live import LiveView

        return LiveView(exec_id)
    return Plain(data_on_stdout=session.output.is_data)


COMMANDS: dict[str, Callable[[Session], int]] = {
    "--version": _version,
    "--logon": _logon,
    "--logoff": _logoff,
    "--status": _status,
    "--completion": _completion,
    "--config-show": _config_show,
    "--dl-frameworks": _frameworks,
    "--exec-start": _exec_start,
    "--data-preview": _data_preview,
    "--exec-get-all": _exec_get_all,
    "--exec-get": _exec_get,
    "--exec-why": _exec_why,
    "--exec-diff": _exec_diff,
    "--exec-plot": _exec_plot,
    "--exec-verify": _exec_verify,
    "--exec-stop": _exec_stop,
    "--exec-delete": _exec_delete,
    "--exec-delete-all": _exec_delete_all,
    "--exec-deploy": _exec_deploy,
    "--exec-launcherlogs": _task_logs("launcherlog"),
    "--exec-outlogs": _task_logs("stdout"),
    "--exec-errlogs": _task_logs("stderr"),
    "--exec-trainlogs": _train_logs("outerrlog"),
    "--exec-trainoutlogs": _train_logs("outlog"),
    "--exec-trainerrlogs": _train_logs("errlog"),
    "--exec-trainresult": _exec_trainresult,
    **scheduler.COMMANDS,
    **searches.COMMANDS,
    "--demo": _demo,
    "--follow": _watch_command,
    "--wait": _watch_command,
}


def run(session: Session) -> int:
    """Run the command of a session, and return its exit code."""
    command = session.line.command
    if command is None:
        given = next((name for name in ("--follow", "--wait") if session.line.flag(name)), None)
        raise UsageProblem(f"{given} needs the id of an exec" if given else "no command was given")
    if session.line.flag("--dry-run") and command not in SUBMITTING:
        raise UsageProblem(f"--dry-run is only for submissions: {command} has no dry run")
    if command in EXEC_COMMANDS | APP_COMMANDS and LAST in session.operands:
        from dlicmd.commands.newest import resolved

        session.line.operands = resolved(session.client, session.operands, command in APP_COMMANDS)
    if session.line.text("--junit") is not None:
        from dlicmd.show.junit import reported

        return reported(session, COMMANDS[command])
    return COMMANDS[command](session)
