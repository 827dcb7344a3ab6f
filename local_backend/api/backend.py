"""What every route needs: one object per server, and who is calling."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Protocol

from fastapi import Depends, Request

from dlicmd.contract.states import PENDING, SUBMITTED
from local_backend.api.archives import Archives
from local_backend.api.errors import ApiError
from local_backend.api.submission_keys import SubmissionKeys
from local_backend.runtime import needs
from local_backend.runtime.occupancy import Place
from local_backend.runtime.paths import ExecPaths
from local_backend.runtime.planning import Plans, consumer
from local_backend.runtime.resizing import Resized
from local_backend.runtime.utilisation import Utilisation
from local_backend.scheduler.model import Reason
from local_backend.settings import Settings
from local_backend.store import execs
from local_backend.store.database import Database
from local_backend.store.execs import ExecRow


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

    def status(self) -> dict[str, object]:
        """Slots, jobs and nursery, for GET /status."""


@dataclass
class Backend:
    """One running backend."""

    settings: Settings
    database: Database
    supervisor: Supervisor
    #: The token of backend.json; also a password for logon.
    token: str
    #: A further password for logon, None for none.
    password: str | None = None
    started: float = field(default_factory=time.time)
    #: The server is going: long polls answer at once.
    closing: bool = False
    #: Results whose transfer was cut.
    archives: Archives = field(default_factory=Archives)
    #: How busy the devices are.
    utilisation: Utilisation = field(default_factory=Utilisation)
    plans: Plans = field(init=False)
    submission_keys: SubmissionKeys = field(init=False)

    def __post_init__(self) -> None:
        self.submission_keys = SubmissionKeys(self.database)
        self.plans = Plans(self.database)

    def reason(self, row: ExecRow) -> Reason | None:
        """Why an exec waits; None when it does not."""
        return self.supervisor.reason(row.id) if row.state in (SUBMITTED, PENDING) else None

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

    def exec_row(self, exec_id: str, user: str) -> ExecRow:
        """An exec of this user. Raises ApiError (400, as the contract has it) when there is none."""
        row = self.database.read(lambda c: execs.get(c, exec_id)) if execs.is_exec_id(exec_id) else None
        if row is None or row.creator != user:
            raise ApiError(400, f"Exec {exec_id[:80]!r} is not found")
        return row


def _backend(request: Request) -> Backend:
    backend: Backend = request.app.state.backend
    return backend


def _user(request: Request) -> str:
    """Whom the guard let in."""
    user: str = request.scope["dlicmd.user"]
    return user


TheBackend = Annotated[Backend, Depends(_backend)]
TheUser = Annotated[str, Depends(_user)]
