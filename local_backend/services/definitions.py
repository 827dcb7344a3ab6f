"""Model definitions: code, framework, execution command and environment, kept with their versions for a team."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from sqlalchemy import Connection

from dlicmd.contract import wire
from dlicmd.contract.argv import join_args, split_args
from dlicmd.contract.program_kinds import FRAMEWORKS
from dlicmd.contract.secret import looks_secret
from dlicmd.contract.verbs import SINGLE
from local_backend.errors import Conflict, Invalid, StorageFailed
from local_backend.runtime import bundles
from local_backend.runtime.bundles import BundleLost
from local_backend.runtime.sizes import on_disk
from local_backend.services.access import Caller
from local_backend.services.base import Base
from local_backend.services.object_words import in_object_words
from local_backend.services.submissions import SubmissionRequest, SubmissionService, Template
from local_backend.services.submitted_code import CodeReader, ListedFile
from local_backend.services.team import TeamObjects
from local_backend.store import team_objects
from local_backend.store.team_objects import DEFINITION, NewVersion, TeamObjectRow
from local_backend.submit.kinds import framework_of
from local_backend.submit.left_out import without_ignored
from local_backend.submit.receive import ReceivedUpload
from local_backend.workload import Program

#: Suffixes of archives, which uploads may have instead of files.
_PACKED = (".zip", ".tar", ".tar.gz", ".tgz", wire.ARCHIVE_SUFFIX)
_MOST_VARIABLES, _LONGEST_COMMAND = 200, 20_000
#: The most files that a list shows.
MOST_FILES = 2000
#: Framework of a draft that the server finds in the code.
AUTO = "auto"


@dataclass(frozen=True)
class DefinitionDraft:
    """A model definition as a client sent it. `shared` None leaves the list of users."""

    name: str
    description: str = ""
    #: Framework with its name in `--exec-start`, or AUTO.
    framework: str = "PyTorch"
    #: Execution command: a Python file and its arguments, or another command. Empty: the program is found by its name.
    command: str = ""
    conda_env: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    shared: Sequence[str] | bool | None = None


@dataclass(frozen=True)
class TrainingDefinition:
    """A version of a model definition."""

    row: TeamObjectRow

    @property
    def framework(self) -> str:
        """Framework, as `--exec-start` names it."""
        return str(self.row.content["framework"])

    @property
    def command(self) -> str:
        """Execution command; empty if the program is found by its name."""
        return str(self.row.content["command"])

    @property
    def program(self) -> str | None:
        """The file that runs; None for a command, and for versions that do not know it."""
        found: str | None = self.row.content.get("main")
        return found

    @property
    def shown_command(self) -> str:
        """The execution command; without one, the program that the server found in the code."""
        return self.command or self.program or ""

    @property
    def conda_env(self) -> str | None:
        """Name or path of the conda environment, None for that of the server."""
        found: str | None = self.row.content["condaEnv"]
        return found

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of the program."""
        return dict(self.row.content["environment"])

    @property
    def code(self) -> Program:
        """Where the stored code is: its bundle, and the uploaded folder in it."""
        return Program(self.framework, self.row.content["modelDir"], bundle=self.row.bundle)


