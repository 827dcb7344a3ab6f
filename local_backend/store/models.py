"""Queries on models, their revisions, runtimes, and models that were saved. Each takes the connection of a transaction
(see database.py) and does one thing. Times are epoch seconds."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from sqlalchemy import Connection, delete, func, insert, select, update

from local_backend.store.schema import models, revisions, runtimes, sequences

#: States of a revision. `stored`: it has no kernels. `starting`: its kernels start. `serving`. `draining`: it gets no
#: new requests, and then becomes stored. `failed`: its kernels cannot start; `message` says why.
STORED, STARTING, SERVING, DRAINING, FAILED = "stored", "starting", "serving", "draining", "failed"
REVISION_STATES = (STORED, STARTING, SERVING, DRAINING, FAILED)
#: States in which a revision has kernels, or is to get them.
ACTIVE = frozenset({STARTING, SERVING, DRAINING})


@dataclass(frozen=True)
class ModelRow:
    """One row of `models`, with the same names."""

    number: int
    name: str
    creator: str
    shared: str
    profile: str
    readme: str
    started: bool
    traffic: str
    space: str | None
    create_time: float
    update_time: float
    start_time: float | None
    message: str | None

    @property
    def shared_with(self) -> tuple[str, ...] | Literal[True]:
        """The users that may see the model and send requests, beside its creator; True for all users."""
        found = json.loads(self.shared)
        return True if found is True else tuple(found)

    @property
    def weights(self) -> dict[int, int]:
        """Number of a revision → the part of the requests that it is to get, relative to the others."""
        return {int(number): weight for number, weight in json.loads(self.traffic).items()}

    def is_shared_with(self, user: str) -> bool:
        """Return whether this user may see the model and send requests without owning it."""
        shared = self.shared_with
        return shared is True or user in shared


@dataclass(frozen=True)
class RevisionRow:
    """One row of `revisions`, with the same names. `exec_id` names the exec of its kernels, or the last such exec."""

    model: int
    number: int
    description: str
    bundle: str
    size: int
    creator: str
    create_time: float
    state: str
    exec_id: str | None
    source: str | None
    message: str | None

    @property
    def model_json(self) -> dict[str, Any]:
        """The content of its model.json."""
        found: dict[str, Any] = json.loads(self.description)
        return found


@dataclass(frozen=True)
class RuntimeRow:
    """One row of `runtimes`, with the same names."""

    name: str
    creator: str
    description: str
    create_time: float
    update_time: float


_MODEL = [models.c[field.name] for field in fields(ModelRow)]
_REVISION = [revisions.c[field.name] for field in fields(RevisionRow)]
_RUNTIME = [runtimes.c[field.name] for field in fields(RuntimeRow)]


def _next_number(connection: Connection) -> int:
    last = connection.execute(select(sequences.c.last).where(sequences.c.name == "model")).scalar()
    if last is None:
        connection.execute(insert(sequences).values(name="model", last=1))
        return 1
    connection.execute(update(sequences).where(sequences.c.name == "model").values(last=last + 1))
    return int(last) + 1


def create(connection: Connection, name: str, creator: str, profile: str, readme: str) -> ModelRow:
    """Insert a model without revisions, which is stopped."""
    now = time.time()
    row = ModelRow(_next_number(connection), name, creator, "[]", profile, readme, False, "{}", None, now, now, None,
                   None)
    connection.execute(insert(models).values(**vars(row)))
    return row


def get(connection: Connection, name: str) -> ModelRow | None:
    """Return the model of this name, None if there is none."""
    found = connection.execute(select(*_MODEL).where(models.c.name == name)).first()
    return ModelRow(*found) if found else None


def all_models(connection: Connection) -> list[ModelRow]:
    """Return all models, by name."""
    return [ModelRow(*found) for found in connection.execute(select(*_MODEL).order_by(models.c.name))]


def to_run(connection: Connection) -> list[ModelRow]:
    """Return the models that are meant to serve, or have revisions with kernels, by number."""
    busy = select(revisions.c.model).where(revisions.c.state.in_(sorted(ACTIVE)))
    query = select(*_MODEL).where(models.c.started.is_(True) | models.c.number.in_(busy)).order_by(models.c.number)
    return [ModelRow(*found) for found in connection.execute(query)]


def any_to_run(connection: Connection) -> bool:
    """Return whether `to_run` returns any model."""
    return bool(to_run(connection))


def count_of(connection: Connection, creator: str, started: bool = False) -> int:
    """Return how many models a user has; with `started`, how many of them are started."""
    query = select(func.count()).select_from(models).where(models.c.creator == creator)
    if started:
        query = query.where(models.c.started.is_(True))
    return int(connection.execute(query).scalar_one())


def bytes_of(connection: Connection, creator: str) -> int:
    """Return the bytes of all revisions of the models of a user."""
    query = select(func.sum(revisions.c.size)).join(models, models.c.number == revisions.c.model)
    return int(connection.execute(query.where(models.c.creator == creator)).scalar() or 0)


def change(connection: Connection, number: int, **values: Any) -> None:
    """Set columns of a model. `traffic` may be a mapping, and `shared` a collection or True."""
    if isinstance(values.get("traffic"), Mapping):
        values["traffic"] = json.dumps({str(one): weight for one, weight in sorted(values["traffic"].items())})
    if "shared" in values and not isinstance(values["shared"], str):
        values["shared"] = json.dumps(True if values["shared"] is True else sorted(set(values["shared"])))
    connection.execute(update(models).where(models.c.number == number).values(**values))


def remove(connection: Connection, number: int) -> list[RevisionRow]:
    """Remove a model with its revisions, and return these."""
    gone = revisions_of(connection, number)
    connection.execute(delete(revisions).where(revisions.c.model == number))
    connection.execute(delete(models).where(models.c.number == number))
    return gone


# --- revisions


def add_revision(  # noqa: PLR0917
    connection: Connection, model: int, description: str, bundle: str, size: int, creator: str, source: str | None
) -> RevisionRow:
    """Insert the next revision of a model, without kernels."""
    last = connection.execute(select(func.max(revisions.c.number)).where(revisions.c.model == model)).scalar()
    now = time.time()
    row = RevisionRow(model, (last or 0) + 1, description, bundle, size, creator, now, STORED, None, source, None)
    connection.execute(insert(revisions).values(**vars(row)))
    connection.execute(update(models).where(models.c.number == model).values(update_time=now))
    return row


def revisions_of(connection: Connection, model: int) -> list[RevisionRow]:
    """Return the revisions of a model, oldest first."""
    query = select(*_REVISION).where(revisions.c.model == model).order_by(revisions.c.number)
    return [RevisionRow(*found) for found in connection.execute(query)]


def all_revisions(connection: Connection, numbers: Collection[int]) -> dict[int, list[RevisionRow]]:
    """Return the revisions of these models by the number of the model, oldest first."""
    found: dict[int, list[RevisionRow]] = {number: [] for number in numbers}
    query = select(*_REVISION).where(revisions.c.model.in_(numbers)).order_by(revisions.c.model, revisions.c.number)
    for one in connection.execute(query):
        row = RevisionRow(*one)
        found[row.model].append(row)
    return found


def revision(connection: Connection, model: int, number: int) -> RevisionRow | None:
    """Return one revision, None if there is none."""
    query = select(*_REVISION).where(revisions.c.model == model, revisions.c.number == number)
    found = connection.execute(query).first()
    return RevisionRow(*found) if found else None


def change_revision(connection: Connection, row: RevisionRow, **values: Any) -> bool:
    """Set columns of a revision that still has the state and the exec of `row`. Return whether it had."""
    same = (revisions.c.model == row.model, revisions.c.number == row.number, revisions.c.state == row.state,
            revisions.c.exec_id == row.exec_id if row.exec_id is not None else revisions.c.exec_id.is_(None))
    return bool(connection.execute(update(revisions).where(*same).values(**values)).rowcount)


def remove_revision(connection: Connection, row: RevisionRow) -> None:
    """Remove a revision."""
    connection.execute(delete(revisions).where(revisions.c.model == row.model, revisions.c.number == row.number))


def bundles(connection: Connection, of: Collection[str] | None = None) -> set[str]:
    """Return those of these bundles that any revision names; with None, all bundles that revisions name."""
    query = select(revisions.c.bundle).distinct()
    return set(connection.execute(query if of is None else query.where(revisions.c.bundle.in_(of))).scalars())


# --- runtimes


def add_runtime(connection: Connection, name: str, creator: str, description: str) -> RuntimeRow:
    """Insert a runtime."""
    now = time.time()
    row = RuntimeRow(name, creator, description, now, now)
    connection.execute(insert(runtimes).values(**vars(row)))
    return row


def runtime(connection: Connection, name: str) -> RuntimeRow | None:
    """Return the runtime of this name, None if there is none."""
    found = connection.execute(select(*_RUNTIME).where(runtimes.c.name == name)).first()
    return RuntimeRow(*found) if found else None


def all_runtimes(connection: Connection) -> list[RuntimeRow]:
    """Return all runtimes, by name."""
    return [RuntimeRow(*found) for found in connection.execute(select(*_RUNTIME).order_by(runtimes.c.name))]


def count_of_runtimes(connection: Connection, creator: str) -> int:
    """Return how many runtimes a user has."""
    query = select(func.count()).select_from(runtimes).where(runtimes.c.creator == creator)
    return int(connection.execute(query).scalar_one())


def change_runtime(connection: Connection, name: str, description: str) -> None:
    """Replace the description of a runtime."""
    connection.execute(update(runtimes).where(runtimes.c.name == name).values(
        description=description, update_time=time.time()))


def remove_runtime(connection: Connection, name: str) -> None:
    """Remove a runtime."""
    connection.execute(delete(runtimes).where(runtimes.c.name == name))
