"""`--exec-deploy`: deploy a trained model to the server's inference service."""

from __future__ import annotations

import json
from typing import Any

from dlicmd.client import Client
from dlicmd.contract import wire
from dlicmd.contract.argv import CommandLine
from dlicmd.errors import UsageProblem
from dlicmd.render import Output, emit_said, emit_value


def deploy(client: Client, exec_id: str, asked: dict[str, Any], output: Output) -> None:
    """Deploy the model of an exec, and print the server's answer."""
    text = client.deploy_exec(exec_id, asked).text().strip()
    try:
        emit_value(json.loads(text), output)
    except (ValueError, RecursionError):
        emit_said(text, output, f"Deploy exec {exec_id} succeed.")


def deployment(line: CommandLine) -> dict[str, Any]:
    """Return the deployment that a command line requests. Raises UsageProblem without a kernel, and for a pair that is
    not KEY=VALUE."""
    if not line.text("--kernel"):
        raise UsageProblem("--exec-deploy: no kernel given; add --kernel FILE")
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