@dataclass(frozen=True)
class DefinitionService:
    """Operations on model definitions."""

    base: Base
    submissions: SubmissionService

    @property
    def objects(self) -> TeamObjects:
        """The operations that all shared objects have."""
        return TeamObjects(self.base.database, DEFINITION)

    def all(self, caller: Caller) -> list[TrainingDefinition]:
        """Return the model definitions that the caller may use, at their newest versions."""
        return [TrainingDefinition(row) for row in self.objects.visible(caller)]

    def find(self, caller: Caller, name: str, version: int | None = None) -> TrainingDefinition:
        """Return a model definition by NAME or OWNER/NAME. Raises NotFound (`definition.not_found`)."""
        return TrainingDefinition(self.objects.find(caller, name, version))

    def versions(self, caller: Caller, name: str) -> list[TrainingDefinition]:
        """Return all versions of a model definition, newest first. Raises NotFound (`definition.not_found`)."""
        return [TrainingDefinition(row) for row in self.objects.versions(caller, name)]

    def code(self, found: TrainingDefinition) -> tuple[Sequence[ListedFile], bool]:
        """Return the files of a version, at most `MOST_FILES`, and whether these are all. Code that is no longer stored
        has no files."""
        folder, reader, files = self.base.settings.paths.bundle(str(found.row.bundle)), CodeReader(), []
        try:
            names = [name for name, mode in bundles.entries(folder) if mode is not None]
            for name in names[:MOST_FILES]:
                with (folder / name).open("rb") as file:
                    files.append(reader.read(os.fsencode(name).decode("utf-8", "replace"), file))
        except (OSError, BundleLost):
            return [], True
        return files, len(names) <= MOST_FILES

    def save(self, caller: Caller, draft: DefinitionDraft, upload: ReceivedUpload, folder: Path) -> TrainingDefinition:
        """Store a model definition, or a new version of it. Without uploaded files, the new version has the code of the
        newest one. `folder` is a new folder.

        Raises Invalid (`definition.invalid`, and the errors of a submission), NotFound and Denied for the name of
        another user, OverQuota, StorageFailed.
        """
        with self.base.recorded(caller, "definition.save", draft.name) as record:
            row = self.objects.mine(caller, draft.name)
            request = SubmissionRequest(join_args(self._words(draft)), as_archive(upload), strict=True)
            try:
                if upload.files:
                    made = self.submissions.keep(caller, request, folder, lambda connection, template: self._store(
                        connection, caller, draft, template))
                else:
                    made = self._with_code_of(caller, row, draft, request)
            except Invalid as problem:
                raise Invalid(problem.code, in_object_words(str(problem))) from None
            record.about.append(made.label)
        return TrainingDefinition(made)

    def save_sent(
        self, caller: Caller, draft: DefinitionDraft, upload: ReceivedUpload, folder: Path
    ) -> tuple[TrainingDefinition, Sequence[str]]:
        """Store a model definition with the files of a browser. Return it, and the names of the files and folders that
        the rules of the sent folder leave out. Raises as `save`."""
        sent = sent_by_browser(upload)
        return self.save(caller, draft, sent, folder), sent.left_out

    def template(self, caller: Caller, found: TrainingDefinition, command: str, workers: int | None) -> Template:
        """Return the submission of a definition for the experiments of a search, with this execution command; with
        that of the definition, if it is empty. Raises Invalid (`definition.code_gone`, `submission.*`)."""
        more = [] if workers is None else ["--numWorker", str(workers)]
        line = exec_words(found.framework, found.row.name, command or found.command, found.conda_env,
                          found.environment, more)
        request = SubmissionRequest(None, ReceivedUpload(data=json.dumps({wire.ARGV: line})), strict=True)
        try:
            return self.submissions.template_of_kept(caller, request, found.code)
        except BundleLost:
            raise lost(found.row) from None

    def remove(self, caller: Caller, name: str) -> None:
        """Delete a model definition with all versions. Runs keep their code. Raises NotFound (`definition.not_found`),
        Denied (`definition.of_another_user`), Conflict (`definition.in_use`) while an experiment uses it."""
        with self.base.recorded(caller, "definition.delete", name):
            row = self.objects.find(caller, name)
            self.objects.check_owner(caller, row)
            versions = self.objects.versions(caller, row.label)

            def work(connection: Connection) -> None:
                used = self.objects.use_of(connection, caller, row)
                if used is not None:
                    raise Conflict("definition.in_use", used)
                team_objects.remove(connection, row.number)

            self.base.database.write(work)
            bundles.drop(self.base.settings.paths, self.base.database, {str(one.bundle) for one in versions})

    def _with_code_of(
        self, caller: Caller, row: TeamObjectRow | None, draft: DefinitionDraft, request: SubmissionRequest
    ) -> TeamObjectRow:
        if row is None:
            sentence = "code: a new model definition needs code; upload a zip file or a folder"
            raise Invalid("definition.invalid", sentence)
        try:
            spec = self.submissions.check_kept(caller, request, TrainingDefinition(row).code)
        except BundleLost:
            raise lost(row) from None
        new = self._version(draft, spec.program, row.size)
        return self.base.database.write(lambda connection: self.objects.save(
            connection, caller, draft.name, self.objects.checked_shared(draft.shared), new))

    def _store(
        self, connection: Connection, caller: Caller, draft: DefinitionDraft, template: Template
    ) -> TeamObjectRow:
        size = on_disk(self.base.settings.paths.bundle(str(template.spec.program.bundle)))
        return self.objects.save(connection, caller, draft.name, self.objects.checked_shared(draft.shared),
                                 self._version(draft, template.spec.program, size))

    def _version(self, draft: DefinitionDraft, program: Program, size: int) -> NewVersion:
        """Return the version of a draft whose code is stored."""
        framework = draft.framework
        if framework == AUTO:
            framework = framework_of(program, self.base.settings.paths.bundle(str(program.bundle)))
        content = {"framework": framework, "command": draft.command.strip(), "condaEnv": draft.conda_env or None,
                   "environment": dict(draft.environment), "modelDir": program.model_dir,
                   **({} if program.user_cmd is not None else {"main": program.main})}
        return NewVersion(draft.description.strip(), content, program.bundle, size)

    def _words(self, draft: DefinitionDraft) -> list[str]:
        """Return the command line that runs a model definition alone. Raises Invalid."""
        self.objects.checked_text("description", draft.description)
        self.objects.checked_shared(draft.shared)
        if len(draft.environment) > _MOST_VARIABLES:
            raise Invalid("definition.invalid", f"environment: more than {_MOST_VARIABLES} variables")
        for name in draft.environment:
            if looks_secret(name):
                raise Invalid("definition.invalid", f"environment: {name[:80]} looks like a secret. All users that may "
                              f"use the definition can read it; use a connection for the secrets of data")
        framework = FRAMEWORKS[SINGLE] if draft.framework == AUTO else draft.framework
        return exec_words(framework, draft.name.rpartition("/")[2], draft.command, draft.conda_env,
                          draft.environment)


