"""`dlim model view`: what was deployed, or what the model does now, in the layout of the original dlim."""

from __future__ import annotations

from collections.abc import Mapping

from dlicmd.cli.render import emit, emit_value
from dlicmd.cli.session import Session
from dlicmd.cli.show.table import table
from dlicmd.cli.show.times import full
from dlicmd.contract import dlim
from dlicmd.contract.argv import ArgvError
from dlicmd.contract.exits import Exit
from dlicmd.contract.reading import epoch, words
from dlicmd.sdk.messages import one_line
from dlicmd.sdk.model_objects import DeployedModel, ServingKernel, ServingReplica, ServingState

#: Columns at which the values begin: of the head, and of each service. Programs read these lines.
_HEAD, _REPLICA = 18, 22
_LINE = "=" * 60
_REVISIONS = ("revision", "state", "weight", "kernels", "creator", "source")


def view(session: Session) -> int:
    """Print a model; with -s its state and services, with -a each kernel, too."""
    name, line, client = session.operand, session.line, session.client
    if line.flag("--all") and not line.flag("--status"):
        raise ArgvError("-a is only for -s: dlim model view NAME -s -a")
    if not line.flag("--status"):
        found = client.model(name)
        emit_value(found, session.output) if session.output.is_data else emit("\n".join(_deployed(found)))
        return Exit.DONE
    serving = client.serving(name)
    if session.output.is_data:
        emit_value(serving, session.output)
        return Exit.DONE
    # The state on the list of instances cannot say that a start has failed.
    model = client.model(name)
    emit("\n".join(status_lines(name, model.state or serving.state, serving, line.flag("--all"))))
    return Exit.DONE


def status_lines(name: str, state: str, found: ServingState, with_kernels: bool) -> list[str]:
    """Return the lines of `view -s`. A line about a kernel has one blank after its label."""
    lines = [_row("Name", name, _HEAD), _row("State", state, _HEAD),
             _row("Serving replica", str(len(found.replicas)), _HEAD)]
    if found.message and state != dlim.STARTED:
        lines.append(_row("Message", found.message, _HEAD))
    for replica in found.replicas:
        lines += [_LINE, *_replica(replica)]
        for kernel in replica.kernels if with_kernels else ():
            lines += ["", *_kernel(kernel)]
    return lines


def _row(label: str, value: str, width: int) -> str:
    return f"{label + ':':<{width}}{one_line(value)}".rstrip()


def _replica(found: ServingReplica) -> list[str]:
    values = {
        "Serving service ID": found.id, "Service JobID": found.job_id, "GPU Mode": found.gpu_mode,
        "Served clients": str(found.clients or 0), "Pending requests": str(found.pending or 0),
        "Requests per second": f"{found.requests_per_second or 0.0:.2f}",
        "Data per second": f"{found.data_per_second or 0.0:.2f}", "Kernel started": str(len(found.kernels)),
    }
    return [_row(label, value, _REPLICA) for label, value in values.items()]


def _kernel(found: ServingKernel) -> list[str]:
    values = {
        "Kernel ID": found.id, "Host": found.host, "Status": found.status, "Total tasks": str(found.total or 0),
        "Running tasks": str(found.running or 0), "Finished tasks": str(found.finished or 0),
        "Failed tasks": str(found.failed or 0),
    }
    return [f"{label}: {one_line(value)}".rstrip() for label, value in values.items()]


def _deployed(found: DeployedModel) -> list[str]:
    values = {
        "Name": found.name, "State": found.state or (dlim.STARTED if found.is_started else dlim.STOPPED),
        "Message": found.message, "Tag": found.tag, "Creator": found.creator, "Runtime": found.runtime,
        "Kernel path": found.kernel_path, "Weight path": found.weight_path, "Model path": found.model_path,
        "Size": str(found.size or 0), "Created": _time(found.create_time), "Updated": _time(found.last_updated_time),
        "Started": _time(found.started_at), "REST URI": found.service_uri or "-",
        "Streaming URI": found.stream_uri or "-", "Attributes": _joined(found.attributes),
        "Environment": ", ".join(found.environment), "Shared with": _users(found.shared_with),
    }
    lines = [_row(label, value, _HEAD) for label, value in values.items() if value]
    rows = [{"revision": str(one.number), "state": one.state, "weight": str(one.weight or 0),
             "kernels": "-" if one.kernels is None else str(one.kernels), "creator": one.creator,
             "source": words(one.source.get(dlim.EXEC)) or "-"} for one in found.revisions]
    return [*lines, "", table(rows, _REVISIONS)] if rows else lines


def _time(seconds: int | None) -> str:
    known = epoch(seconds)  # servers may send any number
    return full(known) if known else ""


def _joined(values: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in values.items())


def _users(shared: list[str] | bool) -> str:
    return "all users" if shared is True else ", ".join(shared or ())
