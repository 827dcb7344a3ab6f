"""`dlim run DIR`: deploy a folder, start the model, print how to call it, and follow its log."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from dlicmd.cli.render import emit, emit_value
from dlicmd.cli.session import Session
from dlicmd.contract import dlim
from dlicmd.contract.exits import Exit
from dlicmd.dlim.commands.deploy import checked, upload
from dlicmd.dlim.commands.logs import follow
from dlicmd.dlim.commands.models import seconds_to_wait
from dlicmd.sdk import backend
from dlicmd.sdk.messages import inert, info
from dlicmd.sdk.model_objects import DeployedModel


def run(session: Session) -> int:
    """Deploy and start a model, and return when it answers; on a terminal, follow its log until Ctrl-C."""
    found, client = checked(session, session.operand), session.client
    name = found.folder.name
    upload(session, found)
    if not session.output.is_data:
        emit(dlim.deployed(name))
    if found.current is None or not found.current.is_started:
        client.start_model(name)
    try:
        client.wait_model(name, seconds_to_wait(session))
        model = client.model(name)
        _tell(session, model, _sample(session.operand))
        follows = sys.stdout.isatty() and not session.output.is_data and not session.line.flag("--no-follow")
        if follows:
            info("the log of the kernels follows; Ctrl-C leaves the model running")
            follow(session, name, 0)
    except KeyboardInterrupt:
        info(f"{name} continues to serve; to stop it: dlim model stop {name}")
        return Exit.INTERRUPTED
    if not follows:
        info(f"to stop it: dlim model stop {name}")
    return Exit.DONE


def _tell(session: Session, model: DeployedModel, sample: str) -> None:
    """Print the URL of a model, and a command that sends a request."""
    if session.output.is_data:
        emit_value(model, session.output)
        return
    url = url_of(session, model)
    emit(f"{inert(model.name)} answers at {inert(url)}")
    emit(inert(f"  {curl(session, url, sample)}"))


def url_of(session: Session, model: DeployedModel) -> str:
    """Return the URL that takes requests: that of the gateway, or the server's."""
    if model.service_uri:
        return model.service_uri
    address = session.address
    if not address:
        found = backend.running()
        address = found.url if found is not None else ""
    return address + dlim.inference_path(model.name)


def curl(session: Session, url: str, sample: str) -> str:
    """Return a command of curl that sends a request. It fetches the token when it runs, so that it shows no secret."""
    words = ["dlim", "config", "-s"]
    if session.address and any(given.option.name == "--rest-server" for given in session.line.given):
        words += ["--rest-server", session.address]
    trust = session.trust if session.place is not None and not session.place.http else {}
    safety = f"--cacert {shlex.quote(trust['--ca-cert'])} " if "--ca-cert" in trust else "-k " if trust else ""
    return f'curl -sS {safety}-H "Authorization: Bearer $({shlex.join(words)})" -d {sample} {shlex.quote(url)}'


def _sample(folder: str) -> str:
    """Return the data of the example of a request: a file of the folder, or an empty object."""
    found = dlim.example_file(Path(folder))
    return shlex.quote(f"@{found}") if found.is_file() else "'{}'"
