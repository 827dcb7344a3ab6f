"""The client for asyncio: the same methods as coroutines.

`python docs/generate.py` makes this file; do not edit it.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, overload

from dlicmd.sdk.client import Client, Kind
from dlicmd.sdk.experiment_objects import PlanMistakes, RunOfExperiment, SavedDefinition, SavedExperiment, SavedHardware
from dlicmd.sdk.job import Curves, Job, Jobs
from dlicmd.sdk.messages import Progress
from dlicmd.sdk.model_objects import (
    DeployedModel,
    LogPart,
    ModelLoading,
    ModelWhy,
    SavedModel,
    ServiceTokens,
    ServingRuntime,
    ServingState,
)
from dlicmd.sdk.objects import (
    Application,
    Code,
    Curve,
    Exec,
    Execs,
    File,
    Files,
    Framework,
    Holdings,
    Labelled,
    Line,
    News,
    Plan,
    Preview,
    SavedView,
    SlotView,
    StopOutcome,
    StoredData,
    Why,
)
from dlicmd.sdk.search_job import SearchJob
from dlicmd.sdk.search_objects import Algorithm, Experiment, Search
from dlicmd.sdk.search_start import StoredCode
from dlicmd.sdk.submission import SubmitOptions
from dlicmd.sdk.threads import in_thread, items
from dlicmd.sdk.transport import Answer, Multipart, Request, Transport


class AsyncClient:
    """The methods of `Client` as coroutines, for asyncio.

    Each method has the arguments, the result and the errors of the method of `Client` with the same name. Methods that
    return an iterator there return an asynchronous iterator here: `async for` without `await`. Jobs are `AsyncJob`,
    searches are `AsyncSearchJob`.
    `Client.result` and `Client.file`, which return bytes as they arrive, are left out: use `fetch_result` and
    `fetch_file`. Other answers are complete (at most 256 MiB).

    Each call runs in a thread of its own, with one client for all threads. When the awaiting task is cancelled, the
    call stops at its next pause, or its next chunk of an upload or download, at the latest when the server answers. A
    cancelled submission may have reached the server: look for the job with `jobs`.

    Examples:
        >>> async with AsyncClient() as client:
        ...     job = await client.run("train.py", workers=2)
        ...     async for line in job.logs(follow=True):
        ...         print(line)
    """

    def __init__(
        self, host: str | None = None, port: int | None = None, *, token: str | None = None,
        ca_cert: str | None = None, insecure: bool = False, http: bool = False, retries: int | None = None,
        timeout: float | None = None, transport: Transport | None = None,
    ) -> None:
        """Prepare the connection. The arguments are those of `Client`."""
        self._client = Client(
            host, port, token=token, ca_cert=ca_cert, insecure=insecure, http=http, retries=retries, timeout=timeout,
            transport=transport,
        )

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _call(self, method: str, /, *args: Any, **named: Any) -> Any:
        found = await in_thread(getattr(self._client, method), *args, **named)
        if isinstance(found, Jobs):
            return AsyncJobs(AsyncJob(one) for one in found)
        if isinstance(found, SearchJob):
            return AsyncSearchJob(found)
        return AsyncJob(found) if isinstance(found, Job) else found

    async def use_token(self, token: str) -> None:
        """Call `Client.use_token` in a thread."""
        await self._call("use_token", token)

    async def logon(self, username: str, password: str) -> dict[str, Any]:
        """Call `Client.logon` in a thread."""
        found: dict[str, Any] = await self._call("logon", username, password)
        return found

    async def oidc_issuer(self) -> dict[str, Any]:
        """Call `Client.oidc_issuer` in a thread."""
        found: dict[str, Any] = await self._call("oidc_issuer")
        return found

    async def logon_oidc(self, token: str) -> dict[str, Any]:
        """Call `Client.logon_oidc` in a thread."""
        found: dict[str, Any] = await self._call("logon_oidc", token)
        return found

    async def whoami(self) -> dict[str, Any]:
        """Call `Client.whoami` in a thread."""
        found: dict[str, Any] = await self._call("whoami")
        return found

    async def console_link(self) -> dict[str, Any]:
        """Call `Client.console_link` in a thread."""
        found: dict[str, Any] = await self._call("console_link")
        return found

    async def logoff(self) -> str:
        """Call `Client.logoff` in a thread."""
        found: str = await self._call("logoff")
        return found

    async def jobs(self, limit: int | None = None, state: str | Sequence[str] | None = None) -> AsyncJobs:
        """Call `Client.jobs` in a thread."""
        found: AsyncJobs = await self._call("jobs", limit, state)
        return found

    async def job(self, exec_id: str) -> AsyncJob:
        """Call `Client.job` in a thread."""
        found: AsyncJob = await self._call("job", exec_id)
        return found

    async def run(
        self, program: str | os.PathLike[str] | Callable[[], Any], arguments: Sequence[object] = (), *,
        workers: int | None = None, gpus: int | None = None, kind: Kind | None = None, name: str | None = None,
        data: str | os.PathLike[str] | Sequence[Mapping[str, Any]] | None = None,
        env: Mapping[str, object] | None = None, allow_cpu: bool = False, options: SubmitOptions | None = None,
    ) -> AsyncJob:
        """Call `Client.run` in a thread."""
        found: AsyncJob = await self._call(
            "run", program, arguments, workers=workers, gpus=gpus, kind=kind, name=name, data=data, env=env,
            allow_cpu=allow_cpu, options=options,
        )
        return found

    @overload
    async def submit(self, framework: str, options: SubmitOptions, program: Sequence[str] = ()) -> Exec: ...

    @overload
    async def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> AsyncJob: ...

    async def submit(self, *args: Any, **kwargs: Any) -> Exec | AsyncJob:
        """Call `Client.submit` in a thread."""
        found: Exec | AsyncJob = await self._call("submit", *args, **kwargs)
        return found

    @overload
    async def search(self, name: str) -> Search: ...

    @overload
    async def search(
        self, program: str | os.PathLike[str] | StoredCode, params: Mapping[str, Any], metric: str | Sequence[str],
        arguments: Sequence[object] | None = None, *, trials: int | None = None, parallel: int | None = None,
        minutes: int | None = None, algorithm: str | None = None, resource: str | None = None, resume: bool = False,
        seed: int | None = None, name: str | None = None, workers: int | None = None, kind: Kind | None = None,
        options: SubmitOptions | None = None,
    ) -> AsyncSearchJob: ...

    async def search(self, *args: Any, **kwargs: Any) -> Search | AsyncSearchJob:
        """Call `Client.search` in a thread."""
        found: Search | AsyncSearchJob = await self._call("search", *args, **kwargs)
        return found

    async def search_job(self, name: str) -> AsyncSearchJob:
        """Call `Client.search_job` in a thread."""
        found: AsyncSearchJob = await self._call("search_job", name)
        return found

    def watch(self, exec_id: str, timeout: float | None = None) -> AsyncIterator[News]:
        """Call `Client.watch` in a thread."""
        return items(lambda: self._client.watch(exec_id, timeout))

    async def wait(self, exec_id: str, timeout: float | None = None) -> Exec:
        """Call `Client.wait` in a thread."""
        found: Exec = await self._call("wait", exec_id, timeout)
        return found

    async def fetch_result(self, exec_id: str, folder: str | Path = ".", force: bool = False) -> Path:
        """Call `Client.fetch_result` in a thread."""
        found: Path = await self._call("fetch_result", exec_id, folder, force)
        return found

    async def fetch_file(self, exec_id: str, path: str, to: str | Path = ".", force: bool = False) -> Path:
        """Call `Client.fetch_file` in a thread."""
        found: Path = await self._call("fetch_file", exec_id, path, to, force)
        return found

    async def preview(self, sources: Sequence[Mapping[str, Any]]) -> list[Preview]:
        """Call `Client.preview` in a thread."""
        found: list[Preview] = await self._call("preview", sources)
        return found

    async def status(self) -> str:
        """Call `Client.status` in a thread."""
        found: str = await self._call("status")
        return found

    async def frameworks(self) -> list[Framework]:
        """Call `Client.frameworks` in a thread."""
        found: list[Framework] = await self._call("frameworks")
        return found

    async def execs(self, query: str | None = None) -> Execs:
        """Call `Client.execs` in a thread."""
        found: Execs = await self._call("execs", query)
        return found

    async def start_exec(self, args: str, body: Multipart | str | None = None, *, strict: bool = True) -> Exec:
        """Call `Client.start_exec` in a thread."""
        found: Exec = await self._call("start_exec", args, body, strict=strict)
        return found

    async def check_exec(self, args: str, data: str | None = None) -> None:
        """Call `Client.check_exec` in a thread."""
        await self._call("check_exec", args, data)

    async def submission(self, args: str, body: Multipart | str | None = None, *, strict: bool = True) -> Request:
        """Call `Client.submission` in a thread."""
        found: Request = await self._call("submission", args, body, strict=strict)
        return found

    async def exec(self, exec_id: str) -> Exec:
        """Call `Client.exec` in a thread."""
        found: Exec = await self._call("exec", exec_id)
        return found

    async def stop_exec(self, exec_id: str) -> int:
        """Call `Client.stop_exec` in a thread."""
        found: int = await self._call("stop_exec", exec_id)
        return found

    async def resize_exec(self, exec_id: str, slots: int | None) -> dict[str, Any]:
        """Call `Client.resize_exec` in a thread."""
        found: dict[str, Any] = await self._call("resize_exec", exec_id, slots)
        return found

    async def why(self, exec_id: str) -> Why:
        """Call `Client.why` in a thread."""
        found: Why = await self._call("why", exec_id)
        return found

    async def verify_exec(self, exec_id: str, steps: int = 20) -> Exec:
        """Call `Client.verify_exec` in a thread."""
        found: Exec = await self._call("verify_exec", exec_id, steps)
        return found

    async def run_again(
        self, exec_id: str, *, name: str | None = None, workers: int | None = None,
        arguments: Sequence[str] | None = None, data: Sequence[Mapping[str, Any]] | None = None,
    ) -> Exec:
        """Call `Client.run_again` in a thread."""
        found: Exec = await self._call(
            "run_again", exec_id, name=name, workers=workers, arguments=arguments, data=data,
        )
        return found

    async def delete_exec(self, exec_id: str) -> int:
        """Call `Client.delete_exec` in a thread."""
        found: int = await self._call("delete_exec", exec_id)
        return found

    async def deploy_exec(self, exec_id: str, asked: dict[str, Any]) -> Answer:
        """Call `Client.deploy_exec` in a thread."""
        found: Answer = await self._call("deploy_exec", exec_id, asked)
        return found

    async def delete_execs(self) -> int:
        """Call `Client.delete_execs` in a thread."""
        found: int = await self._call("delete_execs")
        return found

    async def train_log(self, exec_id: str, log_type: str = "outerrlog") -> Answer:
        """Call `Client.train_log` in a thread."""
        found: Answer = await self._call("train_log", exec_id, log_type)
        return found

    async def log_text(
        self, exec_id: str, *, tail: int | None = None, since: float | None = None, worker: int | None = None,
        grep: Sequence[str] = (), timestamps: bool = False, cursor: str | None = None,
    ) -> Answer:
        """Call `Client.log_text` in a thread."""
        found: Answer = await self._call(
            "log_text", exec_id, tail=tail, since=since, worker=worker, grep=grep, timestamps=timestamps,
            cursor=cursor,
        )
        return found

    def log_lines(
        self, exec_id: str, *, tail: int | None = None, since: float | None = None, worker: int | None = None,
        grep: Sequence[str] = (),
    ) -> AsyncIterator[Line]:
        """Call `Client.log_lines` in a thread."""
        return items(lambda: self._client.log_lines(exec_id, tail=tail, since=since, worker=worker, grep=grep))

    async def files(self, exec_id: str) -> Files:
        """Call `Client.files` in a thread."""
        found: Files = await self._call("files", exec_id)
        return found

    async def follow(self, exec_id: str, cursor: str = "", wait: int = 0) -> News:
        """Call `Client.follow` in a thread."""
        found: News = await self._call("follow", exec_id, cursor, wait)
        return found

    def metrics(self, exec_id: str) -> AsyncIterator[tuple[int, dict[str, Any]]]:
        """Call `Client.metrics` in a thread."""
        return items(lambda: self._client.metrics(exec_id))

    async def curves(self, exec_id: str, metrics: Sequence[str] = ()) -> list[Curve]:
        """Call `Client.curves` in a thread."""
        found: list[Curve] = await self._call("curves", exec_id, metrics)
        return found

    async def resources(self, exec_id: str) -> list[Curve]:
        """Call `Client.resources` in a thread."""
        found: list[Curve] = await self._call("resources", exec_id)
        return found

    async def code(self, exec_id: str) -> Code:
        """Call `Client.code` in a thread."""
        found: Code = await self._call("code", exec_id)
        return found

    async def label_execs(
        self, exec_ids: Sequence[str], *, add: Sequence[str] = (), remove: Sequence[str] = (), note: str | None = None,
        favorite: bool | None = None,
    ) -> list[Labelled]:
        """Call `Client.label_execs` in a thread."""
        found: list[Labelled] = await self._call(
            "label_execs", exec_ids, add=add, remove=remove, note=note, favorite=favorite,
        )
        return found

    async def tags(self) -> dict[str, int]:
        """Call `Client.tags` in a thread."""
        found: dict[str, int] = await self._call("tags")
        return found

    async def saved_views(self) -> list[SavedView]:
        """Call `Client.saved_views` in a thread."""
        found: list[SavedView] = await self._call("saved_views")
        return found

    async def save_view(
        self, name: str, *, find: str = "", state: str = "", sort_by: str = "", everyone: bool = False,
        columns: Sequence[str] = (),
    ) -> SavedView:
        """Call `Client.save_view` in a thread."""
        found: SavedView = await self._call(
            "save_view", name, find=find, state=state, sort_by=sort_by, everyone=everyone, columns=columns,
        )
        return found

    async def delete_view(self, name: str) -> None:
        """Call `Client.delete_view` in a thread."""
        await self._call("delete_view", name)

    async def engine_applications(
        self, states: Sequence[str] = (), start: int = 0, length: int = 10000,
    ) -> list[Application]:
        """Call `Client.engine_applications` in a thread."""
        found: list[Application] = await self._call("engine_applications", states, start, length)
        return found

    async def application(self, app_id: str) -> Application:
        """Call `Client.application` in a thread."""
        found: Application = await self._call("application", app_id)
        return found

    async def stop_application(self, app_id: str) -> Answer:
        """Call `Client.stop_application` in a thread."""
        found: Answer = await self._call("stop_application", app_id)
        return found

    async def stop_applications(self, app_ids: Sequence[str]) -> list[StopOutcome]:
        """Call `Client.stop_applications` in a thread."""
        found: list[StopOutcome] = await self._call("stop_applications", app_ids)
        return found

    async def applications(self, app_id: str) -> list[dict[str, Any]]:
        """Call `Client.applications` in a thread."""
        found: list[dict[str, Any]] = await self._call("applications", app_id)
        return found

    async def task_log(self, app_id: str, task: str, log: str) -> Answer:
        """Call `Client.task_log` in a thread."""
        found: Answer = await self._call("task_log", app_id, task, log)
        return found

    async def kubernetes_object(self, kind: str, name: str) -> dict[str, Any]:
        """Call `Client.kubernetes_object` in a thread."""
        found: dict[str, Any] = await self._call("kubernetes_object", kind, name)
        return found

    async def kubernetes_objects(self, kind: str) -> dict[str, Any]:
        """Call `Client.kubernetes_objects` in a thread."""
        found: dict[str, Any] = await self._call("kubernetes_objects", kind)
        return found

    async def slot_view(self) -> SlotView:
        """Call `Client.slot_view` in a thread."""
        found: SlotView = await self._call("slot_view")
        return found

    async def holdings(self, query: str | None = None) -> Holdings:
        """Call `Client.holdings` in a thread."""
        found: Holdings = await self._call("holdings", query)
        return found

    async def plans(self) -> Plan:
        """Call `Client.plans` in a thread."""
        found: Plan = await self._call("plans")
        return found

    async def plan(self, name: str) -> Plan:
        """Call `Client.plan` in a thread."""
        found: Plan = await self._call("plan", name)
        return found

    async def replace_plans(self, document: Any) -> Plan:
        """Call `Client.replace_plans` in a thread."""
        found: Plan = await self._call("replace_plans", document)
        return found

    async def plan_shares(self) -> list[dict[str, Any]]:
        """Call `Client.plan_shares` in a thread."""
        found: list[dict[str, Any]] = await self._call("plan_shares")
        return found

    async def preview_plans(self, document: Any) -> dict[str, Any]:
        """Call `Client.preview_plans` in a thread."""
        found: dict[str, Any] = await self._call("preview_plans", document)
        return found

    async def delete_plan(self, name: str) -> str:
        """Call `Client.delete_plan` in a thread."""
        found: str = await self._call("delete_plan", name)
        return found

    async def searches(self, query: str | None = None) -> list[Search]:
        """Call `Client.searches` in a thread."""
        found: list[Search] = await self._call("searches", query)
        return found

    async def start_search(self, body: Multipart, *, strict: bool = True) -> Answer:
        """Call `Client.start_search` in a thread."""
        found: Answer = await self._call("start_search", body, strict=strict)
        return found

    async def search_request(self, body: Multipart, *, strict: bool = True) -> Request:
        """Call `Client.search_request` in a thread."""
        found: Request = await self._call("search_request", body, strict=strict)
        return found

    async def importances(self, name: str) -> dict[str, float]:
        """Call `Client.importances` in a thread."""
        found: dict[str, float] = await self._call("importances", name)
        return found

    async def search_state(self, name: str) -> Search:
        """Call `Client.search_state` in a thread."""
        found: Search = await self._call("search_state", name)
        return found

    async def search_experiments(self, name: str, query: str) -> list[Experiment]:
        """Call `Client.search_experiments` in a thread."""
        found: list[Experiment] = await self._call("search_experiments", name, query)
        return found

    async def stop_search(self, name: str, force: bool = False) -> Answer:
        """Call `Client.stop_search` in a thread."""
        found: Answer = await self._call("stop_search", name, force)
        return found

    async def restart_search(self, name: str) -> Answer:
        """Call `Client.restart_search` in a thread."""
        found: Answer = await self._call("restart_search", name)
        return found

    async def delete_search(self, name: str) -> Answer:
        """Call `Client.delete_search` in a thread."""
        found: Answer = await self._call("delete_search", name)
        return found

    async def delete_searches(self) -> Answer:
        """Call `Client.delete_searches` in a thread."""
        found: Answer = await self._call("delete_searches")
        return found

    async def algorithms(self) -> list[Algorithm]:
        """Call `Client.algorithms` in a thread."""
        found: list[Algorithm] = await self._call("algorithms")
        return found

    async def algorithm(self, name: str) -> Algorithm:
        """Call `Client.algorithm` in a thread."""
        found: Algorithm = await self._call("algorithm", name)
        return found

    async def install_algorithm(
        self, path: str | os.PathLike[str], name: str | None = None, *, conda_home: str | None = None,
        conda_env: str | None = None, log_level: str | None = None,
    ) -> str:
        """Call `Client.install_algorithm` in a thread."""
        found: str = await self._call(
            "install_algorithm", path, name, conda_home=conda_home, conda_env=conda_env, log_level=log_level,
        )
        return found

    async def delete_algorithm(self, name: str) -> str:
        """Call `Client.delete_algorithm` in a thread."""
        found: str = await self._call("delete_algorithm", name)
        return found

    async def service_tokens(self, username: str | None = None, password: str | None = None) -> ServiceTokens:
        """Call `Client.service_tokens` in a thread."""
        found: ServiceTokens = await self._call("service_tokens", username, password)
        return found

    async def deploy_model(
        self, folder: str | os.PathLike[str], *, kernel_type: str | None = None, name: str | None = None,
        progress: Progress | None = None,
    ) -> DeployedModel:
        """Call `Client.deploy_model` in a thread."""
        found: DeployedModel = await self._call(
            "deploy_model", folder, kernel_type=kernel_type, name=name, progress=progress,
        )
        return found

    async def redeploy_model(
        self, folder: str | os.PathLike[str], *, kernel_type: str | None = None, name: str | None = None,
        progress: Progress | None = None,
    ) -> DeployedModel:
        """Call `Client.redeploy_model` in a thread."""
        found: DeployedModel = await self._call(
            "redeploy_model", folder, kernel_type=kernel_type, name=name, progress=progress,
        )
        return found

    async def models(self) -> list[DeployedModel]:
        """Call `Client.models` in a thread."""
        found: list[DeployedModel] = await self._call("models")
        return found

    async def model(self, name: str) -> DeployedModel:
        """Call `Client.model` in a thread."""
        found: DeployedModel = await self._call("model", name)
        return found

    async def start_model(self, name: str) -> None:
        """Call `Client.start_model` in a thread."""
        await self._call("start_model", name)

    async def stop_model(self, name: str) -> None:
        """Call `Client.stop_model` in a thread."""
        await self._call("stop_model", name)

    async def undeploy_model(self, name: str) -> None:
        """Call `Client.undeploy_model` in a thread."""
        await self._call("undeploy_model", name)

    async def serving(self, name: str) -> ServingState:
        """Call `Client.serving` in a thread."""
        found: ServingState = await self._call("serving", name)
        return found

    async def wait_model(self, name: str, timeout: float | None = 300.0) -> ServingState:
        """Call `Client.wait_model` in a thread."""
        found: ServingState = await self._call("wait_model", name, timeout)
        return found

    async def model_profile(self, name: str) -> dict[str, Any]:
        """Call `Client.model_profile` in a thread."""
        found: dict[str, Any] = await self._call("model_profile", name)
        return found

    async def change_profile(self, name: str, profile: Mapping[str, Any]) -> None:
        """Call `Client.change_profile` in a thread."""
        await self._call("change_profile", name, profile)

    async def model_readme(self, name: str) -> str:
        """Call `Client.model_readme` in a thread."""
        found: str = await self._call("model_readme", name)
        return found

    async def model_why(self, name: str) -> ModelWhy:
        """Call `Client.model_why` in a thread."""
        found: ModelWhy = await self._call("model_why", name)
        return found

    async def model_load(self, name: str) -> list[dict[str, Any]]:
        """Call `Client.model_load` in a thread."""
        found: list[dict[str, Any]] = await self._call("model_load", name)
        return found

    async def model_log(
        self, name: str, *, kernel: int | None = None, stream: str = "stderr", start: int = 0,
    ) -> LogPart:
        """Call `Client.model_log` in a thread."""
        found: LogPart = await self._call("model_log", name, kernel=kernel, stream=stream, start=start)
        return found

    def follow_model_log(
        self, name: str, *, kernel: int | None = None, stream: str = "stderr", start: int = 0,
    ) -> AsyncIterator[str]:
        """Call `Client.follow_model_log` in a thread."""
        return items(lambda: self._client.follow_model_log(name, kernel=kernel, stream=stream, start=start))

    async def model_traffic(self, name: str, weights: Mapping[int, int]) -> None:
        """Call `Client.model_traffic` in a thread."""
        await self._call("model_traffic", name, weights)

    async def promote_revision(self, name: str, revision: int) -> None:
        """Call `Client.promote_revision` in a thread."""
        await self._call("promote_revision", name, revision)

    async def rollback_model(self, name: str) -> None:
        """Call `Client.rollback_model` in a thread."""
        await self._call("rollback_model", name)

    async def share_model(self, name: str, users: Sequence[str] | bool) -> None:
        """Call `Client.share_model` in a thread."""
        await self._call("share_model", name, users)

    async def invoke(
        self, name: str, data: bytes | str | Mapping[str, Any] | Sequence[Any], *, timeout: float | None = None,
        content_type: str | None = None,
    ) -> bytes:
        """Call `Client.invoke` in a thread."""
        found: bytes = await self._call("invoke", name, data, timeout=timeout, content_type=content_type)
        return found

    def invoke_stream(
        self, name: str, data: bytes | str | Mapping[str, Any] | Sequence[Any], *, timeout: float | None = None,
        content_type: str | None = None,
    ) -> AsyncIterator[bytes]:
        """Call `Client.invoke_stream` in a thread."""
        return items(lambda: self._client.invoke_stream(name, data, timeout=timeout, content_type=content_type))

    async def runtimes(self) -> list[ServingRuntime]:
        """Call `Client.runtimes` in a thread."""
        found: list[ServingRuntime] = await self._call("runtimes")
        return found

    async def runtime(self, name: str) -> ServingRuntime:
        """Call `Client.runtime` in a thread."""
        found: ServingRuntime = await self._call("runtime", name)
        return found

    async def create_runtime(self, runtime: Mapping[str, Any]) -> None:
        """Call `Client.create_runtime` in a thread."""
        await self._call("create_runtime", runtime)

    async def change_runtime(self, name: str, runtime: Mapping[str, Any]) -> None:
        """Call `Client.change_runtime` in a thread."""
        await self._call("change_runtime", name, runtime)

    async def delete_runtime(self, name: str) -> None:
        """Call `Client.delete_runtime` in a thread."""
        await self._call("delete_runtime", name)

    async def saved_models(self) -> list[SavedModel]:
        """Call `Client.saved_models` in a thread."""
        found: list[SavedModel] = await self._call("saved_models")
        return found

    async def save_model(self, exec_id: str, name: str, path: str | None = None) -> SavedModel:
        """Call `Client.save_model` in a thread."""
        found: SavedModel = await self._call("save_model", exec_id, name, path)
        return found

    async def promote_saved(self, name: str, space: str, version: int | None = None) -> SavedModel:
        """Call `Client.promote_saved` in a thread."""
        found: SavedModel = await self._call("promote_saved", name, space, version)
        return found

    async def delete_saved(self, name: str, version: int | None = None) -> None:
        """Call `Client.delete_saved` in a thread."""
        await self._call("delete_saved", name, version)

    async def saved_loading(
        self, name: str, version: int | None = None, *, kernel: str = "", weight: str = "",
    ) -> ModelLoading:
        """Call `Client.saved_loading` in a thread."""
        found: ModelLoading = await self._call("saved_loading", name, version, kernel=kernel, weight=weight)
        return found

    async def deploy_saved(self, name: str, options: Mapping[str, Any] | None = None) -> DeployedModel:
        """Call `Client.deploy_saved` in a thread."""
        found: DeployedModel = await self._call("deploy_saved", name, options)
        return found

    async def definitions(self) -> list[SavedDefinition]:
        """Call `Client.definitions` in a thread."""
        found: list[SavedDefinition] = await self._call("definitions")
        return found

    async def definition(self, name: str, version: int | None = None) -> SavedDefinition:
        """Call `Client.definition` in a thread."""
        found: SavedDefinition = await self._call("definition", name, version)
        return found

    async def definition_versions(self, name: str) -> list[SavedDefinition]:
        """Call `Client.definition_versions` in a thread."""
        found: list[SavedDefinition] = await self._call("definition_versions", name)
        return found

    async def definition_code(self, name: str, version: int | None = None) -> Code:
        """Call `Client.definition_code` in a thread."""
        found: Code = await self._call("definition_code", name, version)
        return found

    async def save_definition(
        self, definition: Mapping[str, Any], code: str | os.PathLike[str] | None = None,
        progress: Progress | None = None,
    ) -> SavedDefinition:
        """Call `Client.save_definition` in a thread."""
        found: SavedDefinition = await self._call("save_definition", definition, code, progress)
        return found

    async def delete_definition(self, name: str) -> None:
        """Call `Client.delete_definition` in a thread."""
        await self._call("delete_definition", name)

    async def hardware_specifications(self) -> list[SavedHardware]:
        """Call `Client.hardware_specifications` in a thread."""
        found: list[SavedHardware] = await self._call("hardware_specifications")
        return found

    async def hardware_specification(self, name: str, version: int | None = None) -> SavedHardware:
        """Call `Client.hardware_specification` in a thread."""
        found: SavedHardware = await self._call("hardware_specification", name, version)
        return found

    async def hardware_versions(self, name: str) -> list[SavedHardware]:
        """Call `Client.hardware_versions` in a thread."""
        found: list[SavedHardware] = await self._call("hardware_versions", name)
        return found

    async def save_hardware(self, hardware: Mapping[str, Any]) -> SavedHardware:
        """Call `Client.save_hardware` in a thread."""
        found: SavedHardware = await self._call("save_hardware", hardware)
        return found

    async def delete_hardware(self, name: str) -> None:
        """Call `Client.delete_hardware` in a thread."""
        await self._call("delete_hardware", name)

    async def experiments(self) -> list[SavedExperiment]:
        """Call `Client.experiments` in a thread."""
        found: list[SavedExperiment] = await self._call("experiments")
        return found

    async def experiment(self, name: str, version: int | None = None) -> SavedExperiment:
        """Call `Client.experiment` in a thread."""
        found: SavedExperiment = await self._call("experiment", name, version)
        return found

    async def experiment_versions(self, name: str) -> list[SavedExperiment]:
        """Call `Client.experiment_versions` in a thread."""
        found: list[SavedExperiment] = await self._call("experiment_versions", name)
        return found

    async def save_experiment(self, experiment: Mapping[str, Any]) -> SavedExperiment:
        """Call `Client.save_experiment` in a thread."""
        found: SavedExperiment = await self._call("save_experiment", experiment)
        return found

    async def check_experiment(self, experiment: Mapping[str, Any]) -> PlanMistakes:
        """Call `Client.check_experiment` in a thread."""
        found: PlanMistakes = await self._call("check_experiment", experiment)
        return found

    async def run_experiment(self, name: str, version: int | None = None, key: str | None = None) -> RunOfExperiment:
        """Call `Client.run_experiment` in a thread."""
        found: RunOfExperiment = await self._call("run_experiment", name, version, key)
        return found

    async def continue_experiment(self, name: str, run: int) -> RunOfExperiment:
        """Call `Client.continue_experiment` in a thread."""
        found: RunOfExperiment = await self._call("continue_experiment", name, run)
        return found

    async def experiment_runs(self, name: str, limit: int = 20) -> list[RunOfExperiment]:
        """Call `Client.experiment_runs` in a thread."""
        found: list[RunOfExperiment] = await self._call("experiment_runs", name, limit)
        return found

    async def delete_experiment(self, name: str) -> None:
        """Call `Client.delete_experiment` in a thread."""
        await self._call("delete_experiment", name)

    async def upload_data(
        self, path: str | os.PathLike[str], to: str = "", *, volume: str = "", replace: bool = False,
        progress: Progress | None = None,
    ) -> StoredData:
        """Call `Client.upload_data` in a thread."""
        found: StoredData = await self._call(
            "upload_data", path, to, volume=volume, replace=replace, progress=progress,
        )
        return found

    async def close(self) -> None:
        """Call `Client.close` in a thread."""
        await self._call("close")

    async def conf(self) -> dict[str, Any]:
        """Call `Client.conf` in a thread."""
        found: dict[str, Any] = await self._call("conf")
        return found

    async def extensions(self) -> frozenset[str]:
        """Call `Client.extensions` in a thread."""
        found: frozenset[str] = await self._call("extensions")
        return found


class AsyncJob:
    """The methods of `Job` as coroutines, for asyncio. `AsyncClient` explains the differences."""

    def __init__(self, job: Job) -> None:
        """Make an asynchronous handle from another handle."""
        self._job = job

    @property
    def exec(self) -> Exec:
        """The job as the server returned it last."""
        return self._job.exec

    async def _call(self, method: str, /, *args: Any, **named: Any) -> Any:
        found = await in_thread(getattr(self._job, method), *args, **named)
        return self if found is self._job else found

    def __repr__(self) -> str:
        return repr(self._job)

    def _repr_html_(self) -> str:
        return self._job._repr_html_()

    @property
    def id(self) -> str:
        """Id of the job, such as `local-1`."""
        return self._job.id

    @property
    def name(self) -> str:
        """Name of the job. The text is empty if the submission gave no name."""
        return self._job.name

    @property
    def state(self) -> str:
        """State of the job in `exec`, such as `RUNNING`. `refresh` asks the server for the present state."""
        return self._job.state

    async def refresh(self) -> AsyncJob:
        """Call `Job.refresh` in a thread."""
        found: AsyncJob = await self._call("refresh")
        return found

    async def wait(self, timeout: float | None = None) -> AsyncJob:
        """Call `Job.wait` in a thread."""
        found: AsyncJob = await self._call("wait", timeout)
        return found

    async def check(self, timeout: float | None = None) -> AsyncJob:
        """Call `Job.check` in a thread."""
        found: AsyncJob = await self._call("check", timeout)
        return found

    @overload
    def logs(self, tail: int | None = None, follow: Literal[False] = False) -> Coroutine[Any, Any, str]: ...

    @overload
    def logs(self, tail: int | None = None, *, follow: Literal[True]) -> AsyncIterator[str]: ...

    def logs(self, tail: int | None = None, follow: bool = False) -> Coroutine[Any, Any, str] | AsyncIterator[str]:
        """Call `Job.logs` in a thread."""
        if follow:
            return items(lambda: self._job.logs(tail, follow=True))
        return self._call("logs", tail, follow)

    async def curves(self, *names: str) -> Curves:
        """Call `Job.curves` in a thread."""
        found: Curves = await self._call("curves", *names)
        return found

    async def resources(self) -> Curves:
        """Call `Job.resources` in a thread."""
        found: Curves = await self._call("resources")
        return found

    async def metrics(self, *names: str) -> Any:
        """Call `Job.metrics` in a thread."""
        found: Any = await self._call("metrics", *names)
        return found

    async def result(self, timeout: float | None = None) -> Any:
        """Call `Job.result` in a thread."""
        found: Any = await self._call("result", timeout)
        return found

    async def result_files(self) -> list[File]:
        """Call `Job.result_files` in a thread."""
        found: list[File] = await self._call("result_files")
        return found

    async def fetch(self, path: str, to: str | Path = ".", force: bool = False) -> Path:
        """Call `Job.fetch` in a thread."""
        found: Path = await self._call("fetch", path, to, force)
        return found

    async def stop(self) -> AsyncJob:
        """Call `Job.stop` in a thread."""
        found: AsyncJob = await self._call("stop")
        return found

    async def delete(self) -> None:
        """Call `Job.delete` in a thread."""
        await self._call("delete")


class AsyncJobs(list[AsyncJob]):
    """A list of jobs that a notebook shows as a table."""

    def __repr__(self) -> str:
        return repr(self._plain())

    def _repr_html_(self) -> str:
        return self._plain()._repr_html_()

    def _plain(self) -> Jobs:
        return Jobs(one._job for one in self)


class AsyncSearchJob:
    """The methods of `SearchJob` as coroutines, for asyncio. `AsyncClient` explains the differences."""

    def __init__(self, searchjob: SearchJob) -> None:
        """Make an asynchronous handle from another handle."""
        self._searchjob = searchjob

    @property
    def search(self) -> Search:
        """The search as the server returned it last."""
        return self._searchjob.search

    async def _call(self, method: str, /, *args: Any, **named: Any) -> Any:
        found = await in_thread(getattr(self._searchjob, method), *args, **named)
        return self if found is self._searchjob else found

    def __repr__(self) -> str:
        return repr(self._searchjob)

    def _repr_html_(self) -> str:
        return self._searchjob._repr_html_()

    @property
    def name(self) -> str:
        """Name of the search."""
        return self._searchjob.name

    @property
    def state(self) -> str:
        """State of the search in `search`, such as `RUNNING`. `refresh` asks the server for the present state."""
        return self._searchjob.state

    @property
    def best(self) -> Experiment | None:
        """Experiment with the best value in `search`. None before the first experiment has finished."""
        return self._searchjob.best

    @property
    def experiments(self) -> list[Experiment]:
        """Experiments in `search`."""
        return self._searchjob.experiments

    async def refresh(self) -> AsyncSearchJob:
        """Call `SearchJob.refresh` in a thread."""
        found: AsyncSearchJob = await self._call("refresh")
        return found

    async def wait(self, timeout: float | None = None) -> AsyncSearchJob:
        """Call `SearchJob.wait` in a thread."""
        found: AsyncSearchJob = await self._call("wait", timeout)
        return found

    async def stop(self, force: bool = False) -> AsyncSearchJob:
        """Call `SearchJob.stop` in a thread."""
        found: AsyncSearchJob = await self._call("stop", force)
        return found

    async def restart(self) -> AsyncSearchJob:
        """Call `SearchJob.restart` in a thread."""
        found: AsyncSearchJob = await self._call("restart")
        return found

    async def delete(self) -> None:
        """Call `SearchJob.delete` in a thread."""
        await self._call("delete")

    async def importances(self) -> dict[str, float]:
        """Call `SearchJob.importances` in a thread."""
        found: dict[str, float] = await self._call("importances")
        return found

    async def to_dataframe(self) -> Any:
        """Call `SearchJob.to_dataframe` in a thread."""
        found: Any = await self._call("to_dataframe")
        return found
