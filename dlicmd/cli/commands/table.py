"""The table of the commands, and the run of one of them."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import cast

from dlicmd.cli.session import Session
from dlicmd.contract.argv import SUBMITTING
from dlicmd.contract.options import APP_COMMANDS, EXEC_COMMANDS, LAST
from dlicmd.sdk.errors import UsageProblem

#: Command → its module in this package and its function. Only the module of the command in use is imported, so that
#: dlicmd starts fast.
COMMANDS: dict[str, tuple[str, str]] = {
    "--version": ("server", "version"),
    "--logon": ("server", "logon"),
    "--logoff": ("server", "logoff"),
    "--whoami": ("server", "whoami"),
    "--server": ("servers", "server"),
    "--open": ("folder", "open_folder"),
    "--status": ("server", "status"),
    "--completion": ("completion", "show_script"),
    "--config-show": ("server", "config_show"),
    "--dl-frameworks": ("server", "frameworks"),
    "--exec-start": ("submissions", "start"),
    "--data-preview": ("preview", "preview"),
    "--exec-get-all": ("execs", "get_all"),
    "--exec-get": ("execs", "get"),
    "--exec-why": ("execs", "why"),
    "--exec-diff": ("diff", "diff"),
    "--exec-plot": ("plot", "plot"),
    "--exec-verify": ("submissions", "verify"),
    "--exec-stop": ("execs", "stop"),
    "--exec-delete": ("execs", "delete"),
    "--exec-delete-all": ("execs", "delete_all"),
    "--exec-resize": ("execs", "resize"),
    "--exec-deploy": ("execs", "deploy"),
    "--exec-launcherlogs": ("logs", "exec_launcherlogs"),
    "--exec-outlogs": ("logs", "exec_outlogs"),
    "--exec-errlogs": ("logs", "exec_errlogs"),
    "--exec-trainlogs": ("logs", "trainlogs"),
    "--exec-trainoutlogs": ("logs", "trainoutlogs"),
    "--exec-trainerrlogs": ("logs", "trainerrlogs"),
    "--exec-trainresult": ("results", "trainresult"),
    "--app-get-all": ("scheduler", "app_get_all"),
    "--app-history-get-all": ("scheduler", "app_history_get_all"),
    "--app-get": ("scheduler", "app_get"),
    "--app-wait": ("watch", "app_wait"),
    "--app-stop": ("scheduler", "app_stop"),
    "--app-stop-all": ("scheduler", "app_stop_all"),
    "--app-analyze": ("scheduler", "app_analyze"),
    "--app-launcherlogs": ("logs", "app_launcherlogs"),
    "--app-outlogs": ("logs", "app_outlogs"),
    "--app-errlogs": ("logs", "app_errlogs"),
    "--top": ("scheduler", "top"),
    "--rp-get-all": ("plans", "get_all"),
    "--rp-get": ("plans", "get"),
    "--rp-apply": ("plans", "apply"),
    "--rp-delete": ("plans", "delete"),
    "--rp-usage": ("plans", "usage"),
    "--pj-get-all": ("scheduler", "pj_get_all"),
    "--k8s-obj-get-all": ("scheduler", "k8s_obj_get_all"),
    "--k8s-obj-get": ("scheduler", "k8s_obj_get"),
    "--hpo-start": ("searches", "start"),
    "--hpo-get-all": ("searches", "get_all"),
    "--hpo-get": ("searches", "get"),
    "--hpo-stop": ("searches", "stop"),
    "--hpo-restart": ("searches", "restart"),
    "--hpo-delete": ("searches", "delete"),
    "--hpo-delete-all": ("searches", "delete_all"),
    "--hpo-algorithm-get-all": ("searches", "algorithm_get_all"),
    "--hpo-algorithm-get": ("searches", "algorithm_get"),
    "--hpo-algorithm-delete": ("searches", "algorithm_delete"),
    "--demo": ("submissions", "demo"),
    "--follow": ("watch", "watch"),
    "--wait": ("watch", "watch"),
}


def function_of(command: str) -> Callable[[Session], int]:
    """Return the function of a command."""
    module, function = COMMANDS[command]
    return cast("Callable[[Session], int]", getattr(import_module(f"dlicmd.cli.commands.{module}"), function))


def run(session: Session) -> int:
    """Run the command of a session, and return its exit code."""
    command = session.line.command
    if command is None:
        given = next((name for name in ("--follow", "--wait") if session.line.flag(name)), None)
        raise UsageProblem(f"{given} needs the id of an exec" if given else "no command was given")
    if session.line.flag("--dry-run") and command not in SUBMITTING:
        raise UsageProblem(f"--dry-run is only for submissions: {command} has no dry run")
    if session.line.verb is not None:
        from dlicmd.contract.verbs import BY_VERB  # only for a verb

        if ids := session.operands[:BY_VERB[session.line.verb].ids]:
            from dlicmd.cli.commands.newest import named  # some commands name no job

            session.line.operands[:len(ids)] = named(lambda: session.client, ids)
    elif command in EXEC_COMMANDS | APP_COMMANDS and LAST in session.operands:
        from dlicmd.cli.commands.newest import resolved  # few commands name `last`

        session.line.operands = resolved(session.client, session.operands, command in APP_COMMANDS)
    if session.line.text("--junit") is not None:
        from dlicmd.cli.show.junit import reported  # XML takes time to import

        return reported(session, function_of(command))
    return function_of(command)(session)
