"""Models made of finished execs: deploy one at once, or save it under a name, put it into a space, and deploy it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from dlicmd.contract.checkpoints import to_serve
from dlicmd.contract.data_sources import PATH_KEYS
from dlicmd.contract.states import FINISHED
from local_backend.data.errors import DataError
from local_backend.data.storage import places
from local_backend.errors import AccessDenied, Conflict, Invalid, NotFound, OverQuota, StorageFailed
from local_backend.files import open_folder, open_regular, regular_files, write_json
from local_backend.inference import description
from local_backend.inference.description import ModelDescription
from local_backend.inference.loading import Loading, check_loadable, kernel_in, loading_of, ready_made_in
from local_backend.runtime import bundles
from local_backend.runtime.bundles import BundleLost
from local_backend.runtime.paths import ExecPaths
from local_backend.runtime.sizes import on_disk
from local_backend.services.access import Caller
from local_backend.services.base import Base
from local_backend.services.execs import ExecService
from local_backend.services.model_views import ModelView, seen_origin
from local_backend.services.models import ModelService
from local_backend.services.searches import SearchService
from local_backend.store import saved_models
from local_backend.store.execs import ExecRow
from local_backend.store.saved_models import SavedModelRow
from local_backend.submit.quota import check_room

_CODE_LEFT_OUT = ("__pycache__",)
#: Most characters of the name of a space, and most versions of saved models that a user may have.
_LONGEST_SPACE, _MOST_SAVED = 200, 1000
#: Function that returns the paths to copy, from all paths.
Choice = Callable[[Iterable[str]], list[str]]


@dataclass(frozen=True)
class DeploymentWords:
    """What a request says about a model that is made of an exec. `kernel` is a file, or the name of a ready-made
    kernel; None: found from the files."""

    kernel: str | None = None
    name: str | None = None
    runtime: str | None = None
    weight: str | None = None
    tag: str | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    environments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class EdiWords:
    """What a request of the console says about a model in a folder of the user's data. `attributes` and `environments`
    are texts: JSON, or `KEY=VALUE,KEY=VALUE`."""

    name: str
    kernel: str
    folder: str
    weight: str
    runtime: str
    attributes: str = ""
    environments: str = ""
    tag: str = ""


@dataclass(frozen=True)
class ModelSourceService:
    """Operations that make models of execs."""

    base: Base
    execs: ExecService
    models: ModelService
    searches: SearchService

    # --- deploy an exec

    def deploy_exec(self, caller: Caller, exec_id: str, words: DeploymentWords, folder: Path) -> ModelView:
        """Deploy the result of an exec as a model, or as the next revision of the model of this name. `folder` is a new
        folder. The files of kernel and weights are looked for in the result of the exec, then in its submitted code.

        Raises NotFound (`exec.not_found`), Conflict (`exec.not_finished`), Invalid (`model.*`), and the errors of
        `ModelService.deploy`.
        """
        with self.base.recorded(caller, "exec.deploy", exec_id) as record:
            row = self.execs.find(caller, exec_id)
            _check_finished(row)
            self._assemble(row, folder, "")
            found = self._described(folder, words, words.name or row.id)
            record.about.append(found.name)
            return self.models.add(caller, found, folder, _origin(row), new=False)

    def deploy_folder(self, caller: Caller, words: EdiWords, folder: Path) -> ModelView:
        """Deploy a model from a folder of the user's data. `folder` is a new folder. Raises Invalid (`data.invalid`,
        `model.*`), and the errors of `ModelService.deploy`."""
        with self.base.recorded(caller, "model.deploy", words.name):
            description.check_name(words.name)
            try:
                (source,) = places({PATH_KEYS[0]: words.folder}, self.base.data_roots(caller))
            except DataError as problem:
                raise Invalid("data.invalid", f"modelPath: {problem}") from None
            try:
                folder.mkdir(mode=0o700, parents=True)
                if not _copy(Path(source), Path(source).parent, folder, self._check_room):
                    raise Invalid("model.files", f"modelPath: the folder {words.folder[:200]} contains no file")
            except OSError as problem:
                raise StorageFailed.from_os(problem) from None
            asked = DeploymentWords(
                _inside(words.kernel, words.folder, source), words.name, words.runtime or None,
                _inside(words.weight, words.folder, source) or None, words.tag,
                _mapping(words.attributes, "attribute"), _mapping(words.environments, "mcenv"))
            return self.models.add(caller, self._described(folder, asked, words.name), folder,
                                   {"folder": words.folder}, new=True)

    # --- the store

    def saved(self, caller: Caller) -> list[SavedModelRow]:
        """Return the saved models of the caller and those in spaces, by name and version, with what the caller sees of
        their lineage."""
        rows = self.base.database.read(lambda c: saved_models.everything(c, caller.sees_of))
        return [replace(row, source=json.dumps(seen_origin(row.origin, caller, row.creator))) for row in rows]

    def save_best(self, caller: Caller, search: str, name: str, folder: Path, *, new: bool) -> SavedModelRow:
        """Save the result of the best experiment of a search, as `save` does. Raises NotFound (`search.not_found`),
        Conflict (`search.no_best`), and the errors of `save`."""
        with self.base.recorded(caller, "hpo.update", search, name):
            best = self.searches.view(caller, search, brief=True).best
            if best is None or best.exec_id is None:
                raise Conflict("search.no_best", f"No experiment of {search} has finished with a value yet; only the "
                                                 "result of a finished experiment can become a model")
            return self.save(caller, name, best.exec_id, "", folder, new=new)

    def save(  # noqa: PLR0917
        self, caller: Caller, name: str, exec_id: str, path: str, folder: Path, new: bool = False
    ) -> SavedModelRow:
        """Save the result of an exec under a name, as its next version. `path` is a folder or file of the result; `.`
        for the whole result; empty for the files that serving needs, without the states of the training.
        `folder` is a new folder. With `new`, the name must not have a version yet. Raises
        NotFound (`exec.not_found`, `exec.no_result`), Conflict (`exec.not_finished`, `model.exists`), Invalid,
        AccessDenied (`model.of_another_user`), OverQuota, StorageFailed."""
        with self.base.recorded(caller, "model.save", name) as record:
            record.about.append(exec_id)
            description.check_name(name, "the name of a saved model")
            row = self.execs.find(caller, exec_id)
            _check_finished(row)
            self._assemble(row, folder, path, to_serve if path == "" else list)
            size = on_disk(folder)
            self._check_room(size)
            try:
                bundle = bundles.keep(self.base.settings.paths, folder)
            except (OSError, BundleLost) as problem:
                raise StorageFailed.from_os(problem if isinstance(problem, OSError) else OSError()) from None
            origin = _origin(row) | {"path": path}

            def work(connection: Connection) -> SavedModelRow:
                before = saved_models.versions(connection, name)
                if before and not (caller.admin or before[0].creator == caller.name):
                    raise AccessDenied("model.of_another_user", f"The saved model {name} belongs to "
                                                                f"{before[0].creator}")
                if before and new:
                    raise Conflict("model.exists", f"The saved model {name} already exists; choose another name")
                if saved_models.count_of(connection, caller.name) >= _MOST_SAVED:
                    raise OverQuota("quota.models", f"{caller.name} has {_MOST_SAVED} saved models, which is the "
                                                    "limit. Remove some")
                if not self.base.settings.paths.bundle(bundle).is_dir():
                    raise BundleLost
                made = saved_models.save(connection, name, caller.name, bundle, size, origin)
                most = self.base.settings.quotas.stored_bytes
                if most is not None and saved_models.bytes_of(connection, caller.name) > most:
                    raise OverQuota("quota.bytes", f"the saved models of {caller.name} use more than {most} bytes with "
                                                   "this one, which is the limit. Remove some")
                return made

            try:
                while True:
                    try:
                        return self.base.database.write(work)
                    except BundleLost:  # removed together with the last row that named it
                        bundles.keep(self.base.settings.paths, folder)
            except Exception:
                self._forget({bundle})
                raise

    def promote(self, caller: Caller, name: str, space: str, version: int | None) -> SavedModelRow:
        """Put a saved model into a space, where every user sees it and may deploy it. Raises NotFound
        (`model.not_saved`), AccessDenied, Invalid (`model.space`)."""
        with self.base.recorded(caller, "model.to_space", name):
            if not space.strip() or len(space) > _LONGEST_SPACE or not space.isprintable():
                raise Invalid("model.space", f"space must be a name of 1 to {_LONGEST_SPACE} printable characters")

            def work(connection: Connection) -> SavedModelRow:
                row = _saved(connection, caller, name, version)
                if not (caller.admin or row.creator == caller.name):
                    raise AccessDenied("model.of_another_user", f"The saved model {name} belongs to {row.creator}")
                saved_models.promote(connection, row, space)
                return _saved(connection, caller, name, row.version)

            return self.base.database.write(work)

    def remove(self, caller: Caller, name: str, version: int | None) -> None:
        """Remove a saved model: one version, or all. Models that were deployed from it stay. Raises NotFound
        (`model.not_saved`), AccessDenied."""
        with self.base.recorded(caller, "model.unsave", name):
            def work(connection: Connection) -> set[str]:
                last = _saved(connection, caller, name, version)
                if not (caller.admin or last.creator == caller.name):
                    raise AccessDenied("model.of_another_user", f"The saved model {name} belongs to {last.creator}")
                rows = [last] if version is not None else saved_models.versions(connection, name)
                for row in rows:
                    saved_models.remove(connection, row)
                return {row.bundle for row in rows}

            self._forget(self.base.database.write(work))

    def deploy_saved(
        self, caller: Caller, name: str, version: int | None, words: DeploymentWords, folder: Path
    ) -> ModelView:
        """Deploy a saved model. `folder` is a new folder. Raises NotFound (`model.not_saved`), and the errors of
        `deploy_exec`."""
        with self.base.recorded(caller, "model.deploy", name):
            row = self.base.database.read(lambda c: _saved(c, caller, name, version))
            try:
                folder.mkdir(mode=0o700, parents=True)
                bundles.copy(self.base.settings.paths, row.bundle, folder)
            except (BundleLost, OSError) as problem:
                raise StorageFailed.from_os(problem if isinstance(problem, OSError) else OSError()) from None
            found = self._described(folder, words, words.name or name)
            source = row.origin | {"saved": name, "version": row.version, "space": row.space}
            return self.models.add(caller, found, folder, source, new=False)

    def loading(self, caller: Caller, name: str, version: int | None, words: DeploymentWords) -> Loading:
        """Return what a deployment of a saved model with these words would load, and why it would be refused. Raises
        NotFound (`model.not_saved`), StorageFailed."""
        row = self.base.database.read(lambda c: _saved(c, caller, name, version))
        folder = self.base.settings.paths.bundle(row.bundle)
        kernel, ready_made, checked, found = "", None, {}, None
        try:
            kernel = words.kernel or kernel_in(folder)
            ready_made = ready_made_in(folder, kernel)
            value = _model_json(folder, words, words.name or name, kernel)
            if ready_made is None:
                description.check_kernel(value, folder)
                checked = value
            else:
                checked = description.described(description.completed(value, ready_made, None, folder), folder).value
                check_loadable(ready_made, checked, folder)
        except Invalid as problem:
            found = problem
        except OSError as problem:
            raise StorageFailed.from_os(problem) from None
        return loading_of(folder, kernel, ready_made, checked, found)

    # --- helpers

    def _check_room(self, size: int) -> None:
        """Raise StorageFailed if the disk has less free space than new files need."""
        check_room(self.base.settings.paths, self.base.settings.quotas, size)

    def _assemble(self, row: ExecRow, folder: Path, path: str, needed: Choice = list) -> None:
        """Fill a new folder with the submitted code of an exec, and with its result below `model`, as in the zip of the
        result. With a `path`, this part of the result is at the top instead. `needed` chooses from the files. Raises
        NotFound (`exec.no_result`), Invalid (`model.files`), StorageFailed."""
        paths = self.execs.paths(row)
        part = PurePosixPath(path.removeprefix(f"{paths.model.name}/") or ".")
        if part.is_absolute() or ".." in part.parts or "\0" in path:
            raise Invalid("model.files", f"path must be the path of a file or folder in the result of {row.id}")
        try:
            folder.mkdir(mode=0o700, parents=True)
            if row.bundle is not None:
                code = self.base.settings.paths.bundle(row.bundle) / (row.workload.program.model_dir or "")
                _copy(code, code.parent, folder, self._check_room, _CODE_LEFT_OUT)
            result = paths.model / part
            if part.parts and not result.is_dir():
                copied = _copy_file(result, paths.root, folder / part.name)
            else:
                copied = _copy(result, paths.root, folder if part.parts else folder / result.name, self._check_room,
                               (), needed)
        except OSError as problem:
            raise StorageFailed.from_os(problem) from None
        if part.parts and not copied:
            raise NotFound("exec.no_result", f"Exec {row.id} stored no file {path[:200]!r} in its model folder "
                                             "(SAVED_MODEL_DIR)")

    def _described(self, folder: Path, words: DeploymentWords, name: str) -> ModelDescription:
        """Write the description of a model into its folder, and return it. Raises Invalid, StorageFailed."""
        kernel = words.kernel or kernel_in(folder)
        ready_made = ready_made_in(folder, kernel)
        try:
            write_json(folder / description.MODEL_JSON, _model_json(folder, words, name, kernel), durable=False)
            readme = folder / description.README
            if not readme.exists():
                readme.write_text(f"# {name}\n", encoding="utf-8")
            return description.read_description(folder, ready_made, name)
        except OSError as problem:
            raise StorageFailed.from_os(problem) from None

    def _forget(self, gone: set[str]) -> None:
        with suppress(OSError, SQLAlchemyError):  # else the next server removes them
            bundles.drop(self.base.settings.paths, self.base.database, gone)


def _model_json(folder: Path, words: DeploymentWords, name: str, kernel: str) -> dict[str, Any]:
    """Return the model.json of a deployment with this kernel, which may lack the weights of a ready-made kernel."""
    ready_made = ready_made_in(folder, kernel)
    weight = None if words.weight is None else _resolved(folder, words.weight)
    return {
        "name": name, "tag": words.tag or "", "runtime": words.runtime or description.BUILT_IN[0],
        "kernel_path": "" if ready_made else _resolved(folder, kernel), "schema_version": "1",
        "attributes": [{"key": key, "value": one} for key, one in words.attributes.items()],
        "mk_environments": [{"name": key, "value": str(one)} for key, one in words.environments.items()],
        **({"weight_path": weight} if weight else {} if ready_made else {"weight_path": "./"}),
    }


def _resolved(folder: Path, path: str) -> str:
    """Return the path of a file or folder in the folder of a model: in the result of the exec, or else in its code. The
    path itself if neither has it, which is refused later."""
    result = ExecPaths.RESULT
    places = (f"{result}/{path}", path, path.removeprefix(f"{result}/"))
    if path in (description.NO_WEIGHTS, "", ".", "./") or ".." in PurePosixPath(path).parts or "\0" in path:
        return path
    return next((one for one in places if (folder / one).exists()), path)


def _inside(path: str, *folders: str) -> str:
    """Return an absolute path below one of the folders relative to this folder, any other path as it is."""
    if path.startswith("/"):
        for folder in folders:
            with suppress(ValueError):
                return PurePosixPath(path).relative_to(folder).as_posix()
    return path


def _mapping(text: str, key: str) -> dict[str, Any]:
    """Return the pairs of a text: JSON, or `KEY=VALUE,KEY=VALUE`. Raises Invalid (`model.description`)."""
    if not text.strip():
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        found = dict(part.partition("=")[::2] for part in text.split(",") if part.strip())
    if not isinstance(found, dict) or any(isinstance(one, dict | list) for one in found.values()) or "" in found:
        raise Invalid("model.description", f"{key} must be KEY=VALUE,KEY=VALUE, or a JSON object with texts")
    return {str(name).strip(): one for name, one in found.items()}


def _check_finished(row: ExecRow) -> None:
    if row.state != FINISHED:
        raise Conflict("exec.not_finished", f"Exec {row.id} is {row.shown_state}; only the result of an exec that has "
                                            "finished can become a model")


def _origin(row: ExecRow) -> dict[str, Any]:
    """Return the lineage of a model: its exec, and the data and the code of this."""
    return {
        "exec": row.id, "framework": row.framework, "user": row.creator, "args": row.args.strip(), "code": row.bundle,
        "data": None if row.data_source is None else json.loads(row.data_source),
    }


def _saved(connection: Connection, caller: Caller, name: str, version: int | None) -> SavedModelRow:
    rows = [row for row in saved_models.versions(connection, name)
            if version in (None, row.version) and (caller.admin or caller.name == row.creator or row.space is not None)]
    if not rows:
        raise NotFound("model.not_saved", f"There is no saved model {name[:80]}"
                                          + (f" with the version {version}" if version is not None else ""))
    return rows[-1]


def _copy(  # noqa: PLR0917
    source: Path, top: Path, target: Path, check: Callable[[int], None], left_out: tuple[str, ...] = (),
    needed: Choice = list,
) -> bool:
    """Copy the `needed` regular files below a folder over those of another one. Links are left out: a program may have
    made them. Return whether any file was copied. `check` is called with their bytes before. Raises OSError, and the
    errors of `check`."""
    opened = open_folder(source, top)
    if opened is None:
        return False
    try:
        sizes = {name: found.st_size for name, found in regular_files(opened, left_out, []) if found.st_nlink <= 1}
    finally:
        os.close(opened)
    names = sorted(needed(sizes))
    check(sum(sizes[name] for name in names))
    return sum(_copy_file(source / name, top, target / name) for name in names) > 0


def _copy_file(source: Path, top: Path, target: Path) -> bool:
    file = open_regular(source, top)
    if file is None:
        return False
    with file:
        if target.is_dir() or any(parent.is_file() for parent in target.parents):
            raise Invalid("model.files", f"the result and the code of the exec both contain {target.name!r}, once as "
                                         "a file and once as a folder")
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with target.open("wb") as made:
            shutil.copyfileobj(file, made, 1 << 20)
    return True
