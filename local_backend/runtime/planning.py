"""The tree of resource plans in the database, and which exec counts for which plan."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from sqlalchemy import Connection

from local_backend.scheduler import plans
from local_backend.scheduler.model import ROOT, ResourcePlan
from local_backend.store import documents, execs, holdings
from local_backend.store.database import Database
from local_backend.store.execs import ExecRow
from local_backend.workload import SERVICE

_log = logging.getLogger(__name__)


class Plans:
    """The plan tree, read again only after a write to the database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._tree = ROOT
        self._seen = -1

    @property
    def tree(self) -> ResourcePlan:
        """The plan tree: ROOT if none is stored, or the last valid tree if the stored one cannot be read. Raises
        database errors."""
        changes = self._database.changes
        if changes != self._seen:
            self._tree, self._seen = self._read(), changes
        return self._tree

    def change(self, edit: Callable[[ResourcePlan], ResourcePlan]) -> ResourcePlan:
        """Replace the tree by `edit(tree)`, in one transaction. From then on, the slots of execs count for the new
        plans. Raises errors of `edit` and of the database."""

        def work(connection: Connection) -> ResourcePlan:
            changed = edit(_stored(connection))
            documents.write(connection, documents.PLANS, plans.dump(changed))
            holders = [execs.get(connection, name, deleted=True) for name in holdings.holders(connection)]
            consumers = {row.id: consumer(changed, row) for row in holders if row is not None}
            holdings.recount(connection, consumers, time.time())
            return changed

        return self._database.write(work)

    def consumer(self, connection: Connection, row: ExecRow) -> str:
        """Return the path of the plan that an exec counts for, by the tree that this transaction sees."""
        try:
            return consumer(_stored(connection), row)
        except ValueError:
            return consumer(self._tree, row)

    def _read(self) -> ResourcePlan:
        try:
            found = self._database.read(_stored)
        except ValueError as problem:
            _log.error("invalid resource plans in %s: %s; keeping the previous plans", self._database.name, problem)
            return self._tree
        return self._tree if found == self._tree else found


def consumer(root: ResourcePlan, row: ExecRow) -> str:
    """Return the path of the plan that an exec counts for: `/local/training`."""
    path, _ = plans.resolve(root, row.workload.scheduling.consumer, row.user, serves=row.kind == SERVICE)
    return "/" + "/".join(path)


def _stored(connection: Connection) -> ResourcePlan:
    """Return the stored plan tree; ROOT if there is none. Raises ValueError for a damaged document."""
    document = documents.read(connection, documents.PLANS)
    return ROOT if document is None else plans.parse(document)
