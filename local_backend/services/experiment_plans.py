"""Experiments of the experiment builder: data, model definitions with the hardware of each, and their runs. They are
kept with their versions for a team. (An experiment of a search is something else: one trial, see searches.py.)"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from sqlalchemy import Connection

from dlicmd.contract import wire
from dlicmd.contract.data_sources import REFERENCES
from dlicmd.contract.program_kinds import usual_workers
from local_backend.errors import BackendError, Conflict, Invalid, NotFound
from local_backend.runtime import needs
from local_backend.runtime.bundles import BundleLost
from local_backend.scheduler.model import CPU
from local_backend.services import hardware as specifications
from local_backend.services.access import Caller
from local_backend.services.base import Base
from local_backend.services.definitions import DefinitionService, TrainingDefinition, exec_words, lost
from local_backend.services.hardware import HardwareService
from local_backend.services.object_words import in_object_words
from local_backend.services.submissions import SubmissionRequest, SubmissionService
from local_backend.services.team import TeamObjects
from local_backend.store import execs, experiment_runs, team_objects
from local_backend.store.execs import ExecRow
from local_backend.store.experiment_runs import ExperimentRunRow, PartTaken, RunPartRow
from local_backend.store.team_objects import EXPERIMENT, NewVersion, TeamObjectRow
from local_backend.submit.receive import ReceivedUpload
from local_backend.workload import Workload

#: How the nodes of a model definition work together → the framework that runs it so.
SINGLE, MULTI, ELASTIC = NODES = ("single", "multi", "elastic")
FRAMEWORKS: Mapping[str, str] = {SINGLE: "PyTorch", MULTI: "distPyTorch", ELASTIC: "edtPyTorch"}
#: The most model definitions of an experiment, and the most characters of its data sources as JSON.
MOST_PARTS, _LONGEST_DATA = 20, 200_000
#: The runs that a list shows by default.
RECENT = 20


@dataclass(frozen=True)
class PlanPart:
    """A model definition in an experiment, and the hardware for it. None: as the definition or the hardware says."""

    #: NAME or OWNER/NAME, and the version; None: the newest one.
    definition: str
    version: int | None = None
    #: Execution command in place of that of the definition and of the experiment; empty for none.
    command: str = ""
    #: One of NODES, the number of nodes (of elastic nodes: at most), and the least number of elastic nodes.
    nodes: str | None = None
    count: int | None = None
    least: int | None = None
    #: `cpu` or `gpu`.
    device: str | None = None
    #: Name of a hardware specification with its version, or a specification.
    hardware: str | Mapping[str, Any] | None = None
    hardware_version: int | None = None
    #: Profile of a MIG slice, such as `1g.10gb`.
    mig: str | None = None


@dataclass(frozen=True)
class PlanDraft:
    """An experiment as a client sent it. `shared` None leaves the list of users."""

    name: str
    parts: Sequence[PlanPart] = ()
    description: str = ""
    #: Data sources, as `--data-source` takes them.
    data: Sequence[Any] = ()
    #: Whether missing data paths are created.
    create_data: bool = False
    #: Execution command of all model definitions that have none of their own here; empty for none.
    command: str = ""
    shared: Sequence[str] | bool | None = None


@dataclass(frozen=True)
class PlanProblem:
    """A mistake in an experiment. `field` is the place: `name`, `data`, or `definitions.0.command`."""

    field: str
    code: str
    message: str


@dataclass(frozen=True)
class ExperimentPlan:
    """A version of an experiment."""

    row: TeamObjectRow

    @property
    def draft(self) -> PlanDraft:
        """The experiment as a client would send it to make this version again."""
        content = self.row.content
        parts = [PlanPart(**{name: value for name, value in one.items() if name not in ("number", "hardware_number")})
                 for one in content["parts"]]
        return PlanDraft(self.row.name, parts, self.row.description, content["data"], content["createData"],
                         content["command"], self.row.shared)


@dataclass(frozen=True)
class PlanCheck:
    """The mistakes in an experiment; and for each model definition a summary of what would run, None if it has
    mistakes."""

    problems: Sequence[PlanProblem]
    summaries: Sequence[str | None]


@dataclass(frozen=True)
class ExperimentRun:
    """A run of an experiment: its parts, each with its exec (None: not submitted, or deleted since)."""

    row: ExperimentRunRow
    parts: Sequence[tuple[RunPartRow, ExecRow | None]]
    #: Warnings for the user who began it.
    warnings: Sequence[str] = ()

    @property
    def complete(self) -> bool:
        """Whether an exec was made of each model definition."""
        return all(part.exec_id is not None for part, _ in self.parts)


@dataclass(frozen=True)
class _Ready:
    """A checked part: its definition, the submission, its workload, and the numbers of the objects that it uses."""

    definition: TrainingDefinition
    request: SubmissionRequest
    spec: Workload
    stored: dict[str, Any] = field(default_factory=dict)
    uses: frozenset[int] = frozenset()


@dataclass(frozen=True)
class ExperimentPlanService:
    """Operations on experiments and their runs."""

    base: Base
    submissions: SubmissionService
    definitions: DefinitionService
    hardware: HardwareService

    @property
    def objects(self) -> TeamObjects:
        """The operations that all shared objects have."""
        return TeamObjects(self.base.database, EXPERIMENT)

    def all(self, caller: Caller) -> list[ExperimentPlan]:
        """Return the experiments that the caller may use, at their newest versions."""
        return [ExperimentPlan(row) for row in self.objects.visible(caller)]

    def find(self, caller: Caller, name: str, version: int | None = None) -> ExperimentPlan:
        """Return an experiment by NAME or OWNER/NAME. Raises NotFound (`experiment.not_found`)."""
        return ExperimentPlan(self.objects.find(caller, name, version))

    def versions(self, caller: Caller, name: str) -> list[ExperimentPlan]:
        """Return all versions of an experiment, newest first. Raises NotFound (`experiment.not_found`)."""
        return [ExperimentPlan(row) for row in self.objects.versions(caller, name)]

    def check(self, caller: Caller, draft: PlanDraft) -> PlanCheck:
        """Return all mistakes in an experiment, and what would run. Nothing is stored. Raises Denied (`auth.scope`)
        for a token that may not submit."""
        caller.check_scope("experiment.check")
        problems = self._problems_of_head(caller, draft)
        summaries: list[str | None] = []
        for number, part in enumerate(draft.parts):
            try:
                ready = self._ready(caller, draft, part)
                summaries.append(summary(ready.spec))
            except BackendError as problem:
                problems.append(_problem_of_part(number, problem))
                summaries.append(None)
        return PlanCheck(_once(problems), summaries)

    def save(self, caller: Caller, draft: PlanDraft) -> ExperimentPlan:
        """Store an experiment, or a new version of it. The versions of its model definitions and hardware
        specifications are fixed.

        Raises Invalid (`experiment.invalid`, and the errors of a strict submission), NotFound and Denied for objects
        of other users, OverQuota.
        """
        with self.base.recorded(caller, "experiment.save", draft.name) as record:
            head = self._problems_of_head(caller, draft)
            if head:
                raise Invalid(head[0].code, f"{head[0].field}: {head[0].message}")
            self.objects.mine(caller, draft.name)
            ready = []
            for number, part in enumerate(draft.parts):
                try:
                    ready.append(self._ready(caller, draft, part))
                except BackendError as problem:
                    found = _problem_of_part(number, problem)
                    raise type(problem)(found.code, f"{found.field}: {found.message}") from None
            content = {"data": list(draft.data), "createData": draft.create_data, "command": draft.command.strip(),
                       "parts": [one.stored for one in ready]}
            new = NewVersion(draft.description.strip(), content, uses=frozenset().union(*(one.uses for one in ready)))
            shared = self.objects.checked_shared(draft.shared)
            row = self.base.database.write(lambda c: self._saved(c, caller, draft.name, shared, new))
            record.about.append(row.label)
        return ExperimentPlan(row)

    def remove(self, caller: Caller, name: str) -> None:
        """Delete an experiment with all versions. The execs of its runs stay. Raises NotFound (`experiment.not_found`),
        Denied (`experiment.of_another_user`)."""
        with self.base.recorded(caller, "experiment.delete", name):
            row = self.objects.find(caller, name)
            self.objects.check_owner(caller, row)

            def work(connection: Connection) -> None:
                team_objects.remove(connection, row.number)
                experiment_runs.remove(connection, row.number)

            self.base.database.write(work)

    def run(
        self, caller: Caller, name: str, version: int | None = None, key: str | None = None
    ) -> tuple[ExperimentPlan, ExperimentRun]:
        """Submit one exec for each model definition of an experiment. What the server refuses is noted in the part of
        the run, and the other parts run. A call with the `key` of an earlier one goes on with its run: it submits the
        parts that have no exec, and no other.

        Raises NotFound (`experiment.not_found`).
        """
        with self.base.recorded(caller, "experiment.run", name) as record:
            plan = self.find(caller, name, version)
            row = self.base.database.write(lambda c: self._begun(c, caller, plan, key))
            made = self._submit_missing(caller, plan, row)
            record.about += [plan.row.label, *(part.exec_id for part, _ in made.parts if part.exec_id)]
        return plan, made

    def go_on(self, caller: Caller, name: str, number: int) -> tuple[ExperimentPlan, ExperimentRun]:
        """Submit the parts of a run that have no exec yet. Raises NotFound (`experiment.not_found`,
        `experiment.run_not_found`), Conflict (`experiment.complete`) if all have one."""
        with self.base.recorded(caller, "experiment.run", name) as record:
            plan, before = self.run_of(caller, name, number)
            if before.row.creator != caller.name:
                raise NotFound("experiment.run_not_found", f"Run {number} of {name} belongs to another user")
            if before.complete:
                raise Conflict("experiment.complete",
                               f"Run {number} of {name} is complete: each model definition has an exec")
            made = self._submit_missing(caller, plan, before.row)
            record.about += [plan.row.label, *(part.exec_id for part, _ in made.parts if part.exec_id)]
        return plan, made

    def runs(self, caller: Caller, name: str, most: int | None = RECENT) -> Sequence[ExperimentRun]:
        """Return the last runs of an experiment that the caller began (for an administrator: all), newest first.
        Raises NotFound (`experiment.not_found`)."""
        row = self.objects.find(caller, name)
        return self._views(caller, self.base.database.read(
            lambda c: experiment_runs.of_object(c, row.number, caller.sees_of, most)))

    def with_last_runs(self, caller: Caller) -> Sequence[tuple[ExperimentPlan, ExperimentRun | None]]:
        """Return the experiments that the caller may use, each with the last run that the caller began."""
        plans = self.all(caller)

        def work(connection: Connection) -> list[ExperimentRunRow]:
            found = (experiment_runs.of_object(connection, plan.row.number, caller.name, 1) for plan in plans)
            return [row for rows in found for row in rows]

        runs = {run.row.object: run for run in self._views(caller, self.base.database.read(work))}
        return [(plan, runs.get(plan.row.number)) for plan in plans]

    def run_of(self, caller: Caller, name: str, number: int) -> tuple[ExperimentPlan, ExperimentRun]:
        """Return one run of an experiment, and the experiment at the version that ran. Raises NotFound
        (`experiment.not_found`, `experiment.run_not_found`)."""
        row = self.objects.find(caller, name)
        found = self.base.database.read(lambda c: experiment_runs.get(c, number))
        if found is None or found.object != row.number or not (caller.admin or found.creator == caller.name):
            raise NotFound("experiment.run_not_found", f"You have no run {number} of the experiment {name[:160]}")
        plan = ExperimentPlan(self.objects.numbered(caller, row.number, found.version))
        return plan, self._views(caller, [found])[0]

    def of_exec(self, caller: Caller, exec_id: str) -> tuple[ExperimentPlan, ExperimentRunRow] | None:
        """Return the experiment and the run that an exec is a part of; None if it is a part of none that the caller may
        use."""
        run = self.base.database.read(lambda c: experiment_runs.of_exec(c, exec_id))
        if run is None:
            return None
        try:
            return ExperimentPlan(self.objects.numbered(caller, run.object, run.version)), run
        except NotFound:
            return None

    def _saved(
        self, connection: Connection, caller: Caller, name: str, shared: Sequence[str] | bool | None, new: NewVersion
    ) -> TeamObjectRow:
        """Store a version. Raises NotFound if an object that it uses was deleted meanwhile."""
        for used in new.uses:
            if team_objects.numbered(connection, used) is None:
                raise NotFound("definition.not_found", "A model definition or hardware specification of the experiment "
                                                       "was deleted meanwhile; choose another one")
        return self.objects.save(connection, caller, name, shared, new)

    def _begun(self, connection: Connection, caller: Caller, plan: ExperimentPlan, key: str | None) -> ExperimentRunRow:
        row = plan.row
        before = None if key is None else experiment_runs.of_key(connection, row.number, caller.name, key)
        return before or experiment_runs.begin(
            connection, row.number, row.version, caller.name, key,
            [(part.definition, part.version or 1) for part in plan.draft.parts])

    def _submit_missing(self, caller: Caller, plan: ExperimentPlan, row: ExperimentRunRow) -> ExperimentRun:
        """Submit the parts of a run that have no exec."""
        warnings: list[str] = []
        if row.version != plan.row.version:
            plan = ExperimentPlan(self.objects.numbered(caller, row.object, row.version))
        for part, asked in zip(row.parts, plan.row.content["parts"], strict=True):
            if part.exec_id is None:
                try:
                    warnings += self._submit(caller, plan, part, asked)
                except PartTaken:
                    continue  # another call with this key was faster
                except BackendError as problem:
                    self._refuse(part, problem)
        found = self.base.database.read(lambda c: experiment_runs.get(c, row.number))
        assert found is not None
        return ExperimentRun(found, self._views(caller, [found])[0].parts, list(dict.fromkeys(warnings)))

    def _refuse(self, part: RunPartRow, problem: BackendError) -> None:
        """Note why a part of a run has no exec."""
        self.base.database.write(lambda c: experiment_runs.refuse(
            c, part, problem.code, in_object_words(str(problem))))

    def _submit(
        self, caller: Caller, plan: ExperimentPlan, part: RunPartRow, asked: Mapping[str, Any]
    ) -> Sequence[str]:
        """Submit one part of a run, and return warnings."""
        draft = plan.draft
        ready = self._ready(caller, draft, draft.parts[part.position], asked)
        try:
            made = self.submissions.submit_kept(
                caller, ready.request, ready.definition.code,
                lambda connection, exec_id: experiment_runs.take(connection, part, exec_id))
        except BundleLost:
            raise lost(ready.definition.row) from None
        return made.warnings

    def _views(self, caller: Caller, rows: Sequence[ExperimentRunRow]) -> Sequence[ExperimentRun]:
        ids = [part.exec_id for row in rows for part in row.parts if part.exec_id]

        def work(connection: Connection) -> dict[str, ExecRow]:
            found = (execs.get(connection, one) for one in ids)
            return {one.id: one for one in found if one is not None and not one.deleted and caller.sees(one)}

        known = self.base.database.read(work) if ids else {}
        return [ExperimentRun(row, [(part, known.get(part.exec_id or "")) for part in row.parts]) for row in rows]

    def _problems_of_head(self, caller: Caller, draft: PlanDraft) -> list[PlanProblem]:
        """Return the mistakes outside of the model definitions."""
        found: list[PlanProblem] = []

        def note(where: str, check: Callable[..., object], *values: Any) -> None:
            try:
                check(*values)
            except BackendError as problem:
                found.append(PlanProblem(where, problem.code, str(problem).removeprefix(f"{where}: ")))

        note("name", self.objects.mine, caller, draft.name)
        note("description", self.objects.checked_text, "description", draft.description)
        note("sharedWith", self.objects.checked_shared, draft.shared)
        if len(json.dumps(list(draft.data))) > _LONGEST_DATA:
            found.append(PlanProblem("data", "experiment.invalid", f"more than {_LONGEST_DATA} characters of JSON"))
        elif wire_secrets(draft.data):
            found.append(PlanProblem("data", "experiment.invalid", "a data source contains the values of a connection. "
                                     "All users of the experiment could read them; add a connection and name it"))
        if not draft.parts:
            sentence = "the experiment has no model definition; add one"
            found.append(PlanProblem("definitions", "experiment.invalid", sentence))
        elif len(draft.parts) > MOST_PARTS:
            found.append(PlanProblem("definitions", "experiment.invalid", f"more than {MOST_PARTS} model definitions"))
        return found

    def _ready(
        self, caller: Caller, draft: PlanDraft, part: PlanPart, stored: Mapping[str, Any] | None = None
    ) -> _Ready:
        """Return a checked part of an experiment. `stored` is the part of a stored version, which names its objects by
        number. Raises the errors of a strict submission."""
        if stored is None:
            definition = self.definitions.find(caller, part.definition, part.version)
        else:
            definition = TrainingDefinition(self.definitions.objects.numbered(caller, stored["number"], part.version))
        spec, fixed = self._hardware(caller, part, stored)
        framework = definition.framework if part.nodes is None else FRAMEWORKS.get(part.nodes)
        if framework is None:
            raise Invalid("experiment.invalid", f"nodes: '{str(part.nodes)[:40]}' is not one of {', '.join(NODES)}")
        command = part.command.strip() or draft.command.strip() or definition.command
        own = draft.name.rpartition("/")[2]
        name = own if own == definition.row.name else f"{own}-{definition.row.name}"
        more = (*_options(part), *self._usual_nodes(part, framework, spec),
                *(["--create-data-path"] if draft.create_data else []))
        line = exec_words(framework, name, command, definition.conda_env, definition.environment, more)
        sources = {wire.DATA_SOURCE: list(draft.data)} if draft.data else {}
        data = {wire.ARGV: line, wire.HARDWARE_SPEC: spec, **sources}
        request = SubmissionRequest(None, ReceivedUpload(data=json.dumps(data)), strict=True)
        try:
            workload = self.submissions.check_kept(caller, request, definition.code)
        except BundleLost:
            raise lost(definition.row) from None
        kept = {**asdict(part), **fixed, "definition": definition.row.label, "version": definition.row.version,
                "number": definition.row.number}
        number = fixed["hardware_number"]
        uses = frozenset({definition.row.number} | ({number} if number is not None else set()))
        return _Ready(definition, request, workload, kept, uses)

    def _usual_nodes(self, part: PlanPart, framework: str, spec: Mapping[str, Any]) -> list[str]:
        """Return the option for the number of nodes, if a part can use several, and neither it nor its hardware
        specification has a number: as many as `dlicmd run` requests."""
        in_hardware = (spec.get("nodes") or {}).get("num_nodes") is not None
        if part.count is not None or in_hardware or framework not in (FRAMEWORKS[MULTI], FRAMEWORKS[ELASTIC]):
            return []
        machine = self.submissions.execs.supervisor.machine
        of_kind = CPU if part.device == CPU or machine.kinds <= {CPU} else max(machine.kinds - {CPU}, key=machine.count)
        return ["--numWorker", str(max(usual_workers(machine.count(of_kind)), part.least or 1))]

    def _hardware(
        self, caller: Caller, part: PlanPart, stored: Mapping[str, Any] | None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the hardwareSpec of a part, and how a version of the experiment stores it."""
        fixed: dict[str, Any] = {"hardware": part.hardware, "hardware_version": None, "hardware_number": None}
        spec: dict[str, Any] = {}
        if isinstance(part.hardware, str) and part.hardware:
            number = None if stored is None else stored["hardware_number"]
            found = (self.hardware.find(caller, part.hardware, part.hardware_version) if number is None
                     else self.hardware.numbered(caller, number, part.hardware_version or 1))
            spec = found.spec
            if found.row is not None:
                fixed.update(hardware=found.row.label, hardware_version=found.row.version,
                             hardware_number=found.row.number)
        elif part.hardware:
            spec = fixed["hardware"] = specifications.checked(dict(part.hardware))
        return (specifications.with_slice(spec, part.mig) if part.mig else spec), fixed


