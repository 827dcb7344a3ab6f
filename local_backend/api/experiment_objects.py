"""The objects of the experiment builder, made from rows, and the drafts of the services, made from bodies. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from dlicmd.contract import wire
from local_backend.api.models.common import present
from local_backend.api.models.experiments import (
    DefinitionObject,
    ExperimentPlanObject,
    HardwareObject,
    NewDefinition,
    NewExperiment,
    NewHardware,
    PlanCheckObject,
    PlannedDefinitionObject,
    PlanProblemObject,
    RunObject,
    RunPartObject,
)
from local_backend.api.objects import iso
from local_backend.services.definitions import DefinitionDraft, TrainingDefinition
from local_backend.services.experiment_plans import ExperimentPlan, ExperimentRun, PlanCheck, PlanDraft, PlanPart
from local_backend.services.hardware import HardwareDraft, HardwareSpecification
from local_backend.store.execs import ExecRow
from local_backend.store.experiment_runs import RunPartRow

_Shared = Literal["everybody"] | list[str]


def definition_object(found: TrainingDefinition) -> DefinitionObject:
    """Return a model definition."""
    row = found.row
    shown: DefinitionObject = {
        "name": row.name, "owner": row.owner, "version": row.version, "versions": row.newest,
        "description": row.description, "framework": found.framework, "command": found.command,
        "program": found.program,
        "condaEnv": found.conda_env, "environment": found.environment, "bytes": row.size,
        "sharedWith": shown_shared(row.shared), "created": iso(row.create_time), "changed": iso(row.version_time),
    }
    return present(shown)


def hardware_object(found: HardwareSpecification) -> HardwareObject:
    """Return a hardware specification."""
    row = found.row
    shown: HardwareObject = {
        "name": found.name, "predefined": row is None, "owner": None if row is None else row.owner,
        "version": 1 if row is None else row.version, "versions": 1 if row is None else row.newest,
        "description": found.description, "hardwareSpec": found.spec, "usable": found.lack is None,
        "message": found.lack, "sharedWith": "everybody" if row is None else shown_shared(row.shared),
        "changed": None if row is None else iso(row.version_time),
    }
    return present(shown)


def experiment_object(found: ExperimentPlan, last: ExperimentRun | None = None) -> ExperimentPlanObject:
    """Return an experiment."""
    row, draft = found.row, found.draft
    shown: ExperimentPlanObject = {
        "name": row.name, "owner": row.owner, "version": row.version, "versions": row.newest,
        "description": row.description, "dataSource": list(draft.data), "createDataPath": draft.create_data,
        "command": draft.command, "definitions": [_planned(part) for part in draft.parts],
        "sharedWith": shown_shared(row.shared), "created": iso(row.create_time), "changed": iso(row.version_time),
        "lastRun": None if last is None else run_object(found, last),
    }
    return present(shown)


def _planned(part: PlanPart) -> PlannedDefinitionObject:
    shown: PlannedDefinitionObject = {
        "definition": part.definition, "version": part.version or 1, "command": part.command, "nodes": part.nodes,
        "numWorker": part.count, "minWorkers": part.least, "device": part.device, "hardware": part.hardware,
        "hardwareVersion": part.hardware_version, "migProfile": part.mig,
    }
    return present(shown)


def _part_object(part: RunPartRow, row: ExecRow | None) -> RunPartObject:
    shown: RunPartObject = {
        "definition": part.label, "version": part.version, "execId": part.exec_id,
        "state": None if row is None else row.state, "code": part.code, "message": part.message,
    }
    return present(shown)


def run_object(plan: ExperimentPlan, run: ExperimentRun) -> RunObject:
    """Return a run of an experiment."""
    parts = [_part_object(part, row) for part, row in run.parts]
    shown: RunObject = {
        "run": run.row.number, "experiment": plan.row.label, "version": run.row.version, "creator": run.row.creator,
        "created": iso(run.row.create_time), "complete": run.complete, "parts": parts,
        "warning": "; ".join(run.warnings) or None,
    }
    return present(shown)


def check_object(found: PlanCheck) -> PlanCheckObject:
    """Return the mistakes in an experiment."""
    problems: list[PlanProblemObject] = [
        {"field": _key(one.field), "code": one.code, "message": one.message} for one in found.problems]
    return {"problems": problems, "definitions": list(found.summaries)}


#: Last part of the place of a mistake → the key of the body.
_KEYS = {"data": wire.DATA_SOURCE, "count": wire.NUM_WORKER, "least": wire.MIN_WORKERS, "mig": wire.MIG_PROFILE}


def _key(place: str) -> str:
    before, dot, last = place.rpartition(".")
    return f"{before}{dot}{_KEYS.get(last, last)}"


def definition_draft(body: NewDefinition) -> DefinitionDraft:
    """Return the draft of a body."""
    return DefinitionDraft(body.name, body.description, body.framework, body.command, body.condaEnv, body.environment,
                           read_shared(body.sharedWith))


def hardware_draft(body: NewHardware) -> HardwareDraft:
    """Return the draft of a body."""
    return HardwareDraft(body.name, body.hardwareSpec, body.description, read_shared(body.sharedWith))


def experiment_draft(body: NewExperiment) -> PlanDraft:
    """Return the draft of a body."""
    parts = [PlanPart(one.definition, one.version, one.command, one.nodes, one.numWorker, one.minWorkers, one.device,
                      one.hardware, one.hardwareVersion, one.migProfile) for one in body.definitions]
    return PlanDraft(body.name, parts, body.description, body.dataSource, body.createDataPath, body.command,
                     read_shared(body.sharedWith))


def draft_body(draft: PlanDraft) -> dict[str, Any]:
    """Return the body that describes a draft, without values that are defaults."""
    parts = [{key: value for key, value in _planned(part).items() if value != "" and (
        key != wire.VERSION or part.version is not None)} for part in draft.parts]
    body = {wire.NAME: draft.name, wire.DESCRIPTION: draft.description, wire.DATA_SOURCE: list(draft.data),
            wire.CREATE_DATA_PATH: draft.create_data, wire.COMMAND: draft.command, wire.DEFINITIONS_OF: parts,
            wire.SHARED_WITH: shown_shared(draft.shared or [])}
    return {key: value for key, value in body.items() if value or key == wire.NAME}


def read_shared(given: _Shared | None) -> Sequence[str] | bool | None:
    """Return the users of a body; True for all."""
    return True if given == wire.EVERYBODY else given


def shown_shared(shared: Sequence[str] | bool) -> _Shared:
    """Return users as answers show them."""
    return "everybody" if shared is True else list(shared or ())
