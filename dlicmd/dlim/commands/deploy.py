"""`dlim model deploy`: a folder, or a model of the model store, as a model or its next revision."""

from __future__ import annotations

from typing import NamedTuple

from dlicmd.cli import console
from dlicmd.cli.render import emit, emit_value
from dlicmd.cli.session import Session
from dlicmd.cli.show.progress import bar
from dlicmd.contract import dlim
from dlicmd.contract.argv import ArgvError
from dlicmd.contract.dlim_commands import FOLDER, FORCE, KERNEL_TYPE, NAME
from dlicmd.contract.exits import Exit
from dlicmd.dlim.commands.models import agreed_in_words
from dlicmd.dlim.commands.saved import divided
from dlicmd.sdk.deployment import ModelFolder, model_folder
from dlicmd.sdk.errors import NoSuchModel, UsageProblem
from dlicmd.sdk.messages import inert, one_line
from dlicmd.sdk.model_objects import DeployedModel

_SAVED, _KERNEL, _WEIGHT, _ATTRIBUTE = "--saved", "--kernel", "--weight", "--attribute"


class CheckedFolder(NamedTuple):
    """The folder of a deployment as the user named it, checked, and whether a model has its name."""

    text: str
    folder: ModelFolder
    current: DeployedModel | None


def deploy(session: Session) -> int:
    """Deploy a model, and print the lines of the original dlim."""
    line = session.line
    if line.text(_SAVED) is not None:
        return _deploy_saved(session, line.text(_SAVED) or "")
    for option in (_KERNEL, _WEIGHT, _ATTRIBUTE):
        if line.text(option) is not None or line.many(option):
            raise ArgvError(f"{option} is only for {_SAVED}; of a folder, {dlim.MODEL_JSON} names the file")
    if line.text(FOLDER.name) is None:
        raise ArgvError("dlim model deploy needs -p DIR; for example: dlim model deploy -p ./digits")
    found = checked(session, line.text(FOLDER.name) or "")
    if found.current is not None and not line.flag(FORCE.name) and not agreed_in_words(dlim.exists(found.folder.name)):
        console.aside("dlim: nothing was changed; -f updates the model without a question")
        return Exit.FAILED
    model = upload(session, found)
    if session.output.is_data:
        emit_value(model, session.output)
    else:
        emit(dlim.deployed(found.folder.name))
    return Exit.DONE


def checked(session: Session, text: str) -> CheckedFolder:
    """Check the folder of a deployment, and return it with the model that has its name now. Raises UsageProblem,
    PackageError."""
    folder = model_folder(text, session.line.text(KERNEL_TYPE.name), session.line.text(NAME.name))
    try:
        return CheckedFolder(text, folder, session.client.model(folder.name))
    except NoSuchModel:
        return CheckedFolder(text, folder, None)


def upload(session: Session, found: CheckedFolder) -> DeployedModel:
    """Upload the folder, and print the recorded lines before the last one."""
    tells = not session.output.is_data
    if tells:
        emit(dlim.UPLOADING)
    line, client = session.line, session.client
    call = client.deploy_model if found.current is None else client.redeploy_model
    model = call(found.text, kernel_type=line.text(KERNEL_TYPE.name), name=line.text(NAME.name), progress=bar)
    if tells:
        emit("\n".join([*map(dlim.uploaded, found.folder.files), dlim.REGISTERING]))
    return model


def _deploy_saved(session: Session, saved: str) -> int:
    """Deploy a model of the model store."""
    line = session.line
    if line.text(FOLDER.name) is not None:
        raise ArgvError(f"give -p DIR or {_SAVED} NAME, not both")
    saved, version = divided(saved)
    attributes = {}
    for pair in line.many(_ATTRIBUTE):
        key, equals, value = pair.partition("=")
        if not (key and equals):
            raise UsageProblem(f"'{inert(pair)}' is not NAME=VALUE, such as class=network:Net")
        attributes[key] = value
    given = {dlim.KERNEL_TYPE: line.text(KERNEL_TYPE.name), dlim.KERNEL_FILE: line.text(_KERNEL),
             dlim.WEIGHT_FILE: line.text(_WEIGHT), dlim.NAME: line.text(NAME.name), dlim.VERSION: version,
             dlim.ATTRIBUTES: attributes or None}
    model = session.client.deploy_saved(saved, {key: value for key, value in given.items() if value is not None})
    if session.output.is_data:
        emit_value(model, session.output)
    else:
        emit(dlim.deployed(line.text(NAME.name) or one_line(model.name)))
    return Exit.DONE
