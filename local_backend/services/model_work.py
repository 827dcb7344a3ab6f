"""What the loop of the models needs of the rest of the server, and what services need of the loop."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from local_backend.errors import Invalid
from local_backend.inference.control import RevisionLoad, Token
from local_backend.inference.description import described
from local_backend.inference.gateway_process import GatewayHandle, GatewayPlace
from local_backend.inference.gateway_session import GatewaySession
from local_backend.inference.profile import ModelProfile
from local_backend.inference.serving_history import LoadPoint
from local_backend.scheduler.model import Reason
from local_backend.services.access import caller_named, caller_of
from local_backend.services.base import Base
from local_backend.services.model_views import GatewayAddress, ServingRates
from local_backend.services.runtimes import RuntimeService
from local_backend.services.submissions import SubmissionService, Template
from local_backend.settings import Settings
from local_backend.store import tokens
from local_backend.store.execs import ExecRow
from local_backend.store.models import ModelRow, RevisionRow
from local_backend.workload import Environment, Program, Resources, Scheduling, Service, Workload

#: Framework of the execs that run kernels.
FRAMEWORK = "Inference"
#: Seconds that a kernel may take to answer what it has, beyond the time limit of one request.
_LEAVING = 30.0
#: The same for kernels without a time limit for requests.
_LEAVING_WITHOUT_LIMIT = 600.0
_FOREVER = 2.0**53
#: Tokens that the gateway knows before anybody has used them.
_NEWEST = 1000


@dataclass(frozen=True)
class KernelWork:
    """Operations of the loop on the rest of the server."""

    base: Base
    submissions: SubmissionService
    runtimes: RuntimeService
    handle: GatewayHandle
    #: Why an exec waits for slots, None if it does not.
    reason: Callable[[str], Reason | None]
    #: The number of slots of the machine.
    slots: Callable[[], int]
    #: SHA-256 of the token of the user that the server runs as.
    own_token: str

    def submit(
        self, model: ModelRow, revision: RevisionRow, profile: ModelProfile, bind: Callable[[Connection, str], None]
    ) -> ExecRow:
        """Submit the exec of a revision. Raises BackendError, BundleLost, and the errors of `bind`."""
        caller = self.base.database.read(lambda c: caller_named(c, model.creator, self.base.settings))
        if caller is None:
            raise Invalid("user.not_found", f"the user {model.creator} no longer exists")
        spec = self._workload(model, revision, profile)
        return self.submissions.again(caller, Template(spec, f"dlim model start {model.name}", None, None, None), spec,
                                      bind)

    def tokens(self, digests: Set[str]) -> Mapping[str, Token]:
        """Return the token of the server, those of these tokens that are valid, and the newest others, by their
        SHA-256. The gateway then also knows tokens that nobody has used before the server ends."""
        def work(connection: Connection) -> dict[str, Token]:
            found = {}
            for digest, row in tokens.for_gateway(connection, digests, _NEWEST).items():
                caller = caller_of(connection, row, self.base.settings)
                if caller is not None:
                    found[digest] = Token(caller.name, caller.admin, row.expires, row.scope)
            return found

        return self.base.database.read(work) | {self.own_token: Token(self.base.settings.user, True, _FOREVER)}

    def waits(self, exec_id: str) -> str:
        """Return why an exec waits for slots; empty if it does not."""
        found = self.reason(exec_id)
        return "" if found is None else found.sentence

    def wake(self) -> None:
        """Let the supervisor look at the execs now."""
        self.base.wake()

    def _workload(self, model: ModelRow, revision: RevisionRow, profile: ModelProfile) -> Workload:
        """Return the workload of a revision. Raises NotFound or Invalid for its runtime."""
        folder = self.base.settings.paths.bundle(revision.bundle)
        found = described(revision.model_json, folder)
        runtime = self.runtimes.resolved(model.creator, found.runtime)
        variables = {**found.environment, **profile.environment, **(runtime.environment or {})}
        together = max(1, int(1 / profile.kernel_share))
        per_slot, most = (1, together) if profile.pack else (together, self.slots() * together)
        timeout = profile.limits.execution_timeout
        leaving = _LEAVING_WITHOUT_LIMIT if timeout is None else timeout + _LEAVING
        is_python = found.ready_made is None and runtime.command is None
        return Workload(
            id="", name=model.name, creator=model.creator, kind="service", parent=f"model-{model.number}",
            program=Program(FRAMEWORK, main=found.kernel_path if is_python else None, bundle=revision.bundle),
            scheduling=Scheduling(user=model.creator, consumer=profile.resource_plan),
            environment=Environment(
                {name: self.submissions.vault.seal_text(value) for name, value in variables.items()},
                runtime.conda_env),
            resources=Resources(
                # The owner may raise kernel_max while kernels run. So only the machine or the pack limits them here.
                num_worker=max(profile.kernel_min, most, 1), min_workers=profile.kernel_min,
                elastic=True, device_type="cpu" if profile.gpu == "no" else "gpu", memory=profile.memory,
                labels=dict(profile.labels), **_pack(profile)),
            service=Service(
                model=model.name, revision=revision.number, key=secrets.token_hex(16), socket=str(self.handle.kernels),
                description=found.value, command=runtime.command, ready_made=found.ready_made,
                connection_timeout=profile.connection_timeout, leave_timeout=leaving, kernels_per_slot=per_slot),
        )


def _pack(profile: ModelProfile) -> dict[str, Any]:
    """Return the resources of kernels that share a slot with those of other models."""
    part = profile.kernel_share
    return {"pack": profile.pack, "device_share": part, "gpu_limit": part} if profile.pack else {}


@dataclass(frozen=True)
class GatewayFacts:
    """What services know of gateway and kernels."""

    session: GatewaySession
    handle: GatewayHandle
    settings: Settings

    def loads(self, model: str) -> Mapping[int, RevisionLoad]:
        """Return the last loads of the revisions of a model."""
        return self.session.loads(model)

    def rates(self, model: str, number: int) -> ServingRates:
        """Return what a revision did per second in the last seconds."""
        return ServingRates(*self.session.rates(model, number))

    def points(self, model: str) -> Sequence[LoadPoint]:
        """Return what a model did in the last minutes, oldest first."""
        return self.session.history.points(model, time.time())

    def latency(self, model: str) -> tuple[float | None, float | None]:
        """Return the seconds below which half and 99 % of the latencies of the last minute were."""
        return self.session.history.latency(model, time.time())

    def address(self) -> GatewayAddress | None:
        """Return where the gateway takes requests; None while no gateway runs."""
        ready = self.session.ready
        if ready is None:
            return None
        return GatewayAddress("https" if self.settings.speaks_tls else "http", place_of(self.settings).host,
                              ready.port, ready.grpc_port, str(self.handle.local))


def place_of(settings: Settings) -> GatewayPlace:
    """Return where the gateway of a server listens, with the certificate of the server."""
    host = settings.inference_host or settings.host
    certificate, key = settings.tls_cert, settings.tls_key
    if settings.tls_self_signed:
        certificate, key = settings.paths.tls_server, None
    return GatewayPlace(host, settings.inference_port, settings.inference_grpc_port,
                        None if certificate is None else str(certificate), None if key is None else str(key),
                        settings.die_with_server)
