"""The objects of the contract, made from rows. Pure: the caller passes everything that a row does not contain."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, cast

from dlicmd.contract import states, wire
from dlicmd.contract.reading import whole
from dlicmd.contract.secret import masked_arguments
from local_backend.api.models.accounts import ConnectionObject, TokenObject, UserObject
from local_backend.api.models.applications import Application, ApplicationDetails
from local_backend.api.models.common import present
from local_backend.api.models.execs import Exec, Holder, MoreOfExec, Pending, Told, Why
from local_backend.api.models.kubernetes import JobStatus, Limits, ParallelJob, Pod, Requests, TaskGroup
from local_backend.run_values import amount
from local_backend.runtime import needs
from local_backend.runtime.launcher_log import one_line
from local_backend.runtime.paths import DRIVER, pod_name, worker_task
from local_backend.scheduler.model import CPU, WHOLE, Reason
from local_backend.services.access import Caller
from local_backend.services.connections import ConnectionService
from local_backend.services.views import HAS_SLOTS, ExecView, is_parked, pack_id, slots_of
from local_backend.store.connections import ConnectionRow
from local_backend.store.execs import NAMESPACE, ExecRow
from local_backend.store.labels import Labels
from local_backend.store.tokens import TokenRow
from local_backend.store.users import UserRow
from local_backend.workload import SERVICE

#: Address of the host that runs all processes.
ADDRESS = "127.0.0.1"
#: Id of the only instance (instance group).
INSTANCE_ID = str(uuid.uuid5(uuid.NAMESPACE_URL, NAMESPACE))
#: Numbers that a program reports about its progress.
PROGRESS = (
    wire.WORKERS, wire.EPOCH, wire.EPOCHS, wire.STEP, wire.STEPS, wire.LOSS, wire.ACCURACY, wire.SAMPLES_PER_SECOND,
    wire.SECONDS_LEFT, wire.GENERATION, wire.RESIZES, wire.DEATHS, wire.READY_KERNELS,
)
_MOST_PROGRESS = 1e300
#: Types of applications in the contract, other than "Training".
_TYPES: dict[str, str] = {SERVICE: "Inference"}
#: The last epoch second of the year 9999.
_LAST_SECOND = 253_402_300_799
_SPEED = frozenset({wire.SAMPLES_PER_SECOND, wire.SECONDS_LEFT})
_NOW = _SPEED | {wire.WORKERS, wire.READY_KERNELS}
_WAITING = frozenset({states.SUBMITTED, states.PENDING})
_JOB_STATUS = {
    states.SUBMITTED: "Pending", states.PENDING: "Pending", states.RUNNING: "Running", states.RECOVERING: "Running",
    states.FINISHED: "Succeeded", states.KILLED: "Failed", states.ERROR: "Failed",
}


def iso(seconds: float) -> str:
    """Return epoch seconds as `YYYY-MM-DDTHH:MM:SSZ`."""
    return datetime.fromtimestamp(int(seconds), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def utc(seconds: float) -> datetime:
    """Return epoch seconds that a program may have set, as UTC without a zone. Any number, even NaN, becomes a time in
    the years 1970 to 9999."""
    return datetime.fromtimestamp(min(max(0, seconds), _LAST_SECOND), timezone.utc).replace(tzinfo=None)


def exec_object(view: ExecView, scheduler_url: str) -> Exec:
    """Return an exec: the recorded fields in their order, then the fields of this server. Unknown values are absent,
    never null."""
    row, progress = view.row, view.progress
    experiment = row.workload.experiment

    def first(value: str) -> str | None:
        """Return a value for clients of the first product generation. Only execs submitted with their `sigName` have
        it."""
        return None if row.workload.sig_name is None else value

    shown: Exec = {
        "id": row.id,
        "args": row.args,
        "submissionId": row.id,
        "creator": row.creator,
        "state": row.shown_state,
        "appId": row.id,
        "schedulerUrl": scheduler_url,
        "modelFileOwnerName": row.creator,
        "workDir": row.work_dir,
        "appName": row.app_name,
        "createTime": iso(row.create_time),
        "elastic": row.elastic,
        "nameSpace": NAMESPACE,
        "numWorker": row.num_worker,
        "framework": row.framework,
        "dataSource": json.loads(row.data_source) if row.data_source else None,
        "startTime": iso(row.start_time) if row.start_time else None,
        "endTime": iso(row.end_time) if row.end_time else None,
        "message": row.message or saying(row, progress),
        "reason": row.reason,
        "exitCode": row.exit_code,
        "hasResult": view.has_result if row.terminal else None,
        "userName": first(row.creator),
        "sigName": row.workload.sig_name,
        "sigId": first(INSTANCE_ID),
        "masterURL": first(scheduler_url),
        "executionUserName": first(row.creator),
        "slots": len(slots_of(row)) if row.state in HAS_SLOTS else None,
        "fixedSlots": row.pinned,
        "search": experiment.search if experiment else None,
        "experiment": experiment.id if experiment else None,
        "recovering": row.state == states.RECOVERING or None,
    }
    return cast("Exec", {**present(shown), **_progress(progress, row.state in HAS_SLOTS, is_parked(row))})


def more(view: ExecView, labels: Labels) -> MoreOfExec:
    """Return the fields of an exec for clients that want details: the words of its program, the last values of its
    metrics, its labels, and the values by which lists find and sort it."""
    program = view.row.workload.program
    words = masked_arguments(program.user_cmd or program.arguments)
    shown: MoreOfExec = {
        "arguments": words or None, "lastMetrics": dict(view.main_metrics) or None,
        "metrics": {name: whole(value) for name, value in view.metrics.items()} or None,
        "parameters": {name: _amount(value) for name, value in view.parameters.items()} or None,
        "tags": list(labels.tags) or None, "note": labels.note or None, "favorite": labels.favorite or None,
    }
    return present(shown)


def _amount(value: str | int | float | bool) -> str | int | float | bool:
    """Return a parameter as a number if it is one."""
    found = amount(value)
    return value if found is None else whole(found)


def pending(reason: Reason, parked: bool = False) -> Pending:
    """Return why an exec is pending or parked: one sentence with all facts, and the single facts."""
    text = f"{'parked, ' * parked}{reason.sentence}"
    position = reason.position or None
    start = None if reason.estimate is None else iso(reason.estimate)
    if position is not None:
        text += f"; position {position} in the queue"
    if start is not None:
        text += f", not before {start}"
    shown: Pending = {"reason": reason.code, "queuePosition": position, "expectedStart": start, "message": text}
    return present(shown)


def why(view: ExecView, others: Sequence[ExecRow]) -> Why:
    """Return what a pending exec needs, which of the `others` hold slots, when it starts, and what the user can do."""
    row, reason = view.row, view.reason
    if reason is None:
        shown: Why = {"id": row.id, "state": row.shown_state, "message": row.message or None}
        return present(shown)
    return {
        "id": row.id,
        "state": row.shown_state,
        **pending(reason, is_parked(row)),
        "advice": reason.advice,
        "starts": reason.starts,
        "holders": [_holder(other) for other in others if slots_of(other)],
    }


def _holder(row: ExecRow) -> Holder:
    """Return how many slots an exec holds, and how many of them it can release while it runs."""
    spec = row.workload
    has, (each, least, _) = len(slots_of(row)), needs.slots(spec.resources)
    gives = max(0, has - each * least) if row.elastic and not spec.resources.shares and row.pinned is None else 0
    return {
        "id": row.id, "slots": has, "elastic": row.elastic, "gives": gives, "shares": spec.resources.shares,
        "priority": spec.scheduling.priority, "model": None if spec.service is None else spec.service.model,
    }


def user_object(row: UserRow) -> UserObject:
    """Return a user without the password."""
    shown: UserObject = {"name": row.name, "role": row.role, "created": iso(row.created), "subject": row.subject}
    return present(shown)


def token_object(row: TokenRow) -> TokenObject:
    """Return a token for a program. Its text is stored nowhere."""
    return {
        "id": row.id or "", "name": row.name or "", "user": row.user, "scope": row.scope or "",
        "created": iso(row.created or 0.0), "expires": iso(row.expires),
    }


def connection_object(row: ConnectionRow, caller: Caller, connections: ConnectionService) -> ConnectionObject:
    """Return a connection without its secrets. Only administrators and the owner see where the secrets are kept."""
    return {
        "id": row.id,
        "name": row.name,
        "type": row.kind,
        "owner": row.owner,
        "sharedWith": "everybody" if row.shared_with is True else list(row.shared_with or ()),
        "values": {name: value for name, value in row.values.items() if not isinstance(value, Mapping)},
        "secrets": connections.secrets(caller, row),
        "fromFile": connections.known.is_of_file(row),
        "created": iso(row.created) if row.created else "",
    }


def saying(row: ExecRow, progress: Mapping[str, Any]) -> str | None:
    """Return the message that the program of a running exec reports, in one line. A recovering exec always has a
    message."""
    text = progress.get(wire.MESSAGE) if row.state in HAS_SLOTS else None
    said = one_line(text) if isinstance(text, str) else ""
    return said or ("recovering" if row.state == states.RECOVERING else None)


def _progress(progress: Mapping[str, Any], running: bool, parked: bool) -> dict[str, float]:
    """Return the numbers of a progress. The number of workers is included only while the exec runs, the speed
    and the remaining time only while it trains."""
    return {
        key: value
        for key in PROGRESS
        if isinstance(value := progress.get(key), int | float)
        and not isinstance(value, bool)
        and abs(value) < _MOST_PROGRESS  # no infinity, no NaN, and no integer beyond the range of floats
        and (running or key not in _NOW)
        and not (parked and key in _SPEED)
    }


#: Fields of application objects by which they can be sorted, including fields that only some applications have.
APPLICATION_FIELDS = frozenset({
    "id", "name", "state", "type", "tag", "consumer", "submit_user", "priority", "submit_time", "start_time",
    "end_time", "task0_resreq", "task12n_resreq", "task12n_num", "used_gpu", "used_mem", "used_cpu", "task0",
    "task12n", "kernels", "is_packing", "pack_id", wire.MESSAGE, wire.REASON,
})
#: Further fields, of applications in the first product generation.
SPARK_FIELDS = frozenset({
    "sparkinstancegroupid", "applicationid", "applicationname", "driverid", "uiport", "driver", "executors", "slots",
    "demandslots", "hosts", "coresused", "memused", "username", "driverexecutionuser", "executorexecutionuser",
    "timestamp", "submittedtime", "masterUrl", "endtime", "scheduleName", "issharedapp", "apprunduration",
    "masterSeqNo", "masterService", "model", "dataset", "dltype", "tunningname", "sigName", "historyServerUrl",
})


def told(view: ExecView) -> Told:
    """Return the fields of an unfinished exec that the server knows better than its row: why it is pending, that its
    disk is full."""
    shown: Told = {} if view.reason is None else {**pending(view.reason, is_parked(view.row))}
    if view.disk_trouble:
        shown["message"] = view.disk_trouble
    return shown


def application_object(view: ExecView) -> Application:
    """Return the scheduler's view of an exec. Times are whole epoch seconds, memory is in MiB."""
    row, consumer, kind = view.row, view.consumer, view.kind
    spec = row.workload
    running = row.state in HAS_SLOTS
    slots = len(slots_of(row))
    part = needs.share(spec.resources, kind) / WHOLE if spec.resources.shares else 1
    application: Application = {
        "id": row.id,
        "name": row.app_name,
        "state": row.shown_state,
        "type": _TYPES.get(row.kind, "Training"),
        "tag": f"{consumer}/{row.user}",
        "consumer": consumer,
        "submit_user": row.user,
        "priority": spec.scheduling.priority,
        "submit_time": int(row.create_time),
        "start_time": int(row.start_time or 0),
        "end_time": int(row.end_time or 0),
        "task12n_resreq": _request(row, kind),
        "task12n_num": row.num_worker,
        "used_gpu": round(slots * part, 3) if kind != CPU else 0,
        "used_cpu": round(slots * part, 3) if kind == CPU else 0,
        "used_mem": (spec.resources.memory or 0) // 2**20 * (slots // needs.slots(spec.resources)[0]),
        "task12n": [
            {"name": worker_task(number), "state": row.shown_state if runs or not running else states.FINISHED}
            for number, runs in view.executors.items()
        ],
        "kernels": [{"ip": ADDRESS}] if running else [],
        "is_packing": False,
    }
    if spec.resources.pack:
        application["pack_id"] = pack_id(row)
    if row.has_driver:
        application["task0_resreq"] = "ncpus=1,ngpus=0,mem=0"
        application["task0"] = {"name": DRIVER, "state": row.shown_state}
    if row.state not in HAS_SLOTS or not slots or row.state == states.RECOVERING:
        now = told(view)
        application["message"] = now.get("message") or saying(row, view.progress) or row.message or None
        application["reason"] = now.get("reason") or row.reason or None
    return present(application)


