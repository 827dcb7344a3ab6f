"""All services of one running server."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from local_backend.audit import RefusedCounts, outputs_of
from local_backend.forward.service import Forwarding
from local_backend.hypersearch.controller import SearchController
from local_backend.inference.controller import ModelController
from local_backend.inference.gateway_process import GatewayHandle
from local_backend.inference.gateway_session import GatewaySession
from local_backend.oidc import OidcTokens
from local_backend.runtime import needs
from local_backend.runtime.cpu_load import CpuLoad
from local_backend.runtime.housekeeper import Housekeeper
from local_backend.runtime.loop import Loop
from local_backend.runtime.planning import Plans
from local_backend.runtime.sizes import Sizes
from local_backend.services.algorithms import AlgorithmService
from local_backend.services.applications import ApplicationService
from local_backend.services.audit import AuditService
from local_backend.services.base import Base, SupervisorCalls, audit_log
from local_backend.services.browsing import BrowseService
from local_backend.services.comparisons import ComparisonService
from local_backend.services.connections import ConnectionService
from local_backend.services.curves import CurveService
from local_backend.services.data import DataService
from local_backend.services.data_files import DataFileService
from local_backend.services.definitions import DefinitionService
from local_backend.services.example import ExampleService
from local_backend.services.execs import ExecService
from local_backend.services.experiment_plans import ExperimentPlanService
from local_backend.services.hardware import HardwareService
from local_backend.services.health import Finding, HealthService
from local_backend.services.holdings import HoldingService
from local_backend.services.kept_lists import KeptLists
from local_backend.services.labels import LabelService
from local_backend.services.lineage import LineageService
from local_backend.services.links import LinkService
from local_backend.services.load import Load
from local_backend.services.log_windows import LogService
from local_backend.services.logons import LogonService
from local_backend.services.machine import MachineService
from local_backend.services.model_logs import ModelLogs
from local_backend.services.model_sources import ModelSourceService
from local_backend.services.model_work import GatewayFacts, KernelWork, place_of
from local_backend.services.models import ModelService
from local_backend.services.oidc import OidcService
from local_backend.services.plans import PlanService
from local_backend.services.readiness import Readiness
from local_backend.services.run_files import RunFileService
from local_backend.services.runtimes import RuntimeService
from local_backend.services.saved_views import SavedViewService
from local_backend.services.searches import ExperimentWork, SearchService
from local_backend.services.stored_searches import StoredSearchService
from local_backend.services.submission_keys import SubmissionKeys
from local_backend.services.submissions import SubmissionService
from local_backend.services.submitted_code import CodeService
from local_backend.services.tokens import TokenService
from local_backend.services.users import UserService
from local_backend.services.views import Sight
from local_backend.services.volumes import VolumeService
from local_backend.settings import Settings
from local_backend.sources.connections import Connections
from local_backend.store import tokens
from local_backend.store.database import Database
from local_backend.vault import Vault


@dataclass(frozen=True)
class Services:
    """One service of each kind. The server starts and closes `forwarding`, `housekeeper`, `controller` and
    `model_controller`."""

    base: Base
    execs: ExecService
    labels: LabelService
    saved_views: SavedViewService
    comparisons: ComparisonService
    curves: CurveService
    logs: LogService
    code: CodeService
    run_files: RunFileService
    lineage: LineageService
    submissions: SubmissionService
    applications: ApplicationService
    plans: PlanService
    users: UserService
    tokens: TokenService
    logons: LogonService
    links: LinkService
    oidc: OidcService
    connections: ConnectionService
    data: DataService
    data_files: DataFileService
    holdings: HoldingService
    machine: MachineService
    forwarding: Forwarding
    housekeeper: Housekeeper
    searches: SearchService
    stored_searches: StoredSearchService
    algorithms: AlgorithmService
    controller: SearchController
    models: ModelService
    model_logs: ModelLogs
    model_sources: ModelSourceService
    runtimes: RuntimeService
    model_controller: ModelController
    definitions: DefinitionService
    example: ExampleService
    hardware: HardwareService
    experiments: ExperimentPlanService
    load: Load
    audit: AuditService
    health: HealthService
    volumes: VolumeService
    browsing: BrowseService


def make_services(
    settings: Settings, database: Database, supervisor: SupervisorCalls, token: str, password: str | None, *,
    control_group: Path | None = None, examine: Callable[[], Iterable[Finding]] = tuple,
) -> Services:
    """Make the services of a server. `token` and `password` admit the user that it runs as. `control_group` is
    delegated to this process. `examine` checks server and machine.

    Raises DataError when the file of connections cannot be used, VaultError.
    """
    base = Base(settings, audit_log(settings), database, supervisor.wake)
    plans = PlanService(base, Plans(database), supervisor)
    execs = _execs(base, supervisor, plans)
    code, curves = CodeService(execs), CurveService(execs)
    connections = Connections(settings, database)
    sizes = Sizes(settings.paths)
    admission = _logons(base, token, password)
    forwarding = Forwarding(settings.paths, database, loopback=settings.embedded)
    housekeeper = Housekeeper(settings, database, sizes, supervisor.wake)
    hardware = HardwareService(base, supervisor)
    submissions = _submissions(execs, connections, sizes, forwarding, hardware)
    definitions = DefinitionService(base, submissions)
    searching = _searching(base, submissions, control_group)
    serving = _serving(base, execs, submissions, supervisor, token)
    loops = (*supervisor.loops, forwarding.loop, housekeeper.loop, searching.controller.loop, serving.controller.loop)
    return Services(
        base=base, execs=execs, applications=ApplicationService(execs), submissions=submissions,
        logs=LogService(execs), code=code, run_files=RunFileService(execs), curves=curves,
        comparisons=ComparisonService(execs, curves, code), labels=LabelService(base),
        saved_views=SavedViewService(base),
        lineage=LineageService(execs, serving.models), definitions=definitions, hardware=hardware,
        example=ExampleService(submissions),
        experiments=ExperimentPlanService(base, submissions, definitions, hardware),
        searches=searching.searches, algorithms=searching.algorithms, controller=searching.controller,
        stored_searches=StoredSearchService(searching.searches, submissions, execs, definitions, curves),
        models=serving.models, runtimes=serving.runtimes, model_controller=serving.controller,
        model_logs=ModelLogs(serving.models, execs, supervisor.reason),
        model_sources=ModelSourceService(base, execs, serving.models, searching.searches),
        connections=ConnectionService(base, connections), data=DataService(base, connections),
        data_files=DataFileService(base),
        volumes=VolumeService(base), browsing=BrowseService(base), forwarding=forwarding,
        logons=admission.logons, links=admission.links, oidc=admission.oidc,
        users=UserService(base), tokens=TokenService(base), audit=AuditService(base),
        plans=plans, holdings=HoldingService(base), load=Load(settings.quotas, shared=not settings.embedded),
        machine=_machine(base, supervisor, loops), health=HealthService(examine, loops), housekeeper=housekeeper,
    )


def _machine(base: Base, supervisor: SupervisorCalls, loops: tuple[Loop, ...]) -> MachineService:
    """Make the service of the machine, on which these loops run."""
    readiness = Readiness(base.settings, base.database, supervisor.completes_turn)
    return MachineService(base, supervisor, readiness, loops, CpuLoad(supervisor.cpu_seconds))


def _submissions(
    execs: ExecService, connections: Connections, sizes: Sizes, forwarding: Forwarding, hardware: HardwareService
) -> SubmissionService:
    """Make the service of submissions, which may name saved hardware."""
    settings, database = execs.base.settings, execs.base.database
    return SubmissionService(
        execs, connections, Vault(settings.paths.vault), sizes, forwarding, SubmissionKeys(database),
        lambda caller, name: hardware.find(caller, name).spec,
    )


@dataclass(frozen=True)
class _Admission:
    """The services that admit users."""

    logons: LogonService
    links: LinkService
    oidc: OidcService


def _logons(base: Base, token: str, password: str | None) -> _Admission:
    """Make the services that admit users. `token` and `password` admit the user that the server runs as."""
    outputs = outputs_of(base.settings.audit_syslog, base.settings.audit_journal)
    refused = RefusedCounts(base.settings.paths.refused_logons, "auth.others", outputs)
    logons = LogonService(base, refused, token, password)
    oidc = OidcService(base, logons, refused, OidcTokens(base.settings.oidc))
    return _Admission(logons, LinkService(base, logons), oidc)


def _execs(base: Base, supervisor: SupervisorCalls, plans: PlanService) -> ExecService:
    """Make the service of execs, which sees rows, plans and what runs."""
    paths = base.settings.paths

    @cache
    def kinds() -> frozenset[str]:
        """Return the kinds of slots, which are fixed while the server runs."""
        return frozenset(place.slot.kind for place in supervisor.places())

    sight = Sight(
        paths=lambda row: paths.job(row.id, row.creator), reason=supervisor.reason, live=supervisor.live,
        consumer=plans.consumer, kind=lambda row: needs.kind(row.workload.resources, kinds()),
    )
    return ExecService(base, supervisor, sight, KeptLists(base.database))


@dataclass(frozen=True)
class _Searching:
    """The services of searches, and their loop."""

    searches: SearchService
    algorithms: AlgorithmService
    controller: SearchController


def _searching(base: Base, submissions: SubmissionService, control_group: Path | None) -> _Searching:
    """Make the services of searches."""
    algorithms = AlgorithmService(base, control_group)
    controller = SearchController(base.database, ExperimentWork(base, submissions, algorithms.ask))
    searches = SearchService(base, submissions, controller.wake, algorithms.names)
    return _Searching(searches, algorithms, controller)


@dataclass(frozen=True)
class _Serving:
    """The services of models, and their loop."""

    models: ModelService
    runtimes: RuntimeService
    controller: ModelController


def _serving(
    base: Base, execs: ExecService, submissions: SubmissionService, supervisor: SupervisorCalls, token: str
) -> _Serving:
    """Make the services of models of a server whose own user has this token."""
    settings = base.settings
    runtimes = RuntimeService(base)
    handle = GatewayHandle(settings.paths, place_of(settings))
    session = GatewaySession(handle, settings.inference_idle)
    work = KernelWork(base, submissions, runtimes, handle, supervisor.reason,
                      lambda: len(supervisor.machine.slots), tokens.digest(token))
    controller = ModelController(base.database, work, session)
    models = ModelService(base, runtimes, GatewayFacts(session, handle, settings), controller.wake)
    return _Serving(models, runtimes, controller)
