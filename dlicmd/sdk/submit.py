"""Submitting a job: from a typed submission to one request, with its files and its data."""

from __future__ import annotations

import json
import os.path
import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from dlicmd.contract import wire
from dlicmd.contract.argv import join_args
from dlicmd.contract.options import BY_NAME, OPTIONS, Local
from dlicmd.sdk import backend, hints, package
from dlicmd.sdk.data import change_meta, change_source, local_path, named_in, names_place, nearer
from dlicmd.sdk.errors import ConnectionLost, DlicmdError, ServerError
from dlicmd.sdk.exec_calls import ExecCalls
from dlicmd.sdk.messages import Progress, info, silent, warn
from dlicmd.sdk.objects import Exec
from dlicmd.sdk.selection import Selection
from dlicmd.sdk.staging import StagedBody, StagedFolder
from dlicmd.sdk.submission import ALLOW_CPU, CREATE, FOLDER, MAIN, META, PREBUILT, Submission
from dlicmd.sdk.transport import FilePart, Multipart

#: A folder for the local backend is compressed and uploaded up to this number of bytes, else staged: that takes fewer
#: writes, and less time than compression.
UPLOADED_UP_TO = 16 * 2**20
#: Options that name a file to upload beside the model.
EXTRA_FILES = ("--conda-env-yaml", "--conda-package")


class Upload(NamedTuple):
    """The content of a submission: the words of `args`, the files, and the `data` part. `paths` are the paths of data,
    if they may refer to this machine. `strict` is that of the submission. `selection` are the files of the model
    folder, and `staged` is their copy for the local backend."""

    sent: list[str]
    parts: list[FilePart]
    data: dict[str, Any]
    paths: list[str]
    strict: bool
    selection: Selection | None = None
    staged: StagedFolder | None = None

    @property
    def size(self) -> int:
        """The number of bytes of the files."""
        return sum(part.size for part in self.parts) + (0 if self.staged is None else self.staged.size)

    def body(self, progress: Callable[[int], None] | None = None) -> Multipart | str | None:
        """Return the body that `Client.start_exec` takes."""
        text = self.data_text
        fields = [] if text is None else [(wire.PART_DATA, text)]
        if self.staged is not None:
            return StagedBody(self.staged, self.parts, fields)
        return Multipart(self.parts, fields, progress) if self.parts else text

    @property
    def data_text(self) -> str | None:
        """The text of the `data` part, or None."""
        return json.dumps(self.data) if self.data else None


def submit(
    client: ExecCalls, submission: Submission, tell: Callable[[Upload], None] | None = None,
    progress: Progress = silent,
) -> Exec:
    """Submit a job, and return the exec in the answer. `tell` is called before the upload."""
    with prepared(submission, client.extensions, progress, client.check_exec, client.is_own) as upload:
        if upload.staged is not None:
            upload.staged.copy()
        if tell is not None:
            tell(upload)
        with nearer(upload.paths):
            found = _send(client, upload, progress)
    if not all(isinstance(found.get(key), str) for key in (wire.ID, wire.APP_ID)):
        raise ServerError("the server's answer to the submission contains no id and appId", 200)
    if isinstance(found.get(wire.WARNING), str):
        warn(f"warning: {hints.as_typed(str(found[wire.WARNING]))}")
    return found


@contextmanager
def prepared(
    submission: Submission, ask: Callable[[], frozenset[str]], progress: Progress = silent,
    check: Callable[[str, str | None], None] | None = None, is_own: bool = False,
) -> Iterator[Upload]:
    """Yield the submission, with open files; `ask` returns the extensions of the server.

    All checks that are possible here precede the first request to the server. Then `check` asks the server, if it has
    the extension for it, whether it refuses the command line or the data. The folder is packed after that. All files
    are packed before anything is sent. A large folder for the local backend of this user (`is_own`) is not packed: the
    caller copies it.
    """
    with ExitStack() as stack:
        parts: list[FilePart] = []
        stack.callback(package.close_all, parts)
        program = _named_files(submission, parts)
        extensions = ask()
        if extensions:
            _mind_the_local_backend(submission)
        upload = _upload(submission, parts, extensions)
        if check is not None and submission.strict and wire.EXT_CHECK in extensions:
            check(join_args(upload.sent), upload.data_text)
        if submission.folder is not None:
            selection = package.selected(submission.folder, program)
            upload = upload._replace(selection=selection)
            stages = is_own and wire.EXT_STAGED in extensions and selection.size > UPLOADED_UP_TO
            if stages and (place := backend.staging()) is not None:
                staged = StagedFolder(place, selection, progress)
                stack.callback(staged.close)
                upload = upload._replace(staged=staged, data={**upload.data, wire.STAGED_FOLDER: staged.name})
            else:
                parts.insert(0, package.pack(selection, progress))
        yield upload