def _request(row: ExecRow, kind: str) -> str:
    cpus, gpus = _devices(row, kind)
    return f"ncpus={plain(cpus)},ngpus={plain(gpus)},mem={(row.workload.resources.memory or 0) // 2**20}"


def plain(value: float) -> str:
    """Return a number without an exponent and without trailing zeros: clients parse whole numbers as integers."""
    return f"{value:.6f}".rstrip("0").rstrip(".")


def _devices(row: ExecRow, kind: str) -> tuple[float, float]:
    """Return the cores and GPUs that a worker requests. A worker on GPUs needs a core, too."""
    asked = row.workload.resources
    count = needs.share(asked, kind) / WHOLE if asked.shares else max(1, asked.device_num)
    return (1, count) if kind != CPU else (count, 0)


def spark_application(application: Application, row: ExecRow, now: float) -> ApplicationDetails:
    """Return an application as /scheduler/applications shows it, with the names of the first product generation.
    `now` is in epoch seconds."""
    began = row.start_time or 0
    until = row.end_time or (now if row.state in HAS_SLOTS else began)
    shown: dict[str, Any] = {
        "sparkinstancegroupid": INSTANCE_ID,
        "applicationid": row.id,
        "applicationname": row.app_name,
        "driverid": row.id,
        "driver": {"id": row.id, "state": row.shown_state, "host": ADDRESS},
        "executors": [
            {"id": task["name"].rpartition("-")[2], "state": task["state"], "host": ADDRESS}
            for task in application["task12n"]
        ],
        "slots": len(slots_of(row)),
        "type": "BATCH",
        "username": row.user,
        "submittedtime": iso(row.create_time),
        "endtime": iso(row.end_time) if row.end_time else "",
        "apprunduration": round((until - began) / 60, 2) if began else 0.0,
    }
    return cast("ApplicationDetails", shown | {key: value for key, value in application.items() if key not in shown})