def summary(spec: Workload) -> str:
    """Return what a workload asks for in few words: `elastic, 2 to 4 slots, PyTorch`."""
    asked = spec.resources
    per_worker, least, most = needs.slots(asked)
    nodes = ELASTIC if asked.elastic else f"{most} node{'' if most == 1 else 's'}"
    low, high = per_worker * least, per_worker * most
    kind = asked.mig_profile or asked.device_type or ""
    if asked.device_share < 1:
        amount = f"{asked.device_share:g} of a slot"
    else:
        amount = f"{high} {kind.upper() + ' ' if kind else ''}slot{'' if high == 1 else 's'}"
    return f"{nodes}, {f'{low} to ' if low != high else ''}{amount}, PyTorch"


def wire_secrets(sources: Sequence[Any]) -> bool:
    """Return whether a data source contains the values of a connection, instead of the name of a saved one. A
    connection with a type contains its values, even if it also has a name (data/submitted.py)."""
    def written(source: Any) -> bool:
        connection = source.get("connection") if isinstance(source, dict) else None
        return isinstance(connection, dict) and not connection.keys() <= set(REFERENCES)

    return any(map(written, sources))


def _options(part: PlanPart) -> list[str]:
    """Return the options of a submission that a part names."""
    found: list[str] = []
    if part.count is not None:
        found += ["--numWorker", str(part.count)]
    if part.device:
        found += ["--workerDeviceType", part.device]
    if part.least is not None:
        found += ["--msd-attr", f"minWorkers={part.least}"]
    return found


#: Code of an error of a submission → the field of a part that it is probably about.
_FIELDS: Mapping[str, str] = {
    "submission.hardware": "hardware", "submission.resources": "count", "submission.never_schedulable": "hardware",
    "submission.no_program": "command", "submission.command": "command", "submission.too_long": "command",
    "hardware.not_found": "hardware", "hardware.invalid": "hardware", "definition.not_found": "definition",
    "definition.code_gone": "definition", "submission.environment": "definition",
}
#: Codes of errors about the data of the experiment, which all its parts share.
_OF_DATA = ("submission.data_source", "data.kind_unusable", "data.invalid")


def _problem_of_part(number: int, problem: BackendError) -> PlanProblem:
    """Return an error of a part with its place in the experiment."""
    message = in_object_words(str(problem))
    if problem.code in _OF_DATA:
        return PlanProblem("data", problem.code, message)
    field_name = "nodes" if message.startswith("nodes:") else _FIELDS.get(problem.code, "definition")
    return PlanProblem(f"definitions.{number}.{field_name}", problem.code, message)


def _once(problems: Sequence[PlanProblem]) -> list[PlanProblem]:
    """Return the mistakes; one in the data, which all parts share, once."""
    return list(dict.fromkeys(problems))
