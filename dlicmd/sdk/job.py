"""`Job`: a handle that sends the calls about one job. `Exec` is the data of the job at one moment."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal, overload

from dlicmd.contract import wire
from dlicmd.contract.states import FINISHED
from dlicmd.sdk import follow as following
from dlicmd.sdk import metrics, notebook
from dlicmd.sdk.errors import JobFailed, ResultError
from dlicmd.sdk.exec_calls import ExecCalls
from dlicmd.sdk.objects import Curve, Exec, File

#: The number of lines of standard error in the text of JobFailed.
LAST_LINES = 20


class Job:
    """A job of a server: a handle that sends the calls about one exec.

    A Job is not data. `Job.exec` is the data: the `Exec` that the server returned last. An `Exec` never changes, and
    needs no connection. `refresh`, `wait`, `check`, `result` and `stop` replace `Job.exec` by a newer one; nothing
    else changes a Job.

    `Client.run`, `Client.submit`, `Client.job` and `Client.jobs` return jobs. Every method raises the errors that
    `Client` lists, and `NoSuchExec` if the job was deleted.

    Attributes:
        client: Client that sends the calls.
        exec: The job as the server returned it last.

    Examples:
        >>> job = client.run("train.py", workers=2)
        >>> job.wait().state
        'FINISHED'
    """

    def __init__(self, client: ExecCalls, found: Exec) -> None:
        """Make a handle for an exec.

        Args:
            client: Client that sends the calls.
            found: The exec, from `Client.exec`, `Client.execs` or `Client.submit`.
        """
        self.client = client
        self.exec = found

    @property
    def id(self) -> str:
        """Id of the job, such as `local-1`."""
        return self.exec.id

    @property
    def name(self) -> str:
        """Name of the job. The text is empty if the submission gave no name."""
        return self.exec.app_name

    @property
    def state(self) -> str:
        """State of the job in `exec`, such as `RUNNING`. `refresh` asks the server for the present state."""
        return self.exec.state

    def refresh(self) -> Job:
        """Ask the server for the present state, and return this job."""
        self.exec = self.client.exec(self.id)
        return self

    def wait(self, timeout: float | None = None) -> Job:
        """Wait until the job has ended, and return this job, whatever its last state is.

        The wait also ends if the job can never be scheduled. `check` raises an error in this case, and for a job that
        failed.

        Args:
            timeout: Seconds until WaitTimeout. None waits without a limit.

        Raises:
            WaitTimeout: The job has not ended after `timeout` seconds. The job continues.
        """
        if not self.exec.is_over:
            self.exec = following.wait(self.client, self.id, following.Clock(self.id, timeout))
        return self

    def check(self, timeout: float | None = None) -> Job:
        """Wait until the job has ended, and return this job if its last state is FINISHED.

        Args:
            timeout: Seconds until WaitTimeout. None waits without a limit.

        Raises:
            JobFailed: The job failed, was stopped, or can never be scheduled. The error ends with the last 20 lines of
                standard error.
            WaitTimeout: The job has not ended after `timeout` seconds. The job continues.
        """
        if self.wait(timeout).state != FINISHED:
            raise self._failed()
        return self

    @overload
    def logs(self, tail: int | None = None, follow: Literal[False] = False) -> str: ...

    @overload
    def logs(self, tail: int | None = None, *, follow: Literal[True]) -> Iterator[str]: ...

    def logs(self, tail: int | None = None, follow: bool = False) -> str | Iterator[str]:
        """Return the output of the program: standard output and standard error, of all processes.

        Args:
            tail: Number of last lines to return. None returns all lines. With `follow`, the number of lines to yield
                before the new ones.
            follow: Whether to yield lines as they arrive, until the job has ended.

        Returns:
            The output as one text. With `follow`, an iterator over lines without their newlines.

        Examples:
            >>> for line in job.logs(follow=True):
            ...     print(line)
        """
        if follow:
            return self._lines(tail)
        if wire.EXT_LINES in self.client.extensions():
            return self.client.log_text(self.id, tail=tail).text()
        text = self.client.train_log(self.id).text()
        return text if tail is None else "".join(text.splitlines(keepends=True)[-tail or len(text):])

    def curves(self, *names: str) -> Curves:
        """Return the metrics of the program as curves (extension `curves`).

        Args:
            names: Names of metrics, such as `loss`. Without names, all metrics.

        Returns:
            A list of curves, which a notebook draws. It is empty if the server has found no metrics.
        """
        return Curves(self.client.curves(self.id, names))

    def resources(self) -> Curves:
        """Return the CPU cores, the memory and the GPUs that the job used over time (extension `resources`).

        Returns:
            A list of curves, which a notebook draws: see `Client.resources`.
        """
        return Curves(self.client.resources(self.id))

    def metrics(self, *names: str) -> Any:
        """Return the metrics of the program as a table with a row for each step (extension `curves`).

        Args:
            names: Names of metrics, such as `loss`. Without names, all metrics.

        Returns:
            A `pandas.DataFrame` if pandas is installed, else a list of dictionaries. The columns are `step`;
            `step_unit`, such as `epoch`; `time`, with its zone in a DataFrame, and in epoch seconds in a list; and each
            metric under its name. A metric without a value at a step is None. If several sources have a metric, its
            columns are named `loss (printed)`.

        Examples:
            >>> job.metrics("loss").plot(x="step", y="loss")
        """
        columns, rows = metrics.table(self.curves(*names))
        try:
            import pandas  # not a dependency
        except ImportError:
            return rows
        for row in rows:
            row["time"] = None if row["time"] is None else datetime.fromtimestamp(row["time"], timezone.utc)
        return pandas.DataFrame(rows, columns=columns)

    def result(self, timeout: float | None = None) -> Any:
        """Wait until the job has ended, and return what its function returned.

        Only a job of `Client.submit(FUNCTION)` or `Client.run(FUNCTION)` has a return value. The client loads it with
        pickle, so use this method only with a server that you trust. Outcomes of other users are not loaded.

        Args:
            timeout: Seconds until WaitTimeout. None waits without a limit.

        Returns:
            The return value of the function.

        Raises:
            Exception: The function raised this exception. Its cause has the traceback of the job.
            JobFailed: The job failed without an exception of the function, for example because it was stopped or ran
                out of memory; or the exception cannot be pickled; or the job and this program run different versions of
                Python.
            ResultError: The job stored no return value, or the value cannot be loaded.
            WaitTimeout: The job has not ended after `timeout` seconds. The job continues.
        """
        from dlicmd.sdk.function import JobTraceback, fetch_outcome  # only for functions

        outcome = fetch_outcome(self.client, self.wait(timeout).id)
        if outcome is None:
            self.check()
            raise ResultError(f"{self.id} stored no return value: only jobs of Client.submit(FUNCTION) do. "
                              "Job.result_files() lists its files")
        if not outcome.is_error:
            return outcome.value
        trace = outcome.trace.splitlines()
        if outcome.value is None:
            raise JobFailed(self.id, self.state, trace[-1] if trace else "", trace)
        raise outcome.value from JobTraceback(outcome.trace)

    def result_files(self) -> list[File]:
        """Return the files that the program wrote, so far if the job is running (extension `files`)."""
        return self.client.files(self.id).files

    def fetch(self, path: str, to: str | Path = ".", force: bool = False) -> Path:
        """Store a file that the program wrote, and return its path (extension `files`).

        Args:
            path: Path of the file, as `result_files` returns it.
            to: Folder for the file, created if necessary.
            force: Whether to overwrite another regular file with that name.

        Raises:
            ServerError: The program wrote no such file.
            ResultError: The file is damaged or cannot be stored, or another file with its name exists.
        """
        from dlicmd.sdk.results import fetch_file  # needs hashlib

        return fetch_file(self.client, self.id, path, to, force)

    def stop(self) -> Job:
        """Stop the job, and return this job. A job that has already ended stays as it is."""
        if not self.refresh().exec.has_ended:
            self.client.stop_exec(self.id)
            self.refresh()
        return self

    def delete(self) -> None:
        """Delete the job and its files. The local backend stops a running job first."""
        self.client.delete_exec(self.id)

    def _lines(self, tail: int | None) -> Iterator[str]:
        for number, news in enumerate(following.watch(self.client, self.id, following.Clock(self.id, None))):
            self.exec = news.exec
            lines = [line.text for line in news.lines]
            yield from lines if number or tail is None else lines[len(lines) - min(tail, len(lines)):]

    def _failed(self) -> JobFailed:
        """Return the error for a job that ended without success."""
        written = self.client.train_log(self.id, "errlog")
        last: deque[str] = deque(written.text().splitlines(), LAST_LINES)
        return JobFailed(self.id, self.state, self.exec.message, last)

    def __repr__(self) -> str:
        return f"<Job {self.id} {self.state or 'SUBMITTED'}{f' {self.name!r}' if self.name else ''}>"

    def _repr_html_(self) -> str:
        return notebook.table([notebook.facts(self.exec)])


class Jobs(list[Job]):
    """A list of jobs that a notebook shows as a table."""

    def __repr__(self) -> str:
        return "\n".join(map(repr, self)) or "no jobs"

    def _repr_html_(self) -> str:
        return notebook.table([notebook.facts(job.exec) for job in self])


class Curves(list[Curve]):
    """A list of curves that a notebook draws."""

    def __repr__(self) -> str:
        return "\n".join(f"<Curve {curve.name!r} of {len(curve.points)} points>" for curve in self) or "no curves"

    def _repr_html_(self) -> str:
        return notebook.drawn(self)