def _upload(submission: Submission, parts: list[FilePart], extensions: frozenset[str]) -> Upload:
    """Return the submission for a server with these extensions."""
    if submission.has(BY_NAME[CREATE]) and wire.EXT_CREATE not in extensions:
        raise DlicmdError(f"this server does not create data paths (it lacks the extension '{wire.EXT_CREATE}'); leave "
                          f"out {hints.option(CREATE)}")
    if submission.has(BY_NAME[ALLOW_CPU]) and wire.EXT_ALLOW_CPU not in extensions:
        raise DlicmdError(f"this server decides itself where a job runs (it lacks the extension "
                          f"'{wire.EXT_ALLOW_CPU}'); leave out {hints.option(ALLOW_CPU)}")
    sources = [dict(source) for source in submission.sources]
    paths = named_in(submission.text(META) or "", sources)
    instead: dict[str, Callable[[str], str]] = {}
    if wire.EXT_LOCAL_PATHS in extensions:
        instead[META] = lambda text: change_meta(text, local_path)
        sources = [change_source(source, local_path) for source in sources]
    else:
        _mind_places(paths, wire.EXT_DATA_UPLOAD in extensions)
        paths = []
    if submission.folder is not None:
        base = package.base_name(submission.folder)
        instead[FOLDER] = lambda _: base
    sent = submission.words(instead)
    data: dict[str, Any] = {wire.DATA_SOURCE: sources} if sources else {}
    if wire.EXT_ARGV in extensions:
        data[wire.ARGV] = sent
    return Upload(sent, parts, data, paths, submission.strict)


def _mind_places(paths: list[str], takes_uploads: bool) -> None:
    """Warn about data paths that seem to refer to this machine, when the server only looks in its own data
    directory."""
    if places := [path for path in paths if names_place(path)]:
        cure = "give the path below that directory"
        if takes_uploads:
            name = os.path.basename(os.path.abspath(os.path.expanduser(places[0])))
            cure += f", or upload the data first: dlicmd data {shlex.quote(places[0])} --to {shlex.quote(name)}"
        warn(f"data path {', '.join(places)}: paths refer to the data folder of the server, not to this machine; "
             f"{cure}")


def _named_files(submission: Submission, parts: list[FilePart]) -> str | None:
    """Check the files that the submission names, and add the single ones to `parts`. Return the path of the program
    within the folder, if there is a folder. Raises UsageProblem, PackageError."""
    main, folder = submission.text(MAIN), submission.text(FOLDER)
    program = None
    if folder is not None:
        checked = package.check_folder(folder)
        program = None if main is None else package.find_program(checked, main)
    elif main is not None:
        parts.append(package.single_file(main, MAIN))
    for option in EXTRA_FILES:
        extra = submission.text(option)
        if extra is not None:
            parts.append(package.single_file(extra, option))
    return program


def _mind_the_local_backend(submission: Submission) -> None:
    """Report once which options have no effect on the local backend. Raise DlicmdError when a strict submission
    requires a prebuilt model."""
    if submission.strict and submission.text(PREBUILT) is not None:
        raise DlicmdError(f"{hints.option(PREBUILT)}: the local backend has no prebuilt models; give your own with "
                          f"{hints.option(MAIN)} or {hints.option(FOLDER)}")
    ignored = [option.name for option in OPTIONS if option.local is Local.IGNORED and submission.has(option)]
    if ignored:
        info(hints.as_typed(f"the local backend ignores {', '.join(map(hints.option, ignored))}"))


def _send(client: ExecCalls, upload: Upload, progress: Progress) -> Exec:
    args = join_args(upload.sent)
    try:
        if not upload.parts or upload.staged is not None:
            return client.start_exec(args, upload.body(), strict=upload.strict)
        with progress("uploading", upload.size) as shown:
            return client.start_exec(args, upload.body(shown), strict=upload.strict)
    except ConnectionLost as problem:
        raise ConnectionLost(f"{problem}; {_in_doubt()}") from None
    except KeyboardInterrupt:
        info(_in_doubt())
        raise


def _in_doubt() -> str:
    return f"to check whether the server accepted the {hints.job()}: {hints.all_execs()}"
