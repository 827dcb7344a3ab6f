"""The table of the commands, and the run of one of them."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import cast

from dlicmd.cli.session import Session
from dlicmd.contract.argv import SUBMITTING, WITH_PROGRAM
from dlicmd.contract.options import APP_COMMANDS, EXEC_COMMANDS, LAST
from dlicmd.sdk import hints
from dlicmd.sdk.errors import NoSuchExec, UsageProblem
from dlicmd.sdk.messages import inert

#: Command → its module in this package and its function. Only the module of the command in use is imported, so that
#: dlicmd starts fast.
COMMANDS: dict[str, tuple[str, str]] = {
    "--version": ("server", "version"),
    "--logon": ("server", "logon"),
    "--logoff": ("server", "logoff"),
    "--whoami": ("server", "whoami"),
    "--server": ("servers", "server"),
    "--console": ("browser", "console"),
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
    "--exec-again": ("submissions", "again"),
    "--exec-stop": ("execs", "stop"),
    "--exec-delete": ("execs", "delete"),
    "--exec-delete-all": ("execs", "delete_all"),
    "--exec-resize": ("execs", "resize"),
    "--exec-deploy": ("execs", "deploy"),
    "--exec-tag": ("labels", "tag"),
    "--exec-note": ("labels", "note"),
    "--exec-favorite": ("labels", "favorite"),
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
    "--hpo-start": ("searching", "start"),
    "--hpo-get-all": ("searches", "get_all"),
    "--hpo-get": ("searches", "get"),
    "--hpo-plot": ("tuned", "plot"),
    "--hpo-export": ("tuned", "export_file"),
    "--hpo-stop": ("searches", "stop"),
    "--hpo-restart": ("searches", "restart"),
    "--hpo-delete": ("searches", "delete"),
    "--hpo-delete-all": ("searches", "delete_all"),
    "--hpo-algorithm-get-all": ("algorithms", "get_all"),
    "--hpo-algorithm-get": ("algorithms", "get"),
    "--hpo-algorithm-install": ("algorithms", "install"),
    "--hpo-algorithm-delete": ("algorithms", "delete"),
    "--definition-get-all": ("experiments", "definition_get_all"),
    "--definition-get": ("experiments", "definition_get"),
    "--definition-save": ("experiments", "definition_save"),
    "--definition-delete": ("experiments", "definition_delete"),
    "--hardware-get-all": ("experiments", "hardware_get_all"),
    "--hardware-get": ("experiments", "hardware_get"),
    "--hardware-save": ("experiments", "hardware_save"),
    "--hardware-delete": ("experiments", "hardware_delete"),
    "--experiment-get-all": ("experiments", "experiment_get_all"),
    "--experiment-get": ("experiments", "experiment_get"),
    "--experiment-save": ("experiments", "experiment_save"),
    "--experiment-run": ("experiments", "experiment_run"),
    "--experiment-runs": ("experiments", "experiment_runs"),
    "--experiment-delete": ("experiments", "experiment_delete"),
    "--demo": ("submissions", "demo"),
    "--follow": ("watch", "watch"),
    "--wait": ("watch", "watch"),
}


def function_of(command: str) -> Callable[[Session], int]:
    """Return the function of a command."""
    module, function = COMMANDS[command]
    return cast("Callable[[Session], int]", getattr(import_module(f"dlicmd.cli.commands.{module}"), function))


#: Command of a verb about a job → the command that does the same with a search.
_OF_SEARCHES = {
    "--exec-get": "--hpo-get", "--exec-stop": "--hpo-stop", "--exec-delete": "--hpo-delete",
    "--exec-plot": "--hpo-plot",
}
#: Commands about a job that find out themselves whether a word is the name of a search.
_OF_BOTH = frozenset({"--follow", "--wait", "--exec-why"})


def _name_jobs(session: Session) -> str | None:
    """Put ids in place of the words of a verb that name jobs. A single word that is the name of a search, and of no
    job, makes the command that of the search. Return a single word that names neither."""
    from dlicmd.contract.verbs import BY_VERB  # only for a verb

    line = session.line
    if not (words := session.operands[:BY_VERB[line.verb or ""].ids]):
        return None
    from dlicmd.cli.commands.newest import is_search, named  # some commands name no job

    ids, unknown = named(lambda: session.client, words)
    line.operands[:len(words)] = ids
    if len(ids) != 1 or unknown != ids:
        return None
    if line.command in _OF_BOTH or not is_search(session.client, ids[0]):
        return ids[0]
    if line.command not in _OF_SEARCHES:
        raise UsageProblem(f"{inert(ids[0])} is a search, and this needs a job; "
                           f"{hints.command('--hpo-get', ids[0])} lists the jobs of its experiments")
    line.command = _OF_SEARCHES[line.command]
    return None


#: Commands that have a dry run.
_DRY = SUBMITTING | (WITH_PROGRAM - {"--exec-again"}) | {"--rp-apply"}


def run(session: Session) -> int:
    """Run the command of a session, and return its exit code."""
    command = session.line.command
    if command is None:
        given = next((name for name in ("--follow", "--wait") if session.line.flag(name)), None)
        raise UsageProblem(f"{given} needs the id of an exec" if given else "no command was given")
    if session.line.flag("--dry-run") and command not in _DRY:
        raise UsageProblem(f"--dry-run is only for submissions and --rp-apply: {command} has no dry run")
    unknown = None
    if session.line.verb is not None:
        unknown = _name_jobs(session)
    elif command in EXEC_COMMANDS | APP_COMMANDS and LAST in session.operands:
        from dlicmd.cli.commands.newest import resolved  # few commands name `last`

        session.line.operands = resolved(session.client, session.operands, command in APP_COMMANDS)
    if session.line.text("--junit") is not None:
        from dlicmd.cli.show.junit import reported  # XML takes time to import

        return reported(session, function_of(command))
    function = function_of(session.line.command or command)
    if unknown is None or command not in _OF_BOTH | _OF_SEARCHES.keys():
        return function(session)
    try:
        return function(session)
    except NoSuchExec as problem:
        raise NoSuchExec(unknown, problem.status, problem.body, nor_search=True) from None