def exec_words(  # noqa: PLR0917
    framework: str, name: str, command: str, conda_env: str | None, environment: Mapping[str, str],
    more: Sequence[str] = (),
) -> list[str]:
    """Return the words of a submission for an execution command. `more` are further options. Raises Invalid."""
    if len(command) > _LONGEST_COMMAND:
        raise Invalid("submission.too_long", f"command: more than {_LONGEST_COMMAND} characters")
    words = ["--exec-start", framework, "--appName", name, *more]
    if conda_env:
        words += ["--conda-env-name", conda_env]
    for variable, value in environment.items():
        words += ["--msd-env", f"{variable}={value}"]
    own = split_args(command)
    if own and own[0].rpartition("/")[2] in ("python", "python3") and len(own) > 1 and own[1].endswith(".py"):
        own = own[1:]
    if not own:
        return words
    if own[0].endswith(".py"):
        return [*words, "--model-main", own[0], "--", *own[1:]]
    return [*words, "--user-cmd", "--", *own]


def as_archive(upload: ReceivedUpload) -> ReceivedUpload:
    """Return an upload whose single file is recognized as an archive by its name, also if it is a zip file."""
    if len(upload.files) == 1 and upload.files[0][0].lower().endswith(_PACKED):
        return replace(upload, files=[(f"code{wire.ARCHIVE_SUFFIX}", upload.files[0][1])])
    return upload


def sent_by_browser(upload: ReceivedUpload) -> ReceivedUpload:
    """Return the upload of a form: browsers send an unnamed, empty file for each field without files, and all files of
    a folder with their paths, also those that its ignore file leaves out. Raises Invalid (`submission.files`),
    StorageFailed."""
    files = [(name, path) for name, path in upload.files if name]
    if not any("/" in name for name, _ in files):
        return replace(upload, files=files)
    try:
        return without_ignored(replace(upload, files=files, is_folder=True))
    except OSError as problem:
        raise StorageFailed.from_os(problem) from None


def lost(row: TeamObjectRow) -> Invalid:
    """Return the error for a model definition whose code is gone from the disk, or has changed there."""
    return Invalid("definition.code_gone", f"The code of version {row.version} of the model definition {row.label} is "
                   f"no longer stored; save the definition with its code again")
