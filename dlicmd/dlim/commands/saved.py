"""The commands about the model store: save the result of a job under a name, and list what is saved."""

from __future__ import annotations

from dlicmd.cli.commands.newest import named
from dlicmd.cli.render import emit, emit_value, scalar, show_rows
from dlicmd.cli.session import Session
from dlicmd.contract import dlim
from dlicmd.contract.argv import ArgvError
from dlicmd.contract.dlim_commands import NAME
from dlicmd.contract.exits import Exit
from dlicmd.dlim.commands.models import agreed_on_terminal
from dlicmd.sdk.deployment import checked_name
from dlicmd.sdk.errors import UsageProblem
from dlicmd.sdk.messages import inert

_LONGEST_NUMBER = 9
_COLUMNS = ("name", "version", "exec", "space", "creator")


def divided(word: str) -> tuple[str, int | None]:
    """Return the name and the version in `NAME[:VERSION]`. Raises UsageProblem."""
    name, colon, version = word.partition(":")
    if colon and not (version.isascii() and version.isdigit() and 0 < len(version) <= _LONGEST_NUMBER):
        raise UsageProblem(f"'{inert(word)}' is not NAME:VERSION, such as digits:2")
    return name, int(version) if colon else None


def save(session: Session) -> int:
    """Save the result of a job as a model."""
    name = session.line.text(NAME.name)
    if name is None:
        raise ArgvError("dlim model save needs --name NAME; for example: dlim model save last --name digits")
    checked_name(name)
    [exec_id], _ = named(lambda: session.client, [session.operand])
    found = session.client.save_model(exec_id, name, session.line.text("--path"))
    if session.output.is_data:
        emit_value(found, session.output)
    else:
        version = f" version {found.version}" if found.version else ""
        emit(f"The result of {inert(exec_id)} is saved as model <{name}>{version}")
    return Exit.DONE


def list_all(session: Session) -> int:
    """Print the models of the model store, or what a deployment of one of them uses."""
    if session.operands:
        return _loading(session)
    show_rows(session.client.saved_models(), session.output, _COLUMNS,
              lambda item, column: scalar(item.get(column) or "-"))
    return Exit.DONE


def _loading(session: Session) -> int:
    name, version = divided(session.operand)
    found = session.client.saved_loading(name, version)
    if session.output.is_data:
        emit_value(found, session.output)
        return Exit.DONE
    chosen = {"kernel": found.kernel, "weights": found.weight, "class": found.model_class}
    emit("A deployment uses:\n" + "\n".join(f"  {key:<8} {inert(one) or '-'}" for key, one in chosen.items()))
    in_files = {"kernels": found.kernels, "weights": found.weights, "classes": found.classes}
    emit("Possible:\n" + "\n".join(f"  {key:<8} {inert(', '.join(all_of)) or '-'}" for key, all_of in in_files.items()))
    if found.problem:
        emit(f"The deployment would be refused: {inert(found.problem)}")
    return Exit.DONE


def unsave(session: Session) -> int:
    """Delete a model of the model store, on a terminal after a question."""
    name, version = divided(session.operand)
    shown = f"version {version} of <{inert(name)}>" if version is not None else f"all versions of <{inert(name)}>"
    if not agreed_on_terminal(session, f"Delete {shown} from the model store?"):
        return Exit.FAILED
    session.client.delete_saved(name, version)
    if session.output.is_data:
        emit_value({dlim.NAME: name, dlim.VERSION: version}, session.output)
    else:
        emit(f"Deleted {shown} from the model store")
    return Exit.DONE
