"""From a program and a description of parameters to one request that starts a search."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from dlicmd.contract import wire
from dlicmd.contract.argv import join_args
from dlicmd.contract.slips import meant
from dlicmd.sdk import hints
from dlicmd.sdk.errors import ConnectionLost, ServerError, UsageProblem
from dlicmd.sdk.exec_calls import ExecCalls
from dlicmd.sdk.messages import Progress, debug, silent, warn
from dlicmd.sdk.run import find_program, run_plan
from dlicmd.sdk.search_calls import SearchCalls
from dlicmd.sdk.search_space import Short, definition
from dlicmd.sdk.submission import Submission, SubmitOptions
from dlicmd.sdk.submit import Upload, prepared
from dlicmd.sdk.transport import Answer, Multipart

#: The place of a parameter in a word of the program.
_PLACE = re.compile(r"\{([A-Za-z_]\w*)\}")


class StoredCode(NamedTuple):
    """Code that the server has already, for `Client.search`: that of a job, or of a model definition.

    Attributes:
        job: Id of a job.
        definition: Name of a model definition.
        version: Version of the model definition. None: the newest one.

    Examples:
        >>> client.search(StoredCode("local-7"), {"lr": "log:1e-4..1e-1"}, "loss")
    """

    job: str | None = None
    definition: str | None = None
    version: int | None = None

    def search(self, short: Short, words: Sequence[str] | None, workers: int | None = None) -> SearchUpload:
        """Return the search of this code. `words` are the arguments of the program; None: those of the stored code.
        Raises UsageProblem."""
        if (self.job is None) == (self.definition is None):
            raise UsageProblem(hints.either("give --hpo-job or --hpo-definition, not both",
                                            "StoredCode needs a job or a definition, and not both"))
        if self.job is not None and (self.version, workers) != (None, None):
            wrong = "the version" if self.version is not None else "the number of workers"
            raise UsageProblem(f"the code of a job is run as the job was; leave out {wrong}")
        _mind_places(words or (), short)
        spec: dict[str, Any] = {"exec": self.job} if self.job is not None else {"definition": self.definition}
        more = {"version": self.version, wire.ARGS: None if words is None else join_args(words), "numWorker": workers}
        spec |= {name: value for name, value in more.items() if value is not None}
        return SearchUpload({**definition(short, ""), wire.MODEL_SPEC: spec}, Upload([], [], {}, [], strict=True))


class SearchUpload(NamedTuple):
    """The content of a request that starts a search: its definition, and the files of its program."""

    definition: dict[str, Any]
    upload: Upload

    def body(self, progress: Callable[[int], None] | None = None) -> Multipart:
        """Return the body that `Client.start_search` takes."""
        return Multipart(self.upload.parts, [(wire.PART_DATA, json.dumps(self.definition))], progress)


@contextmanager
def described(
    submission: Submission, short: Short, ask: Callable[[], frozenset[str]], progress: Progress = silent,
    check: Callable[[str, str | None], None] | None = None,
) -> Iterator[SearchUpload]:
    """Yield the search, with open files. `submission` is the job of each experiment; for the other arguments see
    `submit.prepared`. Raises UsageProblem, PackageError."""
    definition(short, "")  # before any file is read
    _mind_places(submission.program or (), short)
    if submission.sources:
        raise UsageProblem("the definition of a search has no place for data sources; name the data with "
                           + hints.either("--cs-datastore-meta type=fs,data_path=PATH", "cs-datastore-meta"))
    with prepared(submission, ask, progress, check) as upload:
        yield SearchUpload(definition(short, join_args(upload.sent)), upload)


def _mind_places(words: Sequence[str], short: Short) -> None:
    """Warn about words of the program that look like the place of a parameter, and name none. Raises UsageProblem for a
    name that resembles that of a parameter."""
    known = [name for name in (*short.params, (short.resource or "").rpartition(":")[0]) if name]
    for odd in (name for word in words for name in _PLACE.findall(word) if name not in known):
        if near := meant(odd.strip(), known):
            raise UsageProblem(f"{{{odd}}} in the words of the program: the search has no parameter {odd}; write "
                               f"{{{near}}}, or another one of its parameters: {', '.join(known)}")
        warn(f"{{{odd}}} in the words of the program stays as it is: the search has no parameter {odd}; its "
             f"parameters are {', '.join(known)}")


def send(client: SearchCalls, search: SearchUpload, progress: Progress = silent) -> Answer:
    """Send a search, and return the answer."""
    try:
        with progress("uploading", search.upload.size) as shown:
            return client.start_search(search.body(shown), strict=search.upload.strict)
    except ConnectionLost as problem:
        listing = hints.either(hints.command("--hpo-get-all"), "Client.searches()")
        raise ConnectionLost(f"{problem}; to check whether the server accepted the search: {listing}") from problem


def name_in(answer: Answer) -> str:
    """Return the name of a search in the answer to its start: an object, a text in JSON, or a plain text. Raises
    ServerError."""
    text = answer.text().strip()
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = text
    name = found.get("uid") or found.get(wire.HPO_NAME) if isinstance(found, dict) else found
    if not isinstance(name, str) or not name.strip() or not name.isprintable():
        raise ServerError("the server's answer to the search contains no name", 200)
    return name.strip()


def start(  # noqa: PLR0917 - the parameters of Client.search
    client: SearchCalls, server: ExecCalls, usual: Callable[[], int], program: str | os.PathLike[str] | StoredCode,
    params: Mapping[str, Any], metric: str | Sequence[str], arguments: Sequence[object] | None = None, *,
    trials: int | None = None, parallel: int | None = None, minutes: int | None = None, algorithm: str | None = None,
    resource: str | None = None, resume: bool = False, seed: int | None = None, name: str | None = None,
    workers: int | None = None, kind: str | None = None, options: SubmitOptions | None = None,
) -> str:
    """Start a search, and return its name: see `Client.search`. `client` and `server` are the same client. `usual`: see
    `run_plan`."""
    if isinstance(arguments, str | bytes):
        raise UsageProblem("arguments must be a list, such as ['--epochs', '2'], not a text")
    metrics = [metric] if isinstance(metric, str) else list(metric)
    short = Short(params, metrics, trials, parallel, minutes, algorithm, resource, resume, seed, name)
    words = None if arguments is None else [str(one) for one in arguments]
    if isinstance(program, StoredCode):
        if kind is not None or options:
            raise UsageProblem("stored code is run as it is stored; leave out kind and options")
        return name_in(send(client, program.search(short, words, workers)))
    submission = job_of(os.fspath(program), kind, workers, usual, {**(options or {})}, words or [])
    with described(submission, short, server.extensions, check=server.check_exec) as found:
        return name_in(send(client, found))


def job_of(  # noqa: PLR0917
    program: str, kind: str | None, workers: int | None, usual: Callable[[], int], options: SubmitOptions,
    words: Sequence[str],
) -> Submission:
    """Return the job of each experiment. Raises UsageProblem."""
    plan = run_plan(find_program(program, kind, words), workers, usual)
    debug(plan.sentence)
    if plan.program.command or not plan.program.main:
        raise UsageProblem(f"{program} is not a Python program; a search runs a Python program for each experiment")
    given: SubmitOptions = {"model-dir": plan.program.folder or Path(), "model-main": plan.program.main, **options}
    if plan.workers is not None:
        given["numWorker"] = plan.workers
    return Submission.of(plan.framework, given, list(words))
