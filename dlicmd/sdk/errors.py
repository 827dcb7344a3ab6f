"""The errors of the client.

DlicmdError
├── UsageProblem           the command line names something that is not there or makes no sense
├── PackageError           the model folder cannot be packed
├── TokenFileError         ~/.dlicmd cannot be used
├── ServerError            the server answered with an error
│   ├── Denied             not logged on, or not allowed
│   ├── SubmissionRefused  the server finds the submission wrong
│   ├── QueryRefused       the server finds the query of a list wrong
│   ├── NoSuchExec         no exec with this id
│   ├── NoSuchApplication  no application with this id
│   ├── NoSuchSearch       no search with this name
│   └── NoSuchObject       no resource plan, or object of the cluster, with this name
├── NoExecYet              `last` was asked for, and there is no exec
├── Unreachable            no answer from the server
│   ├── ConnectFailed      the request was not sent
│   ├── ConnectionLost     it may have been sent
│   └── BackendNotStarted  the local backend could not be started
├── WaitTimeout            the exec had not ended in time
└── ResultError            what was downloaded is not what the server promised, or cannot be stored

The text of an error is one line for the user and names the remedy. The class of an error decides the exit code.
"""

from __future__ import annotations

from typing import ClassVar

from dlicmd.contract.exits import Exit
from dlicmd.sdk import hints


class DlicmdError(Exception):
    """An error that dlicmd reports to its user."""

    exit_code: ClassVar[Exit] = Exit.FAILED
    #: See dlicmd.contract.error_codes.
    code: str = "client.failed"


class UsageProblem(DlicmdError):
    """The command line names something that does not exist or makes no sense."""

    exit_code = Exit.USAGE
    code = "client.usage"


class PackageError(DlicmdError):
    """The model folder cannot be packed."""

    code = "package.failed"


class TokenFileError(DlicmdError):
    """The token file cannot be read or written safely."""

    code = "token.file"


class ServerError(DlicmdError):
    """The server answered with an error; `status` is the HTTP status, `code` that of the server if it sends one."""

    code = "server.refused"

    def __init__(self, message: str, status: int, code: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.code = code or type(self).code


class Denied(ServerError):
    """Not logged on, or not allowed."""

    exit_code = Exit.DENIED
    code = "server.denied"


class SubmissionRefused(ServerError):
    """The server finds a submission wrong. The exit code is that of a wrong command line."""

    exit_code = Exit.USAGE
    code = "submission.refused"


class QueryRefused(ServerError):
    """The server finds the query of a list wrong. The exit code is that of a wrong command line."""

    exit_code = Exit.USAGE
    code = "query.refused"


class NoSuchExec(ServerError):
    """No exec with this id."""

    exit_code = Exit.NO_SUCH_ID
    code = "exec.not_found"

    def __init__(self, exec_id: str, status: int = 404) -> None:
        super().__init__(f"there is no exec '{exec_id}'; {hints.command('--exec-get-all')} lists your execs", status)


class NoSuchApplication(ServerError):
    """The scheduler knows no application with this id."""

    exit_code = Exit.NO_SUCH_ID
    code = "application.not_found"

    def __init__(self, app_id: str, status: int = 404) -> None:
        listed = f"{hints.command('--app-get-all')} and --app-history-get-all list them"
        super().__init__(f"there is no application '{app_id}'; {listed}", status)


class NoSuchSearch(ServerError):
    """No search for hyper-parameters with this name."""

    exit_code = Exit.NO_SUCH_ID
    code = "search.not_found"

    def __init__(self, name: str, status: int = 404) -> None:
        super().__init__(f"there is no search '{name}'; {hints.command('--hpo-get-all')} lists your searches", status)


class NoSuchObject(ServerError):
    """No resource plan, or object of the cluster, with this name."""

    exit_code = Exit.NO_SUCH_ID
    code = "object.not_found"


class NoExecYet(DlicmdError):
    """The user gave `last`, and has no exec."""

    exit_code = Exit.NO_SUCH_ID
    code = "exec.none_yet"

    def __init__(self) -> None:
        super().__init__("'last' names no exec, because you have none yet; --exec-start submits one")


class Unreachable(DlicmdError):
    """No answer from the server."""

    exit_code = Exit.UNREACHABLE
    code = "server.unreachable"


class ConnectFailed(Unreachable):
    """There was no connection, so the request was certainly not sent. `why` is the text without the remedy."""

    def __init__(self, why: str, cure: str = "") -> None:
        super().__init__(f"{why}; {cure}" if cure else why)
        self.why = why


class ConnectionLost(Unreachable):
    """The connection broke after the request may have been sent."""


class BackendNotStarted(Unreachable):
    """The local backend could not be started."""

    code = "backend.not_started"


class WaitTimeout(DlicmdError):
    """The exec had not ended when the time to wait was over."""

    exit_code = Exit.TIMED_OUT
    code = "exec.wait_timeout"


class ResultError(DlicmdError):
    """The downloaded result is damaged, or cannot be stored."""

    code = "result.failed"
