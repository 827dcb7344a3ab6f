"""Models, kernels and runtimes as the contract shows them. Pure."""

from __future__ import annotations

import json
import platform
import uuid
from pathlib import Path
from typing import Any, cast

from dlicmd.contract import dlim
from local_backend.api.models.common import present
from local_backend.api.models.inference import (
    SHOWN,
    InstanceObject,
    KernelObject,
    LoadObject,
    ModelLoadingObject,
    ModelObject,
    ReplicaObject,
    RevisionObject,
    RuntimeObject,
    SavedModelObject,
)
from local_backend.api.objects import iso
from local_backend.inference.control import KernelLoad
from local_backend.inference.loading import Loading
from local_backend.inference.serving_history import LoadPoint
from local_backend.services.model_views import GatewayAddress, ModelView, ServiceInstance, job_id
from local_backend.store.models import DRAINING, SERVING, STORED, RevisionRow, RuntimeRow
from local_backend.store.saved_models import SavedModelRow


def model_object(view: ModelView, host: str, folder: Path) -> ModelObject:
    """Return a model. `folder` has its files. `host` is the name by which the client has reached the server: if the
    gateway listens on all addresses, the client reaches it by the same name."""
    row, main = view.row, view.main
    value = main.model_json
    address = view.address
    shown: ModelObject = {
        "name": row.name,
        "uid": str(uuid.uuid5(uuid.NAMESPACE_URL, f"model/{row.number}")),
        "tag": value.get("tag", ""),
        "size": main.size,
        "weight_path": value.get("weight_path", ""),
        "model_path": str(folder),
        "create_time": int(row.create_time),
        "last_updated_time": int(row.update_time),
        "started_at": int(row.start_time or 0),
        "creator": row.creator,
        "runtime": value.get("runtime", ""),
        "kernel_path": value.get("kernel_path", ""),
        "service_uri": "" if address is None else service_uri(address, row.name, host),
        "stream_uri": "" if address is None else stream_uri(address, host),
        "attributes": value.get("attributes", []),
        "mk_environments": value.get("mk_environments", []),
        "schema_version": value.get("schema_version", "1"),
        "framework": value.get("framework"),
        "kernel_type": value.get("kernel_type"),
        "state": SHOWN[view.state],
        "message": view.message or None,
        "shared": view.shared,
        "revisions": [revision_object(view, one) for one in view.revisions],
    }
    return present(shown)


def revision_object(view: ModelView, row: RevisionRow) -> RevisionObject:
    """Return a revision of a model."""
    shown: RevisionObject = {
        "number": row.number,
        "state": row.state,
        "weight": view.row.weights.get(row.number, 0),
        "creator": row.creator,
        "createTime": iso(row.create_time),
        "execId": row.exec_id,
        "source": None if row.source is None else json.loads(row.source),
        "kernels": view.ready(row.number),
        "message": row.message,
    }
    return present(shown)


def instance_object(view: ModelView) -> InstanceObject:
    """Return what a model does now."""
    if view.state != SERVING:
        stopped = view.state == STORED
        shown: InstanceObject = {"name": view.row.name, "state": "disabled" if stopped else "not-available",
                                 "message": view.message or None}
        return present(shown)
    return {"name": view.row.name, "state": "enabled", "instances": [
        _replica(view, one) for one in view.instances if one.row.state in (SERVING, DRAINING)]}


def _replica(view: ModelView, one: ServiceInstance) -> ReplicaObject:
    exec_id = str(one.row.exec_id)
    return {
        "isd_uid": str(uuid.uuid5(uuid.NAMESPACE_URL, f"service/{exec_id}")),
        "pj_jobid": job_id(view.row.name, exec_id),
        "gpu_mode": view.profile.gpu,
        "gpu_packid": view.profile.pack or (f"edi-{view.row.name}" if view.profile.gpu == "shared" else ""),
        "client_number": one.load.clients,
        "pending_tasks": one.load.queued,
        "request_per_sec": round(one.rates.requests, 2),
        "data_size_per_sec": round(one.rates.bytes, 2),
        "isd_container": [_kernel(kernel) for kernel in one.load.kernels],
        "revision": one.row.number,
    }


def _kernel(load: KernelLoad) -> KernelObject:
    status = "LEAVING" if load.leaving else "STARTING" if not load.ready else "RUNNING" if load.running else "IDLE"
    return {
        "container_uid": str(load.number),
        "container_host": platform.node(),
        "container_status": status,
        "total_task": load.finished + load.failed + load.running,
        "running_task": load.running,
        "finished_task": load.finished,
        "failed_task": load.failed,
    }


def load_object(point: LoadPoint) -> LoadObject:
    """Return what a model did in one step."""
    return present(cast("LoadObject", point._asdict()))


def service_uri(address: GatewayAddress, name: str, host: str) -> str:
    """Return the URL that takes requests for a model."""
    return f"{address.scheme}://{_host(address, host)}:{address.port}{dlim.inference_path(name)}"


def stream_uri(address: GatewayAddress, host: str) -> str:
    """Return address and port for gRPC."""
    return f"{_host(address, host)}:{address.grpc_port or address.port}"


def _host(address: GatewayAddress, host: str) -> str:
    found = host if address.host in ("", "0.0.0.0", "::") and host else address.host
    return f"[{found}]" if ":" in found and not found.startswith("[") else found


def runtime_object(row: RuntimeRow) -> RuntimeObject:
    """Return a runtime."""
    value: dict[str, Any] = json.loads(row.description)
    value.pop("name", None)
    shown = value | {
        "creator": row.creator or None, "epoch_created": int(row.create_time), "epoch_updated": int(row.update_time)}
    return present(cast("RuntimeObject", shown))


def saved_object(row: SavedModelRow) -> SavedModelObject:
    """Return one version of a saved model."""
    shown: SavedModelObject = {
        "name": row.name, "version": row.version, "exec": str(row.origin.get("exec", "")), "space": row.space,
        "creator": row.creator, "createTime": iso(row.create_time), "size": row.size, "source": row.origin,
    }
    return present(shown)


def loading_object(found: Loading) -> ModelLoadingObject:
    """Return what a deployment uses."""
    shown: ModelLoadingObject = {
        "kernel": found.kernel, "weight": found.weight, "modelClass": found.class_name, "kernels": list(found.kernels),
        "weights": list(found.weights),
        "classes": [{"name": one.name, "needs": list(one.needs)} for one in found.classes],
    }
    if found.problem is not None:
        shown["error"] = {"code": found.problem.code, "message": str(found.problem)}
    return shown
