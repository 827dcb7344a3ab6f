"""The one table of exit codes, for every command of the client."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit code of `dlicmd`. The README prints the texts in `MEANING`."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    JOB_ERROR = 3
    JOB_KILLED = 4
    NO_SUCH_ID = 6
    TIMED_OUT = 7
    UNREACHABLE = 8
    DENIED = 9
    NEVER_SCHEDULABLE = 10
    INTERRUPTED = 130


MEANING: dict[Exit, str] = {
    Exit.DONE: "done; with `--wait`, `--follow` or `--app-wait`: the job ended FINISHED",
    Exit.FAILED: "dlicmd or the server failed; the message says how",
    Exit.USAGE: "the command line is wrong; for a submission or a query, the server may report this",
    Exit.JOB_ERROR: "the job ended ERROR (its own exit code is in the JSON; `--pass-exit-code` returns that instead)",
    Exit.JOB_KILLED: "the job ended KILLED",
    Exit.NO_SUCH_ID: "no exec, application, search, resource plan or object with this id",
    Exit.TIMED_OUT: "timed out waiting (`--wait-timeout`); the job continues",
    Exit.UNREACHABLE: "the server cannot be reached, or the local backend could not be started",
    Exit.DENIED: "not authenticated, or not allowed",
    Exit.NEVER_SCHEDULABLE: "the job can never run: it requests more than the machine has, or GPUs that it lacks",
    Exit.INTERRUPTED: "interrupted with Ctrl-C; a submitted job continues",
}