def job_uid(row: ExecRow) -> str:
    """Return a stable UUID of an exec."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{NAMESPACE}/{row.id}/{row.create_time}"))


def parallel_job(view: ExecView) -> ParallelJob:
    """Return an exec as a ParallelJob."""
    row, reason = view.row, view.reason
    status: JobStatus = {
        "jobStatus": _JOB_STATUS[row.state],
        "creationTimestamp": iso(row.create_time),
    }
    if row.state in _WAITING and (text := pending(reason)["message"] if reason else row.message):
        status["jobPendingReason"] = text
    if row.start_time and row.state not in _WAITING:
        status["jobStartTime"] = iso(row.start_time)
    cpus, gpus = _devices(row, view.kind)
    groups = [_task_group("task12n", row.num_worker, row.workload.resources.memory, cpus, gpus)]
    if row.has_driver:
        groups.insert(0, _task_group(DRIVER, 1, None, 1, 0))
    return {
        "apiVersion": "ibm.com/v1alpha1",
        "kind": "ParallelJob",
        "metadata": {
            "name": row.id,
            "uid": job_uid(row),
            "namespace": NAMESPACE,
            "creationTimestamp": iso(row.create_time),
            "labels": {"msd/job": row.id, "msd/job-type": _TYPES.get(row.kind, "Training")},
            "annotations": {
                "lsf.ibm.com/consumer": view.consumer,
                "lsf.ibm.com/submissionUser": row.user,
                "lsf.ibm.com/gpu": _gpu(gpus),
            },
        },
        "spec": {"name": row.id, "description": row.app_name, "taskGroups": groups},
        "status": status,
    }


def _task_group(name: str, replica: int, memory: int | None, cpus: float, gpus: float) -> TaskGroup:
    # Clients read both keys without checking that they exist. 0 means none requested, and no limit.
    limits: Limits = {"memory": f"{(memory or 0) / 2**20:.6f}Mi"}
    requests: Requests = {**limits, "cpu": plain(cpus), "nvidia.com/gpu": plain(gpus)}
    return {
        "metadata": {"name": name, "annotations": {"lsf.ibm.com/gpu": _gpu(gpus)}},
        "spec": {
            "replica": replica,
            "template": {
                "spec": {"containers": [{"name": "msdtask", "resources": {"requests": requests, "limits": limits}}]}
            },
        },
    }


def _gpu(count: float) -> str:
    return f"num={plain(count)}" if count else ""


def pods(view: ExecView, node: str) -> list[Pod]:
    """Return the processes of a running exec as pods on `node`. An exec that is not running has none."""
    row = view.row
    if row.state not in HAS_SLOTS:
        return []
    tasks = [*([DRIVER] if row.has_driver else []), *(worker_task(number) for number in view.running_executors)]
    return [
        {
            "metadata": {
                "name": pod_name(row.id, task),
                "labels": {"controller-uid": job_uid(row), "lsf.ibm.com/jobId": row.id},
                "ownerReferences": [{"uid": job_uid(row), "kind": "ParallelJob", "name": row.id}],
            },
            "spec": {"nodeName": node},
            "status": {"podIP": ADDRESS, "podIPs": [{"ip": ADDRESS}], "phase": "Running"},
        }
        for task in tasks
    ]
