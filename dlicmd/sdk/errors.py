"""The errors of the client.

DlicmdError
├── UsageProblem           an argument, option or environment variable is wrong
├── PackageError           the files of a submission cannot be packed
├── TokenFileError         the token file ~/.dlicmd, or the keyring, cannot be used
├── ServerError            the server answered with an error
│   ├── Denied             the user is not logged on, or is not allowed to do this
│   ├── SubmissionRefused  the server refuses a submission, search, preview or resource plan
│   │   └── NeverSchedulable  the job can never run on the server
│   ├── QueryRefused       the server refuses the query of a list
│   ├── NoSuchExec         no exec has this id
│   ├── NoSuchApplication  no application has this id
│   ├── NoSuchSearch       no search has this name
│   ├── NoSuchModel        no model has this name
│   └── NoSuchObject       no resource plan, algorithm or object of the cluster has this name
├── NoExecYet              `last` names no exec, because the user has none
├── Unreachable            no answer from the server
│   ├── ConnectFailed      the request was not sent
│   ├── ConnectionLost     the request may have been sent
│   ├── BackendNotStarted  the local backend could not be started
│   └── BackendSuspended   the process of the local backend is suspended
├── WaitTimeout            the exec had not ended in time
├── JobFailed              the job ended without success
├── ModelFailed            the kernels of a model cannot start, or the model was stopped
└── ResultError            the downloaded result is damaged, or cannot be stored

The text of an error is one line for the user and names the remedy; that of JobFailed also has the last lines that the
program wrote. The class of an error decides the exit code. Errors can be pickled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from dlicmd.contract import states
from dlicmd.contract.exits import Exit
from dlicmd.sdk import hints


class DlicmdError(Exception):
    """The base class of all errors of the client.

    Attributes:
        exit_code: Exit code of `dlicmd` after this error. Each class has its own value.
        code: Stable code for programs, such as `exec.not_found`. `docs/client.md` lists all codes.
    """

    exit_code: ClassVar[Exit] = Exit.FAILED
    #: See dlicmd.contract.error_codes.
    code: str = "client.failed"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the text and the attributes. Subclasses have arguments of their own, which the text replaces."""
        return _restored, (type(self), self.args), self.__dict__


def _restored(kind: type[DlicmdError], args: tuple[Any, ...]) -> DlicmdError:
    """Return a pickled error, without its attributes."""
    error = kind.__new__(kind)
    error.args = args
    return error


class UsageProblem(DlicmdError):
    """An argument, an option or an environment variable is wrong."""

    exit_code = Exit.USAGE
    code = "client.usage"


class PackageError(DlicmdError):
    """The files of a submission cannot be packed, for example because a file cannot be read. Nothing was sent."""

    code = "package.failed"


class TokenFileError(DlicmdError):
    """The token file `~/.dlicmd`, or the keyring, cannot be used safely. Only the commands raise this error."""

    code = "token.file"


