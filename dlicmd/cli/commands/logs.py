"""The commands about logs: the output of the program, and the logs that the scheduler keeps of every process."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dlicmd.cli.console import error
from dlicmd.cli.render import emit, emit_chunks
from dlicmd.cli.session import Session
from dlicmd.cli.show.execs import application_id
from dlicmd.cli.show.recorded import separator
from dlicmd.contract import application
from dlicmd.contract.exits import Exit
from dlicmd.sdk.client import Client
from dlicmd.sdk.errors import DlicmdError, NoSuchApplication, ServerError
from dlicmd.sdk.messages import inert, info

LAUNCHER = "launcherlog"


def trainlogs(session: Session) -> int:
    """Print standard output and standard error of the program; as a verb, select lines."""
    if session.line.verb is not None:
        from dlicmd.cli.commands.lines import logs  # only for the verb

        return logs(session)
    return _show_train_log(session, "outerrlog")


def trainoutlogs(session: Session) -> int:
    """Print the standard output of the program."""
    return _show_train_log(session, "outlog")


def trainerrlogs(session: Session) -> int:
    """Print the standard error of the program."""
    return _show_train_log(session, "errlog")


def exec_launcherlogs(session: Session) -> int:
    """Print the launcher log of every process of an exec."""
    return _show_task_logs(session, session.operand, LAUNCHER)


def exec_outlogs(session: Session) -> int:
    """Print the standard output of every process of an exec."""
    return _show_task_logs(session, session.operand, "stdout")


def exec_errlogs(session: Session) -> int:
    """Print the standard error of every process of an exec."""
    return _show_task_logs(session, session.operand, "stderr")


def app_launcherlogs(session: Session) -> int:
    """Print the launcher log of every process of an application."""
    return _show_application_logs(session, session.operand, LAUNCHER)


def app_outlogs(session: Session) -> int:
    """Print the standard output of every process of an application."""
    return _show_application_logs(session, session.operand, "stdout")


def app_errlogs(session: Session) -> int:
    """Print the standard error of every process of an application."""
    return _show_application_logs(session, session.operand, "stderr")


def _show_train_log(session: Session, log_type: str) -> int:
    emit_chunks(session.client.train_log(session.operand, log_type).chunks())
    return Exit.DONE


def _show_task_logs(session: Session, exec_id: str, log: str) -> int:
    """Print a log (`stdout`, `stderr` or `launcherlog`) of every process of an exec, each under its heading."""
    found = session.client.exec(exec_id)
    app_id = application_id(found)
    if app_id is None:
        if session.output.is_original:
            return Exit.FAILED  # without output: scripts poll for logs until there is some
        raise DlicmdError(f"{exec_id} has no application yet, so it has no logs; try again in a moment")
    return _show_application_logs(session, app_id, log)


def _show_application_logs(session: Session, app_id: str, log: str) -> int:
    """Print such a log of every process of an application. Raises NoSuchApplication."""
    applications = session.client.applications(app_id)
    if not applications:
        return _show_logs_of_members(session, app_id, log)
    processes = tasks(applications[0])
    if (first := _first_executor(processes)) > 1:
        info(f"executors before {first} are not shown")
    if log == LAUNCHER and not session.output.is_recorded and _print_the_one_text(session.client, app_id, processes):
        return Exit.DONE
    code = Exit.DONE
    for title, task in processes:
        emit(f"{separator()}\n{title} {log}")
        try:
            emit_chunks(session.client.task_log(app_id, task, log).chunks())
        except ServerError as problem:
            if session.output.is_original:
                emit_chunks([(problem.body or str(problem)).encode()])  # in place of the log
            else:
                error(f"{title} {log}: {problem}", problem.code)
                code = Exit.FAILED
        if session.output.is_recorded:
            emit("")
    return code


def _show_logs_of_members(session: Session, pack_id: str, log: str) -> int:
    """Print such a log of every job of a pack, each after the job's id. Raises NoSuchApplication when `pack_id` is no
    pack."""
    if not application.is_pack(session.client.application(pack_id)):
        raise NoSuchApplication(pack_id)
    code: int = Exit.DONE
    for member in reversed(session.client.engine_applications()):
        if application.pack(member) == pack_id:
            emit(inert(application.identity(member)))
            code = _show_application_logs(session, application.identity(member), log) or code
    return code


def _print_the_one_text(client: Client, app_id: str, processes: list[tuple[str, str]]) -> bool:
    """Print the launcher log once if it is the same for all processes. Otherwise print nothing and return False."""
    try:
        texts = {client.task_log(app_id, task, LAUNCHER).body() for _, task in processes}
    except ServerError:
        return False
    if len(texts) != 1:
        return False
    titles = [title for title, _ in processes]
    emit(f"{separator()}\n{titles[0]}{f' to {titles[-1]}' if titles[1:] else ''} {LAUNCHER}")
    emit_chunks(texts)
    return True


def tasks(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return heading and path of every process: the driver, if there is one, and the executors. Executor numbers come
    from their names (`task12n-7`), or else count from 1."""
    listed = [("Driver", "driver")] if found.get("task0") else []
    workers = found.get("task12n")
    for place, worker in enumerate(workers if isinstance(workers, list) else [], 1):
        name = str(worker.get("name")) if isinstance(worker, dict) else ""
        named = re.fullmatch(r"task12n-([0-9]{1,9})", name)
        number = int(named[1]) if named else place
        listed.append((f"Executor {number}", f"executor/{number}"))
    return listed


def _first_executor(processes: list[tuple[str, str]]) -> int:
    """Return the lowest number of an executor; 0 when there is none."""
    return min((int(task.partition("/")[2]) for _, task in processes if "/" in task), default=0)
