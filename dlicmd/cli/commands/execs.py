"""The commands about execs."""

from __future__ import annotations

from typing import Any

from dlicmd.cli.commands.each import do
from dlicmd.cli.question import confirmed_on_terminal, counted
from dlicmd.cli.render import emit, emit_said, emit_value
from dlicmd.cli.session import Session
from dlicmd.cli.show.execs import recorded_keys, show_exec, show_execs, show_page, show_why
from dlicmd.contract import wire
from dlicmd.contract.argv import ArgvError, CommandLine
from dlicmd.contract.exits import Exit
from dlicmd.sdk.errors import NoSuchExec, UsageProblem
from dlicmd.sdk.messages import inert

#: In place of a number of slots: the fair share.
AUTO = "auto"
#: Keys of queries that servers accept for a list of execs.
OF_EXECS = (wire.LIMIT, wire.STATE, wire.SORT_BY, wire.ALL, wire.SEARCH, wire.FIND, wire.OFFSET)


def get_all(session: Session) -> int:
    """Print the execs of the user, or of all users; as a verb, the newest ones."""
    if session.line.verb is not None:
        from dlicmd.cli.commands.listing import ls  # only for a verb

        return ls(session)
    query = session.query(OF_EXECS)
    if session.line.flag("--all-users"):
        query = "&".join(filter(None, (query, f"{wire.ALL}=true")))
    search = session.line.text("--search")
    if search is not None:
        query = "&".join(filter(None, (query, wire.search_query(search))))
    found = [one for one in session.client.execs(query) if search in (None, one.search)]
    show_execs([recorded_keys(one) for one in found], session.output)
    return Exit.DONE


def get(session: Session) -> int:
    """Print one exec; as a verb, as a page of facts."""
    show = show_exec if session.line.verb is None else show_page
    show(session.client, session.operand, session.output)
    return Exit.DONE


def why(session: Session) -> int:
    """Print why an exec, or as a verb a search, is in its state."""
    try:
        show_why(session.client, session.operand, session.output)
    except NoSuchExec:
        from dlicmd.cli.commands.newest import is_search  # only for a name that no exec has
        from dlicmd.cli.commands.searches import why as why_search

        if session.line.verb is None or not is_search(session.client, session.operand):
            raise
        return why_search(session)
    return Exit.DONE


def stop(session: Session) -> int:
    """Stop an exec; as a verb several."""
    if session.line.verb is not None:
        from dlicmd.cli.commands.several import stop_several  # only for a verb

        return stop_several(session)
    return do("Stop exec", session.operand, session.client.stop_exec, session.output)


def delete(session: Session) -> int:
    """Delete an exec and its files; as a verb several."""
    if session.line.verb is not None:
        from dlicmd.cli.commands.several import delete_several  # only for a verb

        return delete_several(session)
    return do("Delete exec", session.operand, session.client.delete_exec, session.output)


def resize(session: Session) -> int:
    """Change the number of slots of a running elastic exec."""
    name, wanted = session.operands
    if wanted != AUTO and not (wanted.isascii() and wanted.isdigit() and len(wanted) < 10):
        raise UsageProblem(f"--exec-resize: '{inert(wanted)}' is not a number of slots, and not {AUTO}")
    session.need(wire.EXT_SLOTS, "cannot resize jobs")
    found = session.client.resize_exec(name, None if wanted == AUTO else int(wanted))
    if session.output.is_data:
        emit_value(found, session.output)
    elif wanted == AUTO:
        emit(f"{inert(name)} gets its fair share again; it has {found['slots']} slot{'s' * (found['slots'] != 1)}")
    else:
        emit(f"{inert(name)}: {found['before']} → {found['slots']} slot{'s' * (found['slots'] != 1)}")
    return Exit.DONE


def deploy(session: Session) -> int:
    """Deploy the trained model of an exec to the server's inference service."""
    asked = _deployment(session.line)
    if session.output.is_original:
        emit(f"{asked}\n{session.operand}")
    text = session.client.deploy_exec(session.operand, asked).text()
    emit_said(text, session.output, f"Deploy exec {session.operand} succeed.",
              indent=4 if session.output.is_recorded else 2)
    return Exit.DONE


def delete_all(session: Session) -> int:
    """Delete all execs of the user, on a terminal after a question."""
    def question() -> str:
        listed = session.client.execs()
        return f"Delete {counted([one.id for one in listed], listed)}?" if listed else ""

    if not confirmed_on_terminal(session, question):
        return Exit.FAILED
    session.client.delete_execs()
    emit_said("", session.output, "Execs are deleted")
    return Exit.DONE


def _deployment(line: CommandLine) -> dict[str, Any]:
    """Return the deployment that a command line requests. Raises ArgvError without a kernel, and UsageProblem for a
    pair that is not KEY=VALUE."""
    if not line.text("--kernel"):
        raise ArgvError("--exec-deploy: no kernel given; add --kernel FILE")
    asked: dict[str, Any] = {name: line.text(f"--{name}") for name in wire.DEPLOYMENT_TEXTS}
    asked |= {wire.ATTRIBUTES: _pairs(line, "--attributes"), wire.ENVIRONMENTS: _pairs(line, "--envs")}
    return {name: value for name, value in asked.items() if value is not None}


def _pairs(line: CommandLine, option: str) -> dict[str, str] | None:
    """Return `KEY=VALUE,...` as a mapping, or None when the option is not given. Only the first `=` of a pair divides
    it."""
    text = line.text(option)
    if text is None:
        return None
    pairs = {}
    for pair in filter(str.strip, text.split(",")):
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise UsageProblem(f"{option}: '{pair}' is not KEY=VALUE")
        pairs[key.strip()] = value
    return pairs