class ServerError(DlicmdError):
    """The server answered with an error, or with something that is not the expected answer.

    Args:
        message: Text for the user, in one line.
        status: HTTP status of the answer.
        code: Stable code that the server sent. Without one, the error has the code of its class.
        body: Content of the answer.

    Attributes:
        status: HTTP status of the answer. An unexpected answer to a successful call has a status such as 200.
        code: Stable code of the server, or of the class if the server sends none.
        body: Content of the answer as text. Empty if the server did not send the error.
    """

    code = "server.refused"

    def __init__(self, message: str, status: int, code: str = "", body: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.code = code or type(self).code
        self.body = body


class Denied(ServerError):
    """The user is not logged on (HTTP 401), or is not allowed to do this (HTTP 403)."""

    exit_code = Exit.DENIED
    code = "server.denied"


class SubmissionRefused(ServerError):
    """The server refuses a submission, search, preview or resource plan (HTTP 400).

    The exit code is that of a wrong command line.
    """

    exit_code = Exit.USAGE
    code = "submission.refused"


class NeverSchedulable(SubmissionRefused):
    """The server refuses a job that can never run there: it requests more than the machine has, or GPUs where there are
    none."""

    exit_code = Exit.NEVER_SCHEDULABLE
    code = "submission.never_schedulable"


class QueryRefused(ServerError):
    """The server refuses the query of a list (HTTP 400).

    The exit code is that of a wrong command line.
    """

    exit_code = Exit.USAGE
    code = "query.refused"


class NoSuchExec(ServerError):
    """No exec has this id, or the user may not see the exec.

    Args:
        exec_id: The unknown id.
        status: HTTP status of the answer, 400 or 404.
        body: Content of the answer.
        nor_search: Whether the id could have been the name of a search, too.
        is_search: Whether the id is the name of a search.
    """

    exit_code = Exit.NO_SUCH_ID
    code = "exec.not_found"

    def __init__(
        self, exec_id: str, status: int = 404, body: str = "", nor_search: bool = False, is_search: bool = False
    ) -> None:
        listed, what = f"{hints.all_execs()} lists your jobs", hints.job()
        if is_search:
            listed = f"a search has this name: {hints.command('--hpo-get', exec_id)}"
        elif nor_search:
            listed += f", {hints.command('--hpo-get-all')} your searches"
            what += " and no search"
        super().__init__(f"there is no {what} '{exec_id}'; {listed}", status, body=body)


class NoSuchApplication(ServerError):
    """No application of the scheduler has this id.

    Args:
        app_id: The unknown id.
        status: HTTP status of the answer, 400 or 404.
        body: Content of the answer.
    """

    exit_code = Exit.NO_SUCH_ID
    code = "application.not_found"

    def __init__(self, app_id: str, status: int = 404, body: str = "") -> None:
        listed = hints.either(f"{hints.command('--app-get-all')} and --app-history-get-all list them",
                              "Client.engine_applications() lists them")
        super().__init__(f"there is no application '{app_id}'; {listed}", status, body=body)


class NoSuchSearch(ServerError):
    """No search for hyper-parameters has this name.

    Args:
        name: The unknown name.
        status: HTTP status of the answer, 400 or 404.
        body: Content of the answer.
    """

    exit_code = Exit.NO_SUCH_ID
    code = "search.not_found"

    def __init__(self, name: str, status: int = 404, body: str = "") -> None:
        listing = hints.either(hints.command("--hpo-get-all"), "Client.searches()")
        super().__init__(f"there is no search '{name}'; {listing} lists your searches", status, body=body)


class NoSuchModel(ServerError):
    """No model of the inference service has this name, or the user may not use it.

    Args:
        name: The unknown name.
        status: HTTP status of the answer.

    Attributes:
        name: The unknown name.
    """

    exit_code = Exit.NO_SUCH_ID
    code = "model.not_found"

    def __init__(self, name: str, status: int = 404) -> None:
        listing = hints.either("dlim model list", "Client.models()")
        super().__init__(f"there is no model '{name}'; {listing} lists the models", status)
        self.name = name


class NoSuchObject(ServerError):
    """No resource plan, algorithm or object of the cluster has this name."""

    exit_code = Exit.NO_SUCH_ID
    code = "object.not_found"


class NoExecYet(DlicmdError):
    """The user gave `last`, but has no exec."""

    exit_code = Exit.NO_SUCH_ID
    code = "exec.none_yet"

    def __init__(self) -> None:
        submitting = hints.either(hints.command("--exec-start"), "Client.run()")
        super().__init__(f"'last' names no {hints.job()}, because you have none yet; {submitting} submits one")


class Unreachable(DlicmdError):
    """No complete answer arrived from the server."""

    exit_code = Exit.UNREACHABLE
    code = "server.unreachable"


class ConnectFailed(Unreachable):
    """No connection was made, so the request was certainly not sent.

    Args:
        why: Text without the remedy.
        cure: The remedy; empty if there is none.

    Attributes:
        why: Text without the remedy.
    """

    def __init__(self, why: str, cure: str = "") -> None:
        super().__init__(f"{why}; {cure}" if cure else why)
        self.why = why


class ConnectionLost(Unreachable):
    """The connection broke after the request may have been sent."""


class BackendNotStarted(Unreachable):
    """The local backend could not be started."""

    code = "backend.not_started"


class BackendSuspended(Unreachable):
    """The process of the local backend is suspended, so it does not answer.

    Args:
        pid: Process id of the backend.
    """

    code = "backend.suspended"

    def __init__(self, pid: int) -> None:
        super().__init__(f"the local backend (process {pid}) is suspended; to continue it: kill -CONT {pid}")


class WaitTimeout(DlicmdError):
    """The exec had not ended when the time to wait was over. The exec continues."""

    exit_code = Exit.TIMED_OUT
    code = "exec.wait_timeout"


class JobFailed(DlicmdError):
    """The job ended without success: its state is `ERROR` or `KILLED`, or it can never be scheduled.

    Args:
        exec_id: Id of the job.
        state: State of the job.
        why: Reason in one line, or an empty text.
        lines: Last lines of the program's standard error, or the traceback of a function.

    Attributes:
        exec_id: Id of the job.
        state: State of the job.
        lines: Last lines of the program's standard error, or the traceback of a function. The text of the error ends
            with them.
    """

    exit_code = Exit.JOB_ERROR
    code = "job.failed"

    def __init__(self, exec_id: str, state: str, why: str = "", lines: Sequence[str] = ()) -> None:
        first = f"{exec_id} ended {state}" if states.is_terminal(state) else f"{exec_id} is {state}"
        super().__init__("\n  ".join([f"{first}: {why}" if why else first, *lines]))
        self.exec_id, self.state, self.lines = exec_id, state, list(lines)


class ModelFailed(DlicmdError):
    """A model does not serve: its kernels cannot start, or it was stopped.

    Args:
        name: Name of the model.
        state: State of the model.
        why: Reason in one line, or an empty text.

    Attributes:
        name: Name of the model.
        state: State of the model.
    """

    exit_code = Exit.JOB_ERROR
    code = "model.failed"

    def __init__(self, name: str, state: str, why: str = "") -> None:
        super().__init__(f"the model '{name}' is {state}" + (f": {why}" if why else ""))
        self.name, self.state = name, state


class ResultError(DlicmdError):
    """The downloaded result is damaged, or cannot be stored."""

    code = "result.failed"
