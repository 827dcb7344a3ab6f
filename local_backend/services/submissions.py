"""Submissions: make one exec of a request, verify an exec by another one, and submit the experiments of searches."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from dlicmd.contract import wire
from dlicmd.contract.secret import MASK
from local_backend.data.storage import DataRoots
from local_backend.data.submitted import Find, SubmittedData
from local_backend.errors import AccessDenied, BackendError, Invalid, StorageFailed, TooLarge
from local_backend.forward.service import Forwarding
from local_backend.forward.target import Targets
from local_backend.measures import SUBMISSIONS
from local_backend.runtime import bundles, launcher_log, needs
from local_backend.runtime.bundles import BundleLost
from local_backend.runtime.data_list import joined
from local_backend.runtime.paths import CONFIG
from local_backend.runtime.sizes import Sizes, on_disk
from local_backend.scheduler.model import Machine
from local_backend.services.access import Caller
from local_backend.services.execs import ExecService
from local_backend.services.submission_keys import SubmissionKeys, digest
from local_backend.sources.connections import Connections
from local_backend.store import exec_secrets, experiment_runs, team_objects
from local_backend.store.execs import ExecRow
from local_backend.store.submission_keys import Keyed
from local_backend.submit import forwarding, hardware_keys, words
from local_backend.submit.accept import accept
from local_backend.submit.again import Changes, arguments_of, code_gone, targets_of, to_repeat, to_verify
from local_backend.submit.check import check, unbuilt
from local_backend.submit.data import create, data_named, data_of
from local_backend.submit.place import located, place
from local_backend.submit.quota import check_room, check_user
from local_backend.submit.receive import ReceivedUpload
from local_backend.submit.words import Asked
from local_backend.vault import Vault
from local_backend.workload import Program, Workload

T = TypeVar("T")

_WRITTEN_OUT = (
    "the data source contains credentials. This server stores them encrypted until the job finishes, but shell "
    "history and scripts keep them readable. Add a connection (local-backend connection add) and name it instead"
)
_NOT_JOINED = (
    "the data source paths are too long for the variable DLI_DATA_DIRS, so DLI_DATA_DIRS is not set; read all paths "
    "from DLI_DATA_SOURCES_FILE"
)


@dataclass(frozen=True)
class SubmissionRequest:
    """A submission as it arrived: `args` and `sig_name` of the query, the received body, and its idempotency key.

    With `strict`, the server refuses what it cannot run, and data paths that do not exist. Without it, the server
    answers as the recorded server did.
    """

    args: str | None
    upload: ReceivedUpload
    sig_name: str | None = None
    key: str | None = None
    strict: bool = False


@dataclass(frozen=True)
class Submitted:
    """The exec of a submission, and warnings for its submitter."""

    row: ExecRow
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Template:
    """A checked submission whose code is stored, for any number of execs."""

    #: Without id. Its main file is as uploaded.
    spec: Workload
    args: str
    data_source: list[Any] | None
    #: Secrets of the data sources, and the targets of the metrics, as sealed texts.
    sealed: str | None
    targets: str | None


@dataclass(frozen=True)
class _Checked:
    """A submission without mistakes."""

    spec: Workload
    shown_args: str
    data_source: list[Any] | None
    sealed: str | None
    targets: Targets | None = None
    #: Why the exec never runs; None if it can run.
    lack: str | None = None
    #: Data paths to create, and the folders that they are in.
    new: tuple[str, ...] = ()
    roots: DataRoots | None = None
    #: The folder that the client has copied into the home.
    staged: Path | None = None
    #: Warnings for the submitter.
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class SubmissionService:
    """Operations on submissions."""

    execs: ExecService
    connections: Connections
    vault: Vault
    sizes: Sizes
    forwarding: Forwarding
    keys: SubmissionKeys
    #: Returns the hardware specification of a name that the user may use. Raises NotFound, Invalid.
    hardware: Callable[[Caller, str], Mapping[str, Any]]

    def folder(self) -> Path:
        """Return the name of a new folder for an upload."""
        return self.execs.base.settings.paths.incoming / secrets.token_hex(8)

    def check_upload(self, caller: Caller, size: int, keyed: bool, action: str = "exec.submit") -> None:
        """Raise TooLarge, OverQuota or StorageFailed for an upload of this many bytes that could not be accepted.

        A submission with a key may have made its exec already. Its user's quota is therefore checked only when the
        exec is made.
        """
        most = self.execs.base.settings.limits.upload_bytes
        try:
            caller.check_scope(action)
            if size > most:
                sentence = f"the upload is larger than {most} bytes, the limit of this server"
                raise TooLarge("submission.too_large", sentence)
            check_room(self.execs.base.settings.paths, self.execs.base.settings.quotas, size)
            if not keyed:
                self.execs.base.database.read(lambda c: self._check_user(c, caller, size))
        except BackendError as problem:
            self.refused(caller, problem, action)
            raise

    def refused(self, caller: Caller, problem: BackendError, action: str = "exec.submit") -> None:
        """Record a submission that was refused before it was complete."""
        base = self.execs.base
        _count(problem)
        outcome = "failed" if problem.is_failure else "refused"
        base.note(caller, action, [], outcome, problem.code)

    def submit(self, caller: Caller, request: SubmissionRequest) -> Submitted:
        """Make an exec of a received submission, or return the one that was made earlier with the same key.

        Raises Invalid (`submission.*`, `data.*`), Denied, OverQuota, StorageFailed, Conflict and Mismatch
        (`submission.key_*`), VaultError.
        """
        base = self.execs.base
        try:
            with base.recorded(caller, "exec.submit") as record:
                made = self._submitted_once(caller, request)
                record.about.append(made.row.id)
        except BackendError as problem:
            _count(problem)
            if problem.is_failure:
                base.wake()  # the exec may exist in spite of a lost database connection
            raise
        SUBMISSIONS.labels("accepted").inc()
        base.wake()
        return made

    def check(self, caller: Caller, args: str | None, data: str | None) -> None:
        """Check a strict submission before its files arrive. Raises the errors of `submit` that need no file."""
        with self.execs.base.recorded(caller, "exec.check"):
            self._checked(caller, SubmissionRequest(args, ReceivedUpload([], data), strict=True))

    def verify(self, caller: Caller, exec_id: str, steps: int) -> ExecRow:
        """Submit an exec again as a new exec that computes its first `steps` steps with two numbers of workers.

        Raises NotFound (`exec.not_found`), Denied (`exec.of_another_user`), Invalid (`verify.*`), OverQuota,
        StorageFailed.
        """
        base = self.execs.base
        with base.recorded(caller, "exec.verify", exec_id) as record:
            row = self.execs.find(caller, exec_id)
            if row.creator != caller.name:
                raise AccessDenied("exec.of_another_user", f"Only {row.creator} may verify {row.id}")
            spec, shown = to_verify(row, steps)
            try:
                made = self._once_more(caller, row, spec, shown)
            except BundleLost:
                raise code_gone(row) from None
            record.about.append(made.id)
        base.wake()
        return made

    def arguments(self, row: ExecRow) -> tuple[str, ...]:
        """Return the words of an exec's program that a repetition can change."""
        return arguments_of(row.workload.program, self.execs.paths(row))

    def repeat(self, caller: Caller, exec_id: str, changes: Changes) -> ExecRow:
        """Submit an exec again as a new exec, with the same code, and with the given changes. If the exec is part
        of a run of an experiment, the new exec is a further run of it.

        Raises NotFound (`exec.not_found`), Denied (`exec.of_another_user`), Invalid (`again.*`, `submission.*`),
        OverQuota, StorageFailed.
        """
        base = self.execs.base
        with base.recorded(caller, "exec.again", exec_id) as record:
            row = self.execs.find(caller, exec_id)
            if row.creator != caller.name:
                raise AccessDenied("exec.of_another_user", f"Only {row.creator} may run {row.id} again")
            machine, data = self.execs.supervisor.machine, None
            if changes.data is not None:
                data = data_named(changes.data, base.data_roots(caller), self._find(caller))
            spec, shown = to_repeat(row, self.execs.paths(row), changes, data, machine.memory)
            _check_possible(spec, machine, allow_cpu=True)
            targets = targets_of(row, base.settings.paths)
            try:
                made = self._once_more(caller, row, spec, shown, data, targets, lambda connection, exec_id: (
                    experiment_runs.repeat(connection, row.id, exec_id, caller.name)))
            except BundleLost:
                raise Invalid("again.files_gone", f"The submitted code of {row.id} is no longer stored. Submit it "
                                                  "again") from None
            record.about.append(made.id)
        if targets is not None:
            self.forwarding.add(made.id)
        base.wake()
        return made

    def _once_more(  # noqa: PLR0917
        self, caller: Caller, row: ExecRow, spec: Workload, shown: str, data: SubmittedData | None = None,
        targets: Targets | None = None, bind: Callable[[Connection, str], None] = lambda _connection, _exec_id: None,
    ) -> ExecRow:
        """Make an exec with the stored code of another one, and with its data sources unless `data` replaces them.
        Raises OverQuota, StorageFailed, BundleLost."""
        base = self.execs.base
        size = on_disk(base.settings.paths.bundle(str(spec.program.bundle)))
        check_room(base.settings.paths, base.settings.quotas, size)
        if data is not None:
            checked = _Checked(spec, shown, data.shown or None, self.connections.sealed(data.secrets))
        else:
            source = None if row.data_source is None else json.loads(row.data_source)
            checked = _Checked(spec, shown, source, base.database.read(lambda c: exec_secrets.of(c, row.id)))
        return self._accept(caller, None, size, replace(checked, targets=targets), None, bind)

    def _find(self, caller: Caller) -> Find:
        """Return the function that finds the connections of a user."""
        return partial(self.connections.find, user=caller.name, admin=caller.admin)

    def keep(
        self, caller: Caller, request: SubmissionRequest, folder: Path, store: Callable[[Connection, Template], T]
    ) -> T:
        """Check a submission without a key, and store its code. `store` runs in the transaction in which the code is
        known to be stored, and must name the bundle in a row. `folder` is a new folder. Raises the errors of `submit`,
        and Invalid for what this server can never run, also without `strict`."""
        paths, limits = self.execs.base.settings.paths, self.execs.base.settings.limits
        checked = self._checked(caller, replace(request, upload=ReceivedUpload()))
        if checked.lack is not None:
            raise Invalid("submission.framework", checked.lack)
        check_room(paths, self.execs.base.settings.quotas, _size(request.upload))
        # Its execs wait for their turn, but bytes do not become fewer by waiting.
        self.execs.base.database.read(lambda c: self._check_user(c, caller, _size(request.upload), bytes_only=True))
        if checked.roots is not None:
            create(checked.new, checked.roots)
        try:
            folder.mkdir(mode=0o700, parents=True)
            # As if elastic: the path of a program that is not Python depends on the exec.
            program = place(request.upload, checked.spec.program, folder, limits, elastic=True)
            if (folder / (program.model_dir or "") / CONFIG).is_dir():
                raise Invalid("submission.files", f"the upload has a folder {CONFIG}; the server writes a file there")
            program = replace(program, bundle=bundles.keep_durably(paths, folder))
        except OSError as problem:
            raise StorageFailed.from_os(problem) from None
        template = Template(replace(checked.spec, program=program), checked.shown_args, checked.data_source,
                            checked.sealed, self._sealed(checked.targets))

        def work(connection: Connection) -> T:
            if not paths.bundle(str(program.bundle)).is_dir():
                raise BundleLost
            return store(connection, template)

        try:
            while True:
                try:
                    return self.execs.base.database.write(work)
                except BundleLost:
                    bundles.keep_durably(paths, folder)
        except Exception:
            with suppress(OSError, SQLAlchemyError):  # else the next server removes it
                bundles.drop(paths, self.execs.base.database, {str(program.bundle)})
            raise

    def template_of_exec(self, caller: Caller, exec_id: str, arguments: Sequence[str] | None) -> Template:
        """Return the submission of an exec as a template, with other words of its program, or with its own. Raises
        NotFound (`exec.not_found`), Denied (`exec.of_another_user`), Invalid (`again.*`, `submission.*`)."""
        row = self.execs.find(caller, exec_id)
        if row.creator != caller.name:
            raise AccessDenied("exec.of_another_user", f"Only {row.creator} may run {row.id} again")
        machine, base = self.execs.supervisor.machine, self.execs.base
        spec, shown = to_repeat(row, self.execs.paths(row), Changes(arguments=arguments), None, machine.memory)
        _check_possible(spec, machine, allow_cpu=True)
        targets = targets_of(row, base.settings.paths)
        return Template(
            replace(spec, repeats=None), shown, None if row.data_source is None else json.loads(row.data_source),
            base.database.read(lambda c: exec_secrets.of(c, row.id)), self._sealed(targets))

    def template_of_kept(self, caller: Caller, request: SubmissionRequest, code: Program) -> Template:
        """Return a submission whose code is stored already as a template; see `check_kept`. Raises its errors."""
        checked = self._kept(caller, request, code)
        return Template(checked.spec, checked.shown_args, checked.data_source, checked.sealed,
                        self._sealed(checked.targets))

    def store_template(
        self, caller: Caller, template: Template, store: Callable[[Connection, Template], T]
    ) -> T:
        """Run `store` in a transaction in which the code of a template is known to be stored. It must name the bundle
        in a row. Raises Invalid (`again.files_gone`, `submission.files`), OverQuota, StorageFailed."""
        base, program = self.execs.base, template.spec.program
        folder = base.settings.paths.bundle(str(program.bundle))
        if (folder / (program.model_dir or "") / CONFIG).is_dir():
            raise Invalid("submission.files", f"the code has a folder {CONFIG}; the server writes a file there")
        size = on_disk(folder)
        check_room(base.settings.paths, base.settings.quotas, size)
        base.database.read(lambda c: self._check_user(c, caller, size, bytes_only=True))

        def work(connection: Connection) -> T:
            if not folder.is_dir():
                raise Invalid("again.files_gone", "The code is no longer stored. Submit it again")
            return store(connection, template)

        return base.database.write(work)

    def _sealed(self, targets: Targets | None) -> str | None:
        return None if targets is None else self.vault.seal_text(json.dumps(targets.to_json()))

    def again(
        self, caller: Caller, template: Template, spec: Workload, bind: Callable[[Connection, str], None]
    ) -> ExecRow:
        """Submit an exec of a template. `spec` is its workload with other words. `bind` runs in the transaction that
        makes the exec, and gets its id.

        Raises OverQuota, StorageFailed, BundleLost, and the errors of `bind`.
        """
        base = self.execs.base
        with base.recorded(caller, "exec.submit", spec.parent or "") as record:
            size = on_disk(base.settings.paths.bundle(str(spec.program.bundle)))
            check_room(base.settings.paths, base.settings.quotas, size)
            targets = template.targets and Targets.from_json(json.loads(self.vault.open_text(template.targets)))
            checked = _Checked(spec, template.args, template.data_source, template.sealed, targets or None)
            row = self._accept(caller, None, size, checked, None, bind)
            record.about.append(row.id)
        if checked.targets is not None:
            self.forwarding.add(row.id)
        base.wake()
        return row

    def check_kept(self, caller: Caller, request: SubmissionRequest, code: Program) -> Workload:
        """Check a submission whose code is stored already: `code` names its bundle and the uploaded folder. Return its
        workload, without id. Raises the errors of `submit` that need no upload, and BundleLost."""
        return self._kept(caller, request, code).spec

    def submit_kept(
        self, caller: Caller, request: SubmissionRequest, code: Program, bind: Callable[[Connection, str], None]
    ) -> Submitted:
        """Submit an exec whose code is stored already; see `check_kept`. `bind` runs in the transaction that makes the
        exec, and gets its id. Raises the errors of `submit` and of `bind`, and BundleLost."""
        base = self.execs.base
        with base.recorded(caller, "exec.submit") as record:
            checked = self._kept(caller, request, code)
            size = on_disk(base.settings.paths.bundle(str(code.bundle)))
            check_room(base.settings.paths, base.settings.quotas, size)
            created = create(checked.new, checked.roots) if checked.roots is not None else []
            row = self._accept(caller, None, size, checked, None, bind)
            record.about.append(row.id)
        for note in created:
            launcher_log.note(self.execs.paths(row).launcher_log, "server", note)
        if checked.targets is not None:
            self.forwarding.add(row.id)
        SUBMISSIONS.labels("accepted").inc()
        base.wake()
        return Submitted(row, [*created, *checked.notes, *_warnings(row)])

    def _kept(self, caller: Caller, request: SubmissionRequest, code: Program) -> _Checked:
        """Return a checked submission whose program is found in stored code."""
        checked = self._checked(caller, request)
        folder = self.execs.base.settings.paths.bundle(str(code.bundle))
        asked = replace(checked.spec.program, model_dir=checked.spec.program.model_dir or code.model_dir)
        try:
            program = replace(located(asked, folder), bundle=code.bundle)
        except FileNotFoundError:
            raise BundleLost from None
        except OSError as problem:
            raise StorageFailed.from_os(problem) from None
        return replace(checked, spec=replace(checked.spec, program=program))

    def _submitted_once(self, caller: Caller, request: SubmissionRequest) -> Submitted:
        keyed = None
        if request.key is not None:
            keyed = Keyed(caller.name, request.key, digest(request.args, request.sig_name, request.upload))
        with self.keys.claimed(keyed) as row:
            return self._submitted(caller, request, keyed) if row is None else Submitted(row, _warnings(row))

    def _submitted(self, caller: Caller, request: SubmissionRequest, keyed: Keyed | None) -> Submitted:
        checked = self._checked(caller, request)
        if checked.staged is not None:
            request.upload.staged = checked.staged
            check_room(self.execs.base.settings.paths, self.execs.base.settings.quotas, _size(request.upload))
        created = create(checked.new, checked.roots) if checked.roots is not None and checked.lack is None else []
        row = self._accept(caller, request.upload, _size(request.upload), checked, keyed)
        for note in created:
            launcher_log.note(self.execs.paths(row).launcher_log, "server", note)
        if checked.targets is not None:
            self.forwarding.add(row.id)
        folders = self.execs.paths(row).data_folders(row.workload)
        unjoined = [_NOT_JOINED] if joined(folders) is None else []
        return Submitted(row, [*created, *checked.notes, *unjoined, *_warnings(row)])

    def _checked(self, caller: Caller, request: SubmissionRequest) -> _Checked:
        """Return a submission without mistakes. Raises the errors of `submit` that need no file."""
        asked = self._read(caller, request)
        lack = unbuilt(asked.line)
        if lack is not None and request.strict:
            raise lack
        creates = not request.strict or asked.line.flag("--create-data-path")
        roots = replace(self.execs.base.data_roots(caller), create=creates)
        data = data_of(asked, roots, self._find(caller))
        machine = self.execs.supervisor.machine
        spec = check(asked, caller.name, data, self.vault.seal_text, machine.memory)
        if spec.scheduling.user != caller.name:
            caller.check_admin("submit for other users (--submit-user)")
        if request.strict:
            hardware_keys.check_keys(asked.hardware)
            _check_possible(spec, machine, asked.line.flag("--allow-cpu"))
        targets = forwarding.targets(asked.line)
        return _Checked(
            replace(spec, sig_name=request.sig_name or None), asked.shown, data.shown or None,
            self.connections.sealed(data.secrets), targets if lack is None else None,
            None if lack is None else str(lack), tuple(data.new), roots,
            self._staged(asked.staged),
            (*data.notes, *hardware_keys.remarks(asked.hardware),
             *(needs.remarks(spec.resources, machine) if request.strict else ())),
        )

    def _read(self, caller: Caller, request: SubmissionRequest) -> Asked:
        """Return the words of a submission, with the hardware specification that it names. Raises Invalid."""
        asked = words.read(request.args, request.upload.data)
        name = asked.hardware.get(wire.NAME)
        if isinstance(name, str) and "nodes" not in asked.hardware:
            try:
                asked.hardware = dict(self.hardware(caller, name))
            except BackendError as problem:
                raise Invalid("submission.hardware", f"hardwareSpec: {problem}") from None
        return asked

    def _staged(self, name: str | None) -> Path | None:
        """Return a staged folder. Raises Invalid unless the server's own user is the only one."""
        settings = self.execs.base.settings
        if name is not None and not settings.embedded:
            raise Invalid("submission.files", f"only the local backend of a user accepts '{wire.STAGED_FOLDER}'")
        return None if name is None else settings.paths.staging / name

    def _accept(  # noqa: PLR0917
        self, caller: Caller, upload: ReceivedUpload | None, size: int, checked: _Checked, keyed: Keyed | None,
        bind: Callable[[Connection, str], None] = lambda _connection, _exec_id: None,
    ) -> ExecRow:
        """Store a checked submission of `size` bytes: its files, and its row in one transaction with the check of the
        quota."""
        settings = self.execs.base.settings
        row = accept(
            checked.spec, upload, shown_args=checked.shown_args, data_source=checked.data_source,
            sealed=checked.sealed, targets=checked.targets, home=settings.paths, database=self.execs.base.database,
            limits=settings.limits, allow=lambda c: self._check_user(c, caller, size), keyed=keyed, lack=checked.lack,
            bind=bind,
        )
        self.sizes.took(row.id, size)
        return row

    def _check_user(self, connection: Connection, caller: Caller, size: int, bytes_only: bool = False) -> None:
        """Raise OverQuota when the user may have no further exec of this size; with `bytes_only`, of any number."""
        quotas = self.execs.base.settings.quotas
        if bytes_only:
            quotas = replace(quotas, active_execs=None, stored_execs=None)
        if quotas.limit_users:
            shared = self.sizes.of_user(caller.name) + team_objects.bytes_of(connection, caller.name)
            check_user(connection, caller.name, quotas, size=self.sizes.of, shared=shared, adding=size)


def _check_possible(spec: Workload, machine: Machine, allow_cpu: bool) -> None:
    """Raise Invalid for a job that can never run on this machine as it asks."""
    never = needs.refusal(spec.resources, machine, spec.scheduling.user, allow_cpu)
    if never is not None:
        raise Invalid("submission.never_schedulable", never)


def _warnings(row: ExecRow) -> list[str]:
    return [_WRITTEN_OUT] if MASK in (row.data_source or "") else []


def _size(upload: ReceivedUpload) -> int:
    staged = 0 if upload.staged is None else on_disk(upload.staged)
    return staged + sum(path.stat().st_size for _, path in upload.files)


def _count(problem: BackendError) -> None:
    SUBMISSIONS.labels("failed" if problem.is_failure else "refused").inc()
