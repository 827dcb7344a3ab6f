"""Jobs as objects, and the REST contract as Python: one method per call. The commands use nothing else.

    from dlicmd import Client

    with Client() as client:                      # the local backend; starts it if it does not run
        for job in client.jobs(state="RUNNING"):
            print(job.id, job.name)
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

from dlicmd.contract import wire
from dlicmd.contract.options import LAST
from dlicmd.sdk.calls import (
    ACCEPTED,
    BAD_REQUEST,
    JSON,
    REFUSED,
    a_list,
    an_object,
    checked,
    checked_token,
    refused,
)
from dlicmd.sdk.data_calls import DataCalls
from dlicmd.sdk.errors import Denied, ServerError, SubmissionRefused
from dlicmd.sdk.exec_calls import ExecCalls
from dlicmd.sdk.experiment_calls import ExperimentCalls
from dlicmd.sdk.label_calls import LabelCalls
from dlicmd.sdk.model_calls import ModelCalls
from dlicmd.sdk.model_store_calls import ModelStoreCalls
from dlicmd.sdk.objects import Exec, News, Preview
from dlicmd.sdk.scheduler_calls import SchedulerCalls
from dlicmd.sdk.search_calls import SearchCalls
from dlicmd.sdk.search_objects import Search
from dlicmd.sdk.transport import READ_TIMEOUT, Request

if TYPE_CHECKING:
    from dlicmd.sdk.job import Job, Jobs
    from dlicmd.sdk.search_job import SearchJob
    from dlicmd.sdk.search_start import StoredCode
    from dlicmd.sdk.submission import SubmitOptions

#: How a program is run: see `Client.run`.
Kind: TypeAlias = Literal["elastic", "ddp", "single", "command"]
#: Seconds that a preview of data sources may take.
PREVIEW_TIMEOUT = 660.0


class Client(ExecCalls, LabelCalls, SchedulerCalls, SearchCalls, ModelCalls, ModelStoreCalls, ExperimentCalls,
             DataCalls):
    """Call the methods of one server, or of the local backend.

    The client repeats a call if the connection breaks or the server is overloaded. The client does not repeat a call
    that the server could then execute twice. The client reports each repetition on standard error. Several threads may
    use a client at the same time.

    Every method that sends a request raises these errors, so the methods list only further errors:

    - `Unreachable` if no complete answer arrives. `ConnectFailed`: the request was not sent. `ConnectionLost`: the
      request may have been sent. `BackendNotStarted`: the local backend could not be started.
    - `Denied` if the server requires a logon (HTTP 401), or does not permit the call (HTTP 403).
    - `ServerError` for any other error answer, and for an answer that is not the expected JSON. If the server lacks an
      extension that the method needs, the error answer has a status such as 404.

    Examples:
        >>> with Client("dli.example.com", 9443, token=TOKEN) as client:
        ...     for run in client.execs("state=RUNNING"):
        ...         print(run.id, run.num_worker)
    """

    # Authentication, configuration

    def use_token(self, token: str) -> None:
        """Send a token with all later calls.

        The local backend has its own token and ignores this one.

        Args:
            token: Bearer token, for example from `logon`. The token is sent as given.
        """
        self._token = token

    def logon(self, username: str, password: str) -> dict[str, Any]:
        """Log on with a user name and a password.

        Later calls of this client send the token of the answer.

        Args:
            username: Name of the user, without a colon.
            password: Password of the user.

        Returns:
            The JSON object of the server's answer. The key `accessToken` has the token.

        Raises:
            Denied: The server refuses the user name or the password (HTTP 400, 401 or 403), or sends a token that no
                HTTP header can carry.
            ServerError: The answer contains no `accessToken`.
        """
        basic = base64.b64encode(f"{username}:{password}".encode()).decode()
        return self._logged_on(Request("GET", wire.LOGON, {"Authorization": f"Basic {basic}", "Accept": ACCEPTED},
                                       timeout=self._timeout or READ_TIMEOUT, final=True))

    def oidc_issuer(self) -> dict[str, Any]:
        """Return the OIDC issuer whose accounts can log on to the server.

        Returns:
            The JSON object of the server's answer, with `issuer`, `clientId` and `scopes`.

        Raises:
            ServerError: The server has no OIDC logons.
        """
        return an_object(checked(self._transport.send(
            Request("GET", wire.OIDC, {"Accept": ACCEPTED}, timeout=self._timeout or READ_TIMEOUT)), "the OIDC logon"))

    def logon_oidc(self, token: str) -> dict[str, Any]:
        """Log on with a token of the OIDC issuer of the server.

        Later calls of this client send the token of the answer.

        Args:
            token: ID token, or access token in the form of a JWT.

        Returns:
            The JSON object of the server's answer. The key `accessToken` has the token, `username` the user.

        Raises:
            Denied: The server refuses the token or its user (HTTP 400, 401 or 403).
            ServerError: The server has no OIDC logons, or the answer contains no `accessToken`.
        """
        body = json.dumps({wire.OIDC_TOKEN: token}).encode()
        return self._logged_on(Request("POST", wire.OIDC, {"Content-Type": JSON, "Accept": ACCEPTED}, body,
                                       timeout=self._timeout or READ_TIMEOUT, final=True))

    def _logged_on(self, request: Request) -> dict[str, Any]:
        answer = self._transport.send(request)
        if answer.status in REFUSED:
            raise refused(Denied, "the server refused the logon", answer)
        found = an_object(checked(answer, "the logon"))
        token = found.get(wire.ACCESS_TOKEN)
        if not isinstance(token, str) or not token:
            raise ServerError("the server's answer to the logon contains no accessToken", answer.status, answer.code)
        self._token = checked_token(token, "the server's answer")
        return found

    def whoami(self) -> dict[str, Any]:
        """Return the user of this client's token.

        Returns:
            The JSON object of the server's answer. The keys `username` and `role` have the user.
        """
        return an_object(self._call("GET", wire.VALIDATE))

    def console_link(self) -> dict[str, Any]:
        """Return a one-time link that opens the console, logged on as the user of this client's token.

        Returns:
            The JSON object of the server's answer: `url`, and the `seconds` for which it is valid.

        Raises:
            Denied: The token is for a program.
            ServerError: The server has no console.
        """
        return an_object(self._call("POST", wire.LINK))

    def logoff(self) -> str:
        """Revoke the token of this client.

        Returns:
            The text of the server's answer.
        """
        return self._call("POST", wire.LOGOFF).text()

    # Jobs as objects

    def jobs(self, limit: int | None = None, state: str | Sequence[str] | None = None) -> Jobs:
        """Return your jobs, the newest first.

        Args:
            limit: Maximum number of jobs. None returns all.
            state: State of the jobs, such as `RUNNING`, or a list of states. None stands for all states.

        Returns:
            A list of jobs, which a notebook shows as a table.

        Raises:
            QueryRefused: The server refuses a state (HTTP 400).
        """
        from dlicmd.sdk.job import Job, Jobs
        from dlicmd.sdk.newest import NEWEST_FIRST, age

        states = [state] if isinstance(state, str) else list(state or ())
        query = [f"state={','.join(states)}"] if states else []
        if self.extensions():
            query += [NEWEST_FIRST] + ([] if limit is None else [f"limit={limit}"])
        found = sorted(self.execs("&".join(query)), key=age, reverse=True)
        return Jobs(Job(self, one) for one in found[:limit])

    def job(self, exec_id: str) -> Job:
        """Return a job.

        Args:
            exec_id: Id of the job, such as `local-1`, or `last` for your newest job.

        Raises:
            NoSuchExec: No job has this id.
            NoExecYet: The id is `last`, but you have no job.
        """
        from dlicmd.sdk.job import Job
        from dlicmd.sdk.newest import newest

        return Job(self, newest(self) if exec_id == LAST else self.exec(exec_id))

    # Whole jobs. Their modules pack, hash and unpack: a start of dlicmd for another command must not import them.

    def run(
        self, program: str | os.PathLike[str] | Callable[[], Any], arguments: Sequence[object] = (), *,
        workers: int | None = None, gpus: int | None = None, kind: Kind | None = None, name: str | None = None,
        data: str | os.PathLike[str] | Sequence[Mapping[str, Any]] | None = None,
        env: Mapping[str, object] | None = None, allow_cpu: bool = False, options: SubmitOptions | None = None,
    ) -> Job:
        """Run a program or a Python function as a job, as `dlicmd run` does.

        The client packs the folder of the program. The source of the program says how it is run, unless `kind` says it:
        elastic if it imports FabricModel, several processes if it reads `RANK` or uses `torch.distributed`, else 1
        process.

        A function is pickled by value, with the variables that it uses. Classes and modules of your own folder are
        pickled by value, too; packages must be installed for the job. A module of your own must not be imported inside
        the function. The job must run the same minor version of Python, such as 3.12. The server does not unpickle the
        function; the job does. `Job.result` returns what the function returns.

        Args:
            program: Python file, folder with a `train.py`, `main.py` or a single Python file, executable file, or a
                function without arguments, such as `functools.partial(train, lr=0.1)`.
            arguments: Arguments for the program, one list item for each word. A function takes none.
            workers: Number of workers; for an elastic program, the maximum. The default is 2 for a program that can use
                several, else 1. A function that runs in 1 process, and a command, get this number of devices.
            gpus: The same number, and each worker uses a GPU.
            kind: `elastic`, `ddp` (equal processes), `single` or `command`. None finds the kind. For a function, the
                default is `single`; with `ddp`, the function of rank 0 gives the result.
            name: Name of the job. The default is the name of the program or function.
            data: Data of the job: a file or folder of this machine, a path in the data folder of the server, or a
                list of data sources as JSON objects.
            env: Environment variables of the job.
            allow_cpu: Whether the job runs on the CPU if it asks for GPUs and the server has none.
            options: Further options of the submission, see `SubmitOptions`.

        Returns:
            The submitted job.

        Raises:
            UsageProblem: The program does not exist, its kind cannot be found, or an option is wrong; or the function
                cannot be pickled, or cloudpickle is not installed.
            PackageError: A file cannot be read, or the archive cannot be written.
            SubmissionRefused: The server refuses the submission (HTTP 400).
            NeverSchedulable: The job can never run on the server, for example because the server has no GPU.
            ConnectionLost: The connection broke during the upload; the server may have accepted the job.

        Examples:
            >>> job = client.run("train.py", ["--epochs", 2], workers=2)
            >>> client.run(functools.partial(train, lr=0.1), gpus=1).result()
            0.93
        """
        from dlicmd.sdk.job import Job
        from dlicmd.sdk.run import run, usual_workers

        given: SubmitOptions = {**(options or {})}
        if name is not None:
            given["appName"] = name
        if env is not None:
            given["msd-env"] = env
        if allow_cpu:
            given["allow-cpu"] = True
        return Job(self, run(self, program, arguments=arguments, workers=workers, gpus=gpus, kind=kind, data=data,
                             options=given, usual=lambda: usual_workers(self)))

    @overload
    def submit(self, framework: str, options: SubmitOptions, program: Sequence[str] = ()) -> Exec: ...

    @overload
    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Job: ...

    def submit(self, *args: Any, **kwargs: Any) -> Exec | Job:
        """Run a Python function as a job; or submit a job with the options of `dlicmd --exec-start`.

        With a function, `client.submit(function, *args, **kwargs)` is `client.run(partial(function, *args, **kwargs))`:
        see `run`. `Job.result` returns what the function returns.

        With the name of a framework, the arguments are `framework`, `options` and `program`. `frameworks` returns all
        frameworks. `options` are a mapping of names without dashes to values: True sets a flag, False leaves the flag
        out, and a list gives a repeatable option several times. `program` has the arguments for the program, one list
        item for each word; with the option `user-cmd`, the command itself. The client checks the options and packs the
        files before it sends the first request.

        Args:
            args: The function and its arguments; or framework, options, and optionally the program.
            kwargs: Arguments of the function by name; or the three arguments by name.

        Returns:
            The job of the function; or the new exec.

        Raises:
            UsageProblem: An option is unknown, a value is wrong, no program is named, or a file does not exist; or the
                function cannot be pickled, or cloudpickle is not installed.
            PackageError: A file cannot be read, or the archive cannot be written.
            SubmissionRefused: The server refuses the submission (HTTP 400).
            ConnectionLost: The connection broke during the upload; the server may have accepted the exec.
            ServerError: The answer contains no `id` or no `appId`.
            DlicmdError: The option `pbmodel-name` is given, but the local backend has no prebuilt models.

        Examples:
            >>> client.submit(pow, 2, 10).result()
            1024
            >>> options = {"model-dir": "model", "model-main": "train.py", "numWorker": 2}
            >>> exec = client.submit("PyTorch", options, ["--epochs", "2"])
        """
        from dlicmd.sdk.submission import Submission
        from dlicmd.sdk.submit import submit

        if args and callable(args[0]):
            from functools import partial

            function, *rest = args
            return self.run(partial(function, *rest, **kwargs))
        found: Exec = submit(self, Submission.of(*args, **kwargs))
        return found

    @overload
    def search(self, name: str) -> Search: ...

    @overload
    def search(
        self, program: str | os.PathLike[str] | StoredCode, params: Mapping[str, Any], metric: str | Sequence[str],
        arguments: Sequence[object] | None = None, *, trials: int | None = None, parallel: int | None = None,
        minutes: int | None = None, algorithm: str | None = None, resource: str | None = None, resume: bool = False,
        seed: int | None = None, name: str | None = None, workers: int | None = None, kind: Kind | None = None,
        options: SubmitOptions | None = None,
    ) -> SearchJob: ...

    def search(self, *args: Any, **kwargs: Any) -> Search | SearchJob:
        """Search for the hyper-parameters with which a program reaches the best value of a metric; or return a search.

        With the name of a search alone, the method returns that search with its experiments, as `exec` returns an exec.

        Otherwise, the client packs the program as `run` does, and the server runs it once for each experiment. The
        program finds its parameters in `config.json` in its working directory, in the variables `HPO_<NAME>`, and in
        its arguments in place of `{name}`.

        Args:
            args: The name of a search; or `program`, `params`, `metric` and `arguments`:

                - `program`: Python file, or folder with a `train.py`, `main.py` or a single Python file; or a
                  `StoredCode`, for the code of a job or a model definition, which the server has already.
                - `params`: name of a parameter → its values: a text such as `"0.1..0.9"`, `"log:1e-4..1e-1"`,
                  `"1..10"`, `"0..1/0.25"` (with a step) or `"adam,sgd"`; a list of values; or an object of the
                  contract.
                - `metric`: metric with its direction, such as `"accuracy:maximize"`, or a list of several.
                - `arguments`: arguments for the program, one list item for each word. None: those of the stored code.
            kwargs: The same arguments by name, and:

                - `trials`: most experiments, default 20; with the algorithm Grid, all combinations.
                - `parallel`: most experiments at the same time, default 4.
                - `minutes`: most minutes for the search.
                - `algorithm`: name of the algorithm, default `Tpe`, or `ASHA` with a resource.
                - `resource`: resource that ASHA and Hyperband divide, with its largest value, such as `"epochs:27"`.
                - `resume`: whether promoted experiments continue their training in place of a new one.
                - `seed`: seed of the algorithm.
                - `name`: name of the search.
                - `workers`, `kind`, `options`: as those of `run`, for each experiment.

        Returns:
            The found search; or a handle for the new one.

        Raises:
            UsageProblem: The program does not exist, or a parameter, the metric or an option is wrong.
            PackageError: A file cannot be read, or the archive cannot be written.
            SubmissionRefused: The server refuses the search (HTTP 400).
            NoSuchSearch: No search has this name.
            ConnectionLost: The connection broke during the upload; the server may have accepted the search.

        Examples:
            >>> found = client.search("train.py", {"lr": "log:1e-4..1e-1"}, "accuracy:maximize", trials=20).wait()
            >>> found.best.parameters
            {'lr': 0.0123}
        """
        if (len(args) == 1 and not kwargs) or (not args and kwargs.keys() == {"name"}):
            [given] = [*args, *kwargs.values()]
            return super().search(given)
        from dlicmd.sdk.run import usual_workers
        from dlicmd.sdk.search_job import SearchJob
        from dlicmd.sdk.search_start import start

        started = start(self, self, lambda: usual_workers(self), *args, **kwargs)
        return SearchJob(self, Search({wire.SEARCH_NAME: started}))

    def search_job(self, name: str) -> SearchJob:
        """Return a handle for a search.

        Args:
            name: Name of the search.

        Raises:
            NoSuchSearch: No search has this name.
        """
        from dlicmd.sdk.search_job import SearchJob

        return SearchJob(self, self.search(name))

    def watch(self, exec_id: str, timeout: float | None = None) -> Iterator[News]:
        """Yield an exec with its new output until the exec has ended.

        The iteration also ends if the exec can never be scheduled: `Exec.is_over` is True then. A server that becomes
        unreachable after the first answer is tried again for 120 s.

        Args:
            exec_id: Id of the exec.
            timeout: Seconds from this call until WaitTimeout. None waits without a limit.

        Yields:
            The exec, and the lines of output since the previous item. Nothing is sent before the first item is
                requested.

        Raises:
            NoSuchExec: No exec has this id.
            WaitTimeout: The exec has not ended after `timeout` seconds. The exec continues.

        Examples:
            >>> for news in client.watch("wmla-1", timeout=600):
            ...     for line in news.lines:
            ...         print(line.text)
        """
        from dlicmd.sdk.follow import Clock, watch

        return watch(self, exec_id, Clock(exec_id, timeout))

    def wait(self, exec_id: str, timeout: float | None = None) -> Exec:
        """Wait until an exec has ended, and return the exec.

        The wait also ends if the exec can never be scheduled: `Exec.is_over` is True then, and `Exec.has_ended` is
        False. A server that becomes unreachable after the first answer is tried again for 120 s.

        Args:
            exec_id: Id of the exec.
            timeout: Seconds from this call until WaitTimeout. None waits without a limit.

        Returns:
            The exec in its last state.

        Raises:
            NoSuchExec: No exec has this id.
            WaitTimeout: The exec has not ended after `timeout` seconds. The exec continues.
        """
        from dlicmd.sdk.follow import Clock, wait

        return wait(self, exec_id, Clock(exec_id, timeout))

    def fetch_result(self, exec_id: str, folder: str | Path = ".", force: bool = False) -> Path:
        """Store the trained model as a zip, and return its path.

        The client compares the zip with the checksum of the server. An interrupted download is kept, and the next call
        resumes it. A file that already has exactly these bytes is not fetched again.

        Args:
            exec_id: Id of the exec.
            folder: Folder for the zip, created if necessary. The default is the current folder. The server chooses the
                name of the file.
            force: Whether to overwrite another regular file with that name.

        Returns:
            The path of the zip in `folder`.

        Raises:
            UsageProblem: `folder` is not a folder.
            NoSuchExec: No exec has this id.
            ServerError: The exec has no result.
            ResultError: The zip is damaged or cannot be stored, or another file with its name exists.
        """
        from dlicmd.sdk.results import Wanted, check_folder, fetch

        return fetch(self, Wanted(exec_id), check_folder(str(folder)), force)

    def fetch_file(self, exec_id: str, path: str, to: str | Path = ".", force: bool = False) -> Path:
        """Store a file that the program wrote, and return its path (extension `files`).

        The client compares the file with the checksum of the server. An interrupted download is kept, and the next call
        resumes it. A file that already has exactly these bytes is not fetched again.

        Args:
            exec_id: Id of the exec.
            path: Path of the file, as `files` returns it.
            to: Folder for the file, created if necessary. The file keeps its name, without the folders of `path`.
            force: Whether to overwrite another regular file with that name.

        Returns:
            The path of the file in `to`.

        Raises:
            UsageProblem: `to` is not a folder.
            NoSuchExec: No exec has this id.
            ServerError: The program wrote no such file.
            ResultError: The file is damaged or cannot be stored, or another file with its name exists.
        """
        from dlicmd.sdk.results import fetch_file

        return fetch_file(self, exec_id, path, to, force)

    def preview(self, sources: Sequence[Mapping[str, Any]]) -> list[Preview]:
        """Return the contents of data sources (extension `data-preview`).

        The server has 660 s to answer, unless the client has its own `timeout`.

        Args:
            sources: Data sources as JSON objects, at most 10, such as `{"type": "fs", "location": {"paths": "mnist"}}`.

        Returns:
            Previews in the order of the data sources, one for each path on the server. A data source that cannot be
                read is not an error: its preview has `ok` False and the reason in `message`.

        Raises:
            SubmissionRefused: The server refuses the data sources (HTTP 400).
        """
        body = json.dumps({wire.DATA_SOURCE: list(sources)}).encode()
        answer = self._send("POST", wire.DATA_PREVIEW, {"Content-Type": JSON}, body, PREVIEW_TIMEOUT)
        if answer.status == BAD_REQUEST:
            raise refused(SubmissionRefused, "the server refused", answer)
        return [Preview(one) for one in a_list(checked(answer, "to preview the data"))]
