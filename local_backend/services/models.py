"""Models that answer requests: deploy them, start and stop them, share them, and move traffic between revisions."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from local_backend.errors import AccessDenied, Conflict, Invalid, NotFound, OverQuota, StorageFailed
from local_backend.inference import converging, description
from local_backend.inference.description import ModelDescription
from local_backend.inference.profile import changed_profile, default_profile, fixed_changes
from local_backend.runtime import bundles
from local_backend.runtime.bundles import BundleLost
from local_backend.runtime.sizes import content_bytes, on_disk
from local_backend.services.access import Caller
from local_backend.services.base import Base
from local_backend.services.model_examples import ModelExample, example_of
from local_backend.services.model_views import ModelView, ServingFacts, seen_profile, seen_revision
from local_backend.services.runtimes import RuntimeService
from local_backend.store import execs, models
from local_backend.store.models import DRAINING, FAILED, SERVING, STARTING, STORED, ModelRow, RevisionRow
from local_backend.submit.quota import check_room
from local_backend.submit.receive import ReceivedUpload
from local_backend.submit.unpack import unpack

#: Revisions that a model keeps, beside those that have traffic or kernels.
KEPT = 20
#: Most users that a model is shared with by name, and largest weight of a revision.
_MOST_USERS, _MOST_WEIGHT = 1000, 1_000_000


@dataclass(frozen=True)
class ModelService:
    """Operations on models. A model belongs to the user who deployed it first. Administrators may do everything with
    all models; users that it is shared with see it and send requests."""

    base: Base
    runtimes: RuntimeService
    #: What the controller knows about gateway and kernels.
    facts: ServingFacts
    #: Makes the controller look at the models.
    wake: Callable[[], None]

    # --- find

    def find(self, caller: Caller, name: str) -> ModelRow:
        """Return a model that the caller sees. Raises NotFound (`model.not_found`)."""
        return self.base.database.read(lambda c: _seen(c, caller, name))

    def view(self, caller: Caller, name: str) -> ModelView:
        """Return a model as answers show it. Raises NotFound (`model.not_found`)."""
        def work(connection: Connection) -> ModelView:
            row = _seen(connection, caller, name)
            return self._view(caller, row, models.revisions_of(connection, row.number))

        return self.base.database.read(work)

    def owned(self, caller: Caller, name: str) -> ModelView:
        """Return a model that the caller may change. Raises NotFound, AccessDenied (`model.of_another_user`)."""
        def work(connection: Connection) -> ModelView:
            row = _owned(connection, caller, name)
            return self._view(caller, row, models.revisions_of(connection, row.number))

        return self.base.database.read(work)

    def numbered(self, view: ModelView, number: int) -> RevisionRow:
        """Return a revision of a model. Raises NotFound (`model.no_revision`)."""
        return _numbered(view.revisions, number, view.row.name)

    def list(self, caller: Caller) -> list[ModelView]:
        """Return the models that the caller sees, by name."""
        def work(connection: Connection) -> list[ModelView]:
            rows = [row for row in models.all_models(connection) if _sees(caller, row)]
            of_each = models.all_revisions(connection, [row.number for row in rows])
            return [self._view(caller, row, of_each[row.number]) for row in rows if of_each[row.number]]

        return self.base.database.read(work)

    # --- deploy

    def deploy(  # noqa: PLR0917
        self, caller: Caller, upload: ReceivedUpload, folder: Path, expected: str | None = None,
        kernel_type: str | None = None, name: str | None = None,
    ) -> ModelView:
        """Store the model of a received archive as a new model; with `expected`, as a new revision of this model.

        `folder` is a new folder. With `kernel_type`, a ready-made kernel serves the model, and `name` names it if
        model.json does not. Raises Invalid (`model.description`, `model.files`, `model.name`, `submission.archive`),
        NotFound (`model.not_found`, `runtime.not_found`), Conflict (`model.exists`), AccessDenied
        (`model.of_another_user`), OverQuota (`quota.models`, `quota.bytes`), StorageFailed.
        """
        action = "model.deploy" if expected is None else "model.redeploy"
        with self.base.recorded(caller, action, *filter(None, [expected])) as record:
            if expected is not None:
                self._own(caller, expected)
            if len(upload.files) != 1:
                raise Invalid("model.files", f"the request contains {len(upload.files)} files; send one archive of "
                                             "the folder of the model")
            try:
                folder.mkdir(mode=0o700, parents=True)
                unpack(upload.files[0][1], folder, self.base.settings.limits)
                top = _top(folder)
                found = description.read_description(top, kernel_type, name or expected)
            except OSError as problem:
                raise StorageFailed.from_os(problem) from None
            record.about.append(found.name)
            if expected is not None and found.name != expected:
                raise Invalid("model.name", f"model.json names the model {found.name}, but the request is for "
                                            f"{expected}; the names must be the same")
            return self.add(caller, found, top, None, new=expected is None)

    def publish(self, caller: Caller, name: str) -> ModelView:
        """Return a model: models are published when they are deployed. Raises NotFound, AccessDenied."""
        with self.base.recorded(caller, "model.redeploy", name):
            return self.owned(caller, name)

    def add(
        self, caller: Caller, found: ModelDescription, folder: Path, source: Mapping[str, Any] | None, *, new: bool
    ) -> ModelView:
        """Store the files of a folder as a model, or as the next revision of it. With `new`, the model must not exist.
        A started model then moves to the new revision when its kernels are ready. Raises the errors of `deploy`."""
        before = self.base.database.read(lambda c: models.get(c, found.name))
        self.runtimes.usable(caller.name if before is None else before.creator, found.runtime)
        check_room(self.base.settings.paths, self.base.settings.quotas, on_disk(folder))
        try:
            size = content_bytes(folder)
            bundle = bundles.keep(self.base.settings.paths, folder)
        except BundleLost:
            raise Invalid("model.files", "the folder of the model contains something that is neither a file nor a "
                                         "folder") from None
        except OSError as problem:
            raise StorageFailed.from_os(problem) from None

        def work(connection: Connection) -> tuple[ModelView, set[str]]:
            if not self.base.settings.paths.bundle(bundle).is_dir():
                raise BundleLost
            row = self._row_for(connection, caller, found, new)
            self._check_bytes(connection, caller, size)
            added = models.add_revision(
                connection, row.number, json.dumps(found.value), bundle, size, caller.name,
                None if source is None else json.dumps(dict(source)))
            models.change(connection, row.number, readme=found.readme)
            _moves_to(connection, row, added)
            gone = _pruned(connection, row.number)
            row = _seen(connection, caller, found.name)
            return self._view(caller, row, models.revisions_of(connection, row.number)), gone

        view, gone = self._stored(bundle, folder, work)
        self._forget(gone)
        self.wake()
        return view

    def _stored(
        self, bundle: str, folder: Path, work: Callable[[Connection], tuple[ModelView, set[str]]]
    ) -> tuple[ModelView, set[str]]:
        paths, database = self.base.settings.paths, self.base.database
        try:
            while True:
                try:
                    return database.write(work)
                except BundleLost:  # removed together with the last row that named it
                    bundles.keep(paths, folder)
        except Exception:
            self._forget({bundle})
            raise

    def _row_for(self, connection: Connection, caller: Caller, found: ModelDescription, new: bool) -> ModelRow:
        row = models.get(connection, found.name)
        if row is not None:
            if new:
                raise Conflict("model.exists", f"Model {found.name} already exists; deploy a new revision of it with "
                                               "POST /dlim/v1/deployment/model/NAME, or use another name")
            return _owned(connection, caller, found.name)
        most = self.base.settings.quotas.models
        if most is not None and models.count_of(connection, caller.name) >= most:
            raise OverQuota("quota.models", f"{caller.name} has {most} models, which is the limit. Undeploy some")
        profile = json.dumps(default_profile(time.time()))
        return models.create(connection, found.name, caller.name, profile, found.readme)

    def _check_bytes(self, connection: Connection, caller: Caller, size: int) -> None:
        most = self.base.settings.quotas.stored_bytes
        if most is not None and models.bytes_of(connection, caller.name) + size > most:
            raise OverQuota("quota.bytes", f"the models of {caller.name} use more than {most} bytes with this one, "
                                           "which is the limit. Undeploy some")

    # --- change

    def example(self, view: ModelView) -> ModelExample:
        """Return an example of a request for a model that the caller sees."""
        return example_of(self.base.settings.paths.bundle(view.main.bundle), view.main.model_json)

    def readme(self, caller: Caller, name: str) -> str:
        """Return the README of a model. Raises NotFound (`model.not_found`)."""
        return self.find(caller, name).readme

    def change_readme(self, caller: Caller, name: str, text: object) -> str:
        """Replace the README of a model. Raises NotFound, AccessDenied, Invalid (`model.readme`)."""
        with self.base.recorded(caller, "model.change", name):
            self._own(caller, name)
            if not isinstance(text, str):
                raise Invalid("model.readme", "readme must be a text")
            self._change(caller, name, readme=text)
        return text

    def profile(self, caller: Caller, name: str) -> dict[str, Any]:
        """Return the profile of a model. Raises NotFound (`model.not_found`)."""
        row = self.find(caller, name)
        found: dict[str, Any] = json.loads(seen_profile(row.profile, caller, row.creator))
        return found

    def change_profile(self, caller: Caller, name: str, given: object) -> dict[str, Any]:
        """Change the profile of a model, which counts at once, and return it; None changes nothing. Raises NotFound,
        AccessDenied, Invalid (`model.profile`), Conflict (`model.started`) for values that change only while the model
        is stopped."""
        with self.base.recorded(caller, "model.profile", name):
            def work(connection: Connection) -> dict[str, Any]:
                row = _owned(connection, caller, name)
                before = json.loads(row.profile)
                after = changed_profile(before, {} if given is None else given, time.time())
                fixed = fixed_changes(before, after)
                if fixed and (row.started or _busy(connection, row)):
                    raise Conflict("model.started", f"Model {name} is started; {', '.join(fixed)} can change only "
                                                    f"while it is stopped: dlim model stop {name}")
                models.change(connection, row.number, profile=json.dumps(after), update_time=time.time())
                return after

            changed = self.base.database.write(work)
        self.wake()
        return changed

    def change_description(self, caller: Caller, name: str, given: Mapping[str, Any]) -> ModelView:
        """Change `tag`, `attributes` or `mk_environments` of the newest revision of a stopped model. Other members must
        be as they are. Raises NotFound, AccessDenied, Invalid (`model.description`), Conflict (`model.started`)."""
        with self.base.recorded(caller, "model.change", name):
            def work(connection: Connection) -> ModelView:
                row = _owned(connection, caller, name)
                if row.started or _busy(connection, row):
                    raise Conflict("model.started", f"Model {name} is started; stop it first: dlim model stop {name}")
                rows = models.revisions_of(connection, row.number)
                changed = {key: given[key] for key in ("tag", "attributes", "mk_environments", "framework")
                           if key in given}
                value = rows[-1].model_json | changed
                folder = self.base.settings.paths.bundle(rows[-1].bundle)
                found = description.described(value, folder)
                models.change_revision(connection, rows[-1], description=json.dumps(found.value))
                models.change(connection, row.number, update_time=time.time())
                return self._view(caller, _seen(connection, caller, name),
                                  models.revisions_of(connection, row.number))

            return self.base.database.write(work)

    def share(self, caller: Caller, name: str, shared: object) -> None:
        """Share a model with these users instead of those before; True means all users. Raises NotFound, AccessDenied,
        Invalid (`model.shared`)."""
        with self.base.recorded(caller, "model.share", name):
            self._own(caller, name)
            shared = [] if shared is False else shared
            if shared is not True and not (isinstance(shared, list) and len(shared) <= _MOST_USERS and all(
                    isinstance(user, str) and 0 < len(user) <= 64 and user.isprintable() for user in shared)):
                raise Invalid("model.shared", f"a model is shared with a list of at most {_MOST_USERS} names of users, "
                                              "or with true for all users")
            self._change(caller, name, shared=shared)
        self.wake()

    # --- start and stop

    def start(self, caller: Caller, name: str) -> ModelRow:
        """Let a model serve. A failed revision is tried again. Raises NotFound, AccessDenied, OverQuota."""
        with self.base.recorded(caller, "model.start", name):
            def work(connection: Connection) -> ModelRow:
                row = _owned(connection, caller, name)
                most = self.base.settings.quotas.started_models
                if most is not None and not row.started and models.count_of(connection, row.creator, True) >= most:
                    raise OverQuota("quota.models", f"{row.creator} has {most} started models, which is the limit. "
                                                    "Stop one")
                for one in models.revisions_of(connection, row.number):
                    if one.state == FAILED:
                        models.change_revision(connection, one, state=STORED, message=None)
                if not row.started:
                    models.change(connection, row.number, started=True, start_time=time.time(), message=None)
                return row

            row = self.base.database.write(work)
        self.wake()
        return row

    def stop(self, caller: Caller, name: str) -> ModelRow:
        """Let a model answer what it has, and then stop. Raises NotFound, AccessDenied."""
        with self.base.recorded(caller, "model.stop", name):
            def work(connection: Connection) -> ModelRow:
                row = _owned(connection, caller, name)
                models.change(connection, row.number, started=False, message=None)
                for one in models.revisions_of(connection, row.number):
                    if one.state == FAILED:
                        models.change_revision(connection, one, state=STORED)
                    elif one.state in (STARTING, SERVING):
                        models.change_revision(connection, one, state=DRAINING)
                return row

            row = self.base.database.write(work)
        self.wake()
        return row

    def undeploy(self, caller: Caller, name: str) -> None:
        """Remove a stopped model with all revisions and their logs. Raises NotFound, AccessDenied, Conflict
        (`model.started`)."""
        with self.base.recorded(caller, "model.undeploy", name):
            def work(connection: Connection) -> set[str]:
                row = _owned(connection, caller, name)
                if row.started or _busy(connection, row):
                    raise Conflict("model.started", "The model cannot be removed if it's started")
                gone = models.remove(connection, row.number)
                for one in gone:
                    _forget_exec(connection, one)
                return {one.bundle for one in gone}

            self._forget(self.base.database.write(work))
        self.base.wake()

    # --- traffic

    def set_traffic(self, caller: Caller, name: str, weights: Mapping[str, Any]) -> ModelView:
        """Split the requests of a model among revisions by weight. A revision without kernels gets requests when its
        kernels are ready. Raises NotFound, AccessDenied, Invalid (`model.traffic`)."""
        with self.base.recorded(caller, "model.traffic", name):
            def work(connection: Connection) -> ModelRow:
                row = _owned(connection, caller, name)
                found = _weights(weights, models.revisions_of(connection, row.number))
                _set_weights(connection, row, found)
                return row

            self.base.database.write(work)
        self.wake()
        return self.view(caller, name)

    def promote(self, caller: Caller, name: str, number: int | None) -> ModelView:
        """Give all requests to a revision, by default to the newest one, when its kernels are ready. Raises NotFound
        (`model.not_found`, `model.no_revision`), AccessDenied."""
        with self.base.recorded(caller, "model.promote", name):
            def work(connection: Connection) -> None:
                row = _owned(connection, caller, name)
                rows = models.revisions_of(connection, row.number)
                _give_all(connection, row, _numbered(rows, rows[-1].number if number is None else number, name))

            self.base.database.write(work)
        self.wake()
        return self.view(caller, name)

    def rollback(self, caller: Caller, name: str) -> ModelView:
        """Give all requests to the revision before: the oldest of several that have requests, or else the one before
        the only one. A revision that is to take over does not. Raises NotFound, AccessDenied, Conflict
        (`model.no_earlier_revision`)."""
        with self.base.recorded(caller, "model.rollback", name):
            def work(connection: Connection) -> None:
                row = _owned(connection, caller, name)
                rows = models.revisions_of(connection, row.number)
                have = sorted(number for number, weight in row.weights.items() if weight > 0)
                pending = any(one.state == STARTING and one.number not in have for one in rows)
                earlier = [one.number for one in rows if one.number < have[0] and one.state != FAILED] if have else []
                if pending or len(have) > 1:
                    number = have[0]
                elif earlier:
                    number = earlier[-1]
                else:
                    raise Conflict("model.no_earlier_revision", f"Model {name} has no earlier revision that could "
                                                                "take its requests")
                _give_all(connection, row, _numbered(rows, number, name))

            self.base.database.write(work)
        self.wake()
        return self.view(caller, name)

    # --- helpers

    def _view(self, caller: Caller, row: ModelRow, revisions: Sequence[RevisionRow]) -> ModelView:
        """Return a model as the caller sees it."""
        seen = replace(row, profile=seen_profile(row.profile, caller, row.creator))
        return ModelView(seen, [seen_revision(one, caller, row.creator) for one in revisions], self.facts)

    def _own(self, caller: Caller, name: str) -> ModelRow:
        return self.base.database.read(lambda c: _owned(c, caller, name))

    def _change(self, caller: Caller, name: str, **values: Any) -> None:
        def work(connection: Connection) -> None:
            models.change(connection, _owned(connection, caller, name).number, **values)

        self.base.database.write(work)

    def _forget(self, gone: set[str]) -> None:
        """Remove the bundles that no row names any more."""
        with suppress(OSError, SQLAlchemyError):  # else the next server removes them
            bundles.drop(self.base.settings.paths, self.base.database, gone)


def _sees(caller: Caller, row: ModelRow) -> bool:
    return caller.admin or row.creator == caller.name or row.is_shared_with(caller.name)


def _seen(connection: Connection, caller: Caller, name: str) -> ModelRow:
    row = models.get(connection, name)
    if row is None or not _sees(caller, row):
        raise NotFound("model.not_found", f"Model {name[:80]} doesn't exist")
    return row


def _owned(connection: Connection, caller: Caller, name: str) -> ModelRow:
    row = _seen(connection, caller, name)
    if not (caller.admin or row.creator == caller.name):
        raise AccessDenied("model.of_another_user", f"Model {name} belongs to {row.creator}; you may not change it")
    return row


def _busy(connection: Connection, row: ModelRow) -> bool:
    """Return whether a model has revisions with kernels."""
    return any(one.state in models.ACTIVE for one in models.revisions_of(connection, row.number))


def _numbered(rows: Sequence[RevisionRow], number: int, name: str) -> RevisionRow:
    found = next((one for one in rows if one.number == number), None)
    if found is None:
        raise NotFound("model.no_revision", f"Model {name} has no revision {number}")
    return found


def _top(folder: Path) -> Path:
    """Return the folder of the model in an unpacked archive: the archive may have it as its only entry."""
    found = list(folder.iterdir())
    alone = len(found) == 1 and found[0].is_dir()
    return found[0] if alone and not (folder / description.MODEL_JSON).is_file() else folder


def _moves_to(connection: Connection, row: ModelRow, added: RevisionRow) -> None:
    """Let a new revision take the requests: at once for a stopped model, else when its kernels are ready."""
    if row.started:
        _cancel_pending(connection, row, added.number)
        models.change_revision(connection, added, state=STARTING)
    else:
        models.change(connection, row.number, traffic={added.number: converging.ALL})


def _give_all(connection: Connection, row: ModelRow, target: RevisionRow) -> None:
    """Give all requests to a revision: at once if it serves or the model is stopped, else when it is ready."""
    _cancel_pending(connection, row, target.number)
    if not row.started or target.state in (SERVING, DRAINING) or target.number in row.weights:
        _set_weights(connection, row, {target.number: converging.ALL})
    elif target.state != STARTING:
        _begin(connection, target)


def _cancel_pending(connection: Connection, row: ModelRow, but: int) -> None:
    """End the start of revisions that were to take over."""
    for one in models.revisions_of(connection, row.number):
        if one.state == STARTING and one.number != but and not row.weights.get(one.number):
            models.change_revision(connection, one, state=DRAINING)


def _begin(connection: Connection, target: RevisionRow) -> None:
    _forget_exec(connection, target)
    models.change_revision(connection, target, state=STARTING, exec_id=None, message=None)


def _set_weights(connection: Connection, row: ModelRow, weights: Mapping[int, int]) -> None:
    for one in models.revisions_of(connection, row.number):
        if one.state == FAILED and weights.get(one.number):
            models.change_revision(connection, one, state=STORED, message=None)
    models.change(connection, row.number, traffic=weights, update_time=time.time())


def _weights(given: Mapping[str, Any], rows: Sequence[RevisionRow]) -> dict[int, int]:
    """Return the weights of a request. Raises Invalid (`model.traffic`)."""
    known = {str(one.number): one.number for one in rows}
    found: dict[int, int] = {}
    for number, weight in given.items():
        if number not in known:
            raise Invalid("model.traffic", f"traffic: there is no revision {number[:40]}; revisions are "
                                           f"{', '.join(known)}")
        if isinstance(weight, bool) or not isinstance(weight, int) or not 0 <= weight <= _MOST_WEIGHT:
            raise Invalid("model.traffic", f"traffic: the weight of revision {number} must be a whole number from 0 to "
                                           f"{_MOST_WEIGHT}, but it is {str(weight)[:40]}")
        if weight:
            found[known[number]] = weight
    if not found:
        raise Invalid("model.traffic", "traffic: at least one revision must have a weight above 0; to end all "
                                       "requests, stop the model")
    return found


def _pruned(connection: Connection, number: int) -> set[str]:
    """Remove the oldest unused revisions above the number that a model keeps. Return their bundles."""
    row = next(one for one in models.all_models(connection) if one.number == number)
    unused = [one for one in models.revisions_of(connection, number)
              if one.state in (STORED, FAILED) and not row.weights.get(one.number)]
    gone = unused[:max(0, len(unused) - KEPT)]
    for one in gone:
        models.remove_revision(connection, one)
        _forget_exec(connection, one)
    return {one.bundle for one in gone}


def _forget_exec(connection: Connection, row: RevisionRow) -> None:
    """Delete the exec that ran the kernels of a revision, with its logs."""
    if row.exec_id is not None:
        execs.note(connection, row.exec_id, stop_requested=True, deleted=True)
