"""What every route needs: one object per server, and who is calling."""

from __future__ import annotations

import time
from dataclasses import InitVar, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Protocol

from fastapi import Depends, Request

from dlicmd.contract.states import PENDING, SUBMITTED
from local_backend.api.archives import Archives
from local_backend.api.caller import CALLER, Caller
from local_backend.api.errors import ApiError
from local_backend.api.objects import is_parked
from local_backend.api.passwords import Passwords
from local_backend.api.readiness import Readiness
from local_backend.api.showing import Endings
from local_backend.api.submission_keys import SubmissionKeys
from local_backend.audit import AuditLog
from local_backend.data.errors import DataError
from local_backend.data.fs import DataRoots
from local_backend.forward.service import Forwarding
from local_backend.runtime import needs
from local_backend.runtime.occupancy import Place
from local_backend.runtime.paths import ExecPaths
from local_backend.runtime.planning import Plans, consumer
from local_backend.runtime.resizing import Resized
from local_backend.runtime.sizes import Sizes
from local_backend.runtime.utilisation import Utilisation
from local_backend.scheduler.model import Reason
from local_backend.settings import Settings
from local_backend.sources.connections import Connections
from local_backend.sources.volumes import roots
from local_backend.store import execs
from local_backend.store.database import Database
from local_backend.store.execs import ExecRow
from local_backend.vault import Vault

if TYPE_CHECKING:
    from local_backend.signing import SigningKeys


class Supervisor(Protocol):
    """The part of the runtime's supervisor that the API uses."""

    def wake(self) -> None:
        """Look at the database now."""

    def resize(self, exec_id: str, count: int | None) -> Resized:
        """Give a running elastic exec other slots; see the supervisor."""

    def reason(self, exec_id: str) -> Reason | None:
        """Why an exec waits; see the supervisor."""

    def places(self) -> list[Place]:
        """The slots of the machine, and who holds them."""

    def comes_round(self, seconds: float) -> bool:
        """Whether the loop of the supervisor does its work within so many seconds."""

    def status(self) -> dict[str, object]:
        """Slots, jobs and nursery, for GET /status."""


@dataclass
class Backend:
    """One running backend."""

    settings: Settings
    database: Database
    supervisor: Supervisor
    #: The token of backend.json, which lets in as the user that the server runs as; also a password of that user.
    token: str
    #: Another one, None for none.
    password: InitVar[str | None] = None
    started: float = field(default_factory=time.time)
    #: The server is going: long polls answer at once.
    closing: bool = False
    #: Results whose transfer was cut.
    archives: Archives = field(default_factory=Archives)
    #: What is shown of execs that are over.
    endings: Endings = field(default_factory=Endings)
    #: How busy the devices are.
    utilisation: Utilisation = field(default_factory=Utilisation)
    #: What the execs take on the disk.
    sizes: Sizes = field(default_factory=Sizes)
    vault: Vault = field(init=False)
    connections: Connections = field(init=False)
    plans: Plans = field(init=False)
    #: Started and closed by who runs the server.
    forwarding: Forwarding = field(init=False)
    readiness: Readiness = field(init=False)
    passwords: Passwords = field(init=False)
    submission_keys: SubmissionKeys = field(init=False)

    def __post_init__(self, password: str | None) -> None:
        self.vault = Vault(self.settings.paths.vault)
        self.connections = Connections(self.settings, self.database)
        self.readiness = Readiness(self.settings, self.database, self.supervisor.comes_round)
        self.forwarding = Forwarding(self.settings.paths, self.database, loopback=self.settings.embedded)
        self.submission_keys = SubmissionKeys(self.database)
        self.plans = Plans(self.database)
        self.passwords = Passwords(self.settings, self.database, self.token, password)

    @cached_property
    def keys(self) -> SigningKeys:
        """What signs tokens; an embedded server without logons does without."""
        from local_backend.signing import SigningKeys

        return SigningKeys(self.settings.paths.keys, self.settings.token_seconds)

    @cached_property
    def audit(self) -> AuditLog:
        """Where changes are recorded."""
        return AuditLog(self.settings.paths.audit)

    def data_roots(self, user: Caller) -> DataRoots:
        """Where the data of the caller may lie. Raises ApiError when that cannot be known."""
        try:
            return roots(self.settings, user.name, user.admin)
        except DataError as problem:
            raise ApiError(500, str(problem)) from None

    def reason(self, row: ExecRow) -> Reason | None:
        """Why an exec waits, or is parked; None when it does not."""
        waits = row.state in (SUBMITTED, PENDING) or is_parked(row)
        return self.supervisor.reason(row.id) if waits else None

    def consumer(self, row: ExecRow) -> str:
        """The resource plan that an exec counts for."""
        return consumer(self.plans.tree, row)

    @cached_property
    def kinds(self) -> frozenset[str]:
        """The kinds of slots that there are; they stay the same while the server runs."""
        return frozenset(place.slot.kind for place in self.supervisor.places())

    def kind(self, row: ExecRow) -> str:
        """The kind of slot that an exec asks for."""
        return needs.kind(row.job, self.kinds)

    def paths(self, row: ExecRow) -> ExecPaths:
        """Files of an exec."""
        return self.settings.paths.job(row.id, row.creator)

    def exec_row(self, exec_id: str, user: Caller) -> ExecRow:
        """An exec that this user sees. Raises ApiError (400, as the contract has it) when there is none: that others
        have one with that id is not told."""
        row = self.database.read(lambda c: execs.get(c, exec_id)) if execs.is_exec_id(exec_id) else None
        if row is None or not user.sees(row):
            raise ApiError(400, f"Exec {exec_id[:80]!r} is not found")
        return row


# Both are coroutines: for a plain function a thread would be asked, twice in every call.
async def _backend(request: Request) -> Backend:
    backend: Backend = request.app.state.backend
    return backend


async def _user(request: Request) -> Caller:
    """Whom the guard let in."""
    user: Caller = request.scope[CALLER]
    return user


def administrator(user: Caller, does: str) -> None:
    """Raise ApiError (403) unless this is an administrator. `does` is what only an administrator does."""
    if not user.admin:
        raise ApiError(403, f"Only an administrator {does}, and {user.name} is none")


TheBackend = Annotated[Backend, Depends(_backend)]
TheUser = Annotated[Caller, Depends(_user)]
