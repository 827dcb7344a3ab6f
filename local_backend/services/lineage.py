"""Where a run comes from, and what was made of it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from sqlalchemy import Connection

from local_backend.services.access import Caller
from local_backend.services.execs import ExecService
from local_backend.services.models import ModelService
from local_backend.store import execs, saved_models
from local_backend.store.execs import ExecRow
from local_backend.store.saved_models import SavedModelRow

#: Maximum number of other runs of the same code.
_MOST = 20


@dataclass(frozen=True)
class ServedRevision:
    """A revision of a model that was made of a run."""

    model: str
    number: int
    state: str


@dataclass(frozen=True)
class Lineage:
    """The relations of a run. Values are only what the caller may see."""

    #: Name of the search, and the number of the experiment in it.
    search: str | None = None
    experiment: int | None = None
    #: The run that this one repeats, if it still exists.
    repeats: ExecRow | None = None
    same_code: list[ExecRow] = field(default_factory=list)
    saved: list[SavedModelRow] = field(default_factory=list)
    revisions: list[ServedRevision] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether the run has no relations."""
        return not (self.search or self.repeats or self.same_code or self.saved or self.revisions)


@dataclass(frozen=True)
class LineageService:
    """Queries on relations of runs."""

    execs: ExecService
    models: ModelService

    def of(self, caller: Caller, exec_id: str) -> Lineage:
        """Return the relations of a run. Raises NotFound (`exec.not_found`)."""
        row = self.execs.find(caller, exec_id)
        spec = row.workload

        def work(connection: Connection) -> Lineage:
            origin = execs.get(connection, spec.repeats) if spec.repeats else None
            others = [] if row.bundle is None else execs.of_bundle(connection, row.bundle, _MOST + 1)
            return Lineage(
                spec.experiment.search if spec.experiment else None, spec.experiment.id if spec.experiment else None,
                origin if origin is not None and caller.sees(origin) else None,
                [other for other in others if other.id != row.id and caller.sees(other)][:_MOST],
                [one for one in saved_models.everything(connection, caller.sees_of)
                 if one.origin.get("exec") == row.id],
            )

        found = self.execs.base.database.read(work)
        found.revisions.extend(
            ServedRevision(view.row.name, revision.number, revision.state)
            for view in self.models.list(caller) for revision in view.revisions
            if revision.source and json.loads(revision.source).get("exec") == row.id
        )
        return found
