"""The calls about models that serve requests: deployment, life cycle, revisions and requests."""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from dlicmd.contract import dlim
from dlicmd.contract.reading import objects, words
from dlicmd.sdk import cancel
from dlicmd.sdk.backend import EmbeddedTransport
from dlicmd.sdk.calls import (
    ACCEPTED,
    JSON,
    REFUSED,
    SUBMIT_TIMEOUT,
    Calls,
    an_object,
    checked,
    checked_token,
    refused,
)
from dlicmd.sdk.errors import (
    Denied,
    ModelFailed,
    ServerError,
    WaitTimeout,
)
from dlicmd.sdk.messages import Progress, silent
from dlicmd.sdk.model_objects import DeployedModel, LogPart, ModelWhy, ServiceTokens, ServingState
from dlicmd.sdk.model_store_calls import accepted, checked_name
from dlicmd.sdk.transport import READ_TIMEOUT, Answer, Multipart, Request

#: Seconds that a model may take for an answer; the server ends the request earlier by the profile of the model.
INVOKE_TIMEOUT = 3600.0
#: Seconds between two polls of a wait, and of a log.
POLL = 0.5
#: Seconds that the server may need to start a kernel: `wait_model` waits as long by default.
START_TIMEOUT = 300.0


class ModelCalls(Calls):
    """Calls about models that serve requests."""

    #: The service token of the local backend, after the first request that needs it.
    _requests_token: str | None = None

    def service_tokens(self, username: str | None = None, password: str | None = None) -> ServiceTokens:
        """Return tokens of the inference service.

        Args:
            username: Name of the user. None stands for the user of this client's token.
            password: Password of the user.

        Returns:
            The token of the user, and the token that only sends requests. Without `username`, the former is that of
                this client.

        Raises:
            Denied: The server refuses the user name, the password or the token.
            ServerError: The answer contains no token.
        """
        if username is None:
            found = an_object(self._call("POST", dlim.SERVICE_TOKEN, {"Content-Length": "0"}))
            return ServiceTokens(self._token or "", _token(found, dlim.INFERENCE_TOKEN))
        basic = base64.b64encode(f"{username}:{password or ''}".encode()).decode()
        headers = {"Authorization": f"Basic {basic}", "Accept": ACCEPTED, "Content-Length": "0"}
        answer = self._transport.send(Request("POST", dlim.TOKEN, headers, timeout=self._timeout or READ_TIMEOUT,
                                              final=True))
        if answer.status in REFUSED:
            raise refused(Denied, "the server refused the user name or the password", answer)
        found = an_object(checked(answer, "the logon"))
        user = found.get(dlim.USER_TOKEN) or found.get(dlim.ACCESS_TOKEN)
        return ServiceTokens(_token({dlim.USER_TOKEN: user}, dlim.USER_TOKEN), _token(found, dlim.INFERENCE_TOKEN))

    # Deployment

    def deploy_model(
        self, folder: str | os.PathLike[str], *, kernel_type: str | None = None, name: str | None = None,
        progress: Progress | None = None,
    ) -> DeployedModel:
        """Deploy a folder as a new model. The client checks the folder before it packs any file.

        Args:
            folder: Folder with `model.json`, `README.md` and the file of the kernel.
            kernel_type: Kind of a ready-made kernel: `onnx`, `torch`, `sklearn`, `xgboost` or `huggingface`. The
                folder then needs only the model.
            name: Name of the model, only with `kernel_type`. The default is that of `model.json`, or of the folder.
            progress: Shows the progress. None shows nothing.

        Raises:
            UsageProblem: There is no such folder, or a name is wrong.
            PackageError: A file is missing or cannot be read, or `model.json` is wrong.
            SubmissionRefused: The server refuses the model (HTTP 400).
            ServerError: A model with this name exists.
        """
        return self._deployed("", folder, kernel_type, name, progress)

    def redeploy_model(
        self, folder: str | os.PathLike[str], *, kernel_type: str | None = None, name: str | None = None,
        progress: Progress | None = None,
    ) -> DeployedModel:
        """Deploy a folder as the next revision of a model that exists. The arguments and errors are those of
        `deploy_model`.

        Raises:
            NoSuchModel: No model has this name.
        """
        return self._deployed(dlim.NAME, folder, kernel_type, name, progress)

    def _deployed(
        self, again: str, folder: str | os.PathLike[str], kernel_type: str | None, name: str | None,
        progress: Progress | None,
    ) -> DeployedModel:
        from dlicmd.sdk.deployment import model_folder  # packs, for this call alone

        found = model_folder(os.fspath(folder), kernel_type, name)
        given = {dlim.KERNEL_TYPE: kernel_type, dlim.NAME: found.name if kernel_type else None}
        query = urlencode({key: value for key, value in given.items() if value is not None})
        path = dlim.deployment_path(found.name if again else "") + (f"?{query}" if query else "")
        show = progress or silent
        part = found.packed(show)
        with part.file, show(f"uploading {found.name}", part.size) as shown:
            body = Multipart([part], progress=shown)
            answer = self._send("POST", path, {"Content-Type": body.content_type}, body, SUBMIT_TIMEOUT)
        answer = accepted(answer, "the model", found.name)
        try:
            return DeployedModel({dlim.NAME: found.name, **an_object(answer)})
        except ServerError:  # some servers answer with a text
            return DeployedModel({dlim.NAME: found.name})

    # Models

    def models(self) -> list[DeployedModel]:
        """Return the models that you may use."""
        found = self._call("GET", dlim.MODELS).json()
        listed = found.get(dlim.MODEL_LIST) if isinstance(found, dict) else found
        if not isinstance(listed, list):
            raise ServerError("the server's answer is not a list of models: does it serve models?", 200)
        return [DeployedModel(one) for one in objects(listed)]

    def model(self, name: str) -> DeployedModel:
        """Return one model.

        Args:
            name: Name of the model.

        Raises:
            NoSuchModel: No model has this name.
        """
        return DeployedModel(an_object(self._model_call("GET", name)))

    def start_model(self, name: str) -> None:
        """Start the kernels of a model. The call does not wait for them.

        Args:
            name: Name of the model.

        Raises:
            NoSuchModel: No model has this name.
        """
        self._model_call("PUT", name, dlim.START)

    def stop_model(self, name: str) -> None:
        """Stop the kernels of a model. The call does not wait for them.

        Args:
            name: Name of the model.

        Raises:
            NoSuchModel: No model has this name.
        """
        self._model_call("PUT", name, dlim.STOP)

    def undeploy_model(self, name: str) -> None:
        """Delete a stopped model with all its revisions.

        Args:
            name: Name of the model.

        Raises:
            NoSuchModel: No model has this name.
            ServerError: The model is started.
        """
        self._model_call("DELETE", name)

    def serving(self, name: str) -> ServingState:
        """Return what a model does now, with its kernels.

        Args:
            name: Name of the model.

        Raises:
            NoSuchModel: No model has this name.
        """
        return ServingState(an_object(self._model_call("GET", name, dlim.INSTANCE)))

    def wait_model(self, name: str, timeout: float | None = START_TIMEOUT) -> ServingState:
        """Wait until a model answers requests. If its newest revision starts, wait for that one.

        A model whose profile has `kernel_min` 0 is ready without a kernel, because a request starts one.

        Args:
            name: Name of the model.
            timeout: Seconds to wait. None waits without a limit.

        Raises:
            NoSuchModel: No model has this name.
            ModelFailed: The kernels cannot start, or the model is stopped.
            WaitTimeout: The model was not ready in time. It continues to start.
        """
        end = None if timeout is None else time.monotonic() + timeout
        may_be_zero = _fewest(self.model_profile(name)) == 0
        while True:
            found, model = self.serving(name), self.model(name)
            newest = model.revisions[-1] if model.revisions else None
            state = "" if newest is None else newest.state.lower()
            if newest is not None and state == dlim.FAILED_REVISION:
                raise ModelFailed(name, dlim.FAILED_STATE, newest.message or model.message)
            if model.state in (dlim.FAILED_STATE, dlim.STOPPED):
                raise ModelFailed(name, model.state, model.message or found.message)
            has_kernel = may_be_zero or any(one.status == dlim.IDLE for one in found.kernels)
            if found.status == dlim.ENABLED and has_kernel and state != dlim.STARTING_REVISION:
                return found
            if end is not None and time.monotonic() >= end:
                why = model.message or found.message
                raise WaitTimeout(f"the model '{name}' was not ready within {timeout:g} s and continues to start"
                                  + (f": {why}" if why else ""))
            cancel.sleep(POLL)

    def model_profile(self, name: str) -> dict[str, Any]:
        """Return the profile of a model: how many kernels it may have, and what each one gets.

        Args:
            name: Name of the model.

        Raises:
            NoSuchModel: No model has this name.
        """
        return an_object(self._model_call("GET", name, dlim.PROFILE))

    def change_profile(self, name: str, profile: Mapping[str, Any]) -> None:
        """Replace the profile of a model.

        Args:
            name: Name of the model.
            profile: The profile as `model_profile` returns it, with other values.

        Raises:
            NoSuchModel: No model has this name.
            SubmissionRefused: The server refuses a value.
            ServerError: The model must be stopped first.
        """
        self._change(name, dlim.PROFILE, dict(profile), "the profile")

    def model_readme(self, name: str) -> str:
        """Return the README of a model.

        Args:
            name: Name of the model.

        Raises:
            NoSuchModel: No model has this name.
        """
        return words(an_object(self._model_call("GET", name, dlim.README)).get(dlim.READ_ME))

    def model_why(self, name: str) -> ModelWhy:
        """Return why a model does not serve, or has fewer kernels than it wants (local backend).

        Args:
            name: Name of the model.

        Raises:
            NoSuchModel: No model has this name.
        """
        return ModelWhy(an_object(self._model_call("GET", name, dlim.WHY)))

    def model_load(self, name: str) -> list[dict[str, Any]]:
        """Return what a model did in the last 15 minutes (local backend): an object for each 5 seconds, oldest first,
        with `when` (epoch seconds), `requests` and `failed` per second, `waiting`, `running` and `kernels`, and the
        latencies `p50` and `p99` in seconds if there were answers.

        Args:
            name: Name of the model.

        Raises:
            NoSuchModel: No model has this name.
        """
        return [dict(one) for one in objects(self._model_call("GET", name, dlim.LOAD).json())]

    def model_log(
        self, name: str, *, kernel: int | None = None, stream: str = dlim.STDERR, start: int = 0,
    ) -> LogPart:
        """Return what a kernel of a model wrote (local backend).

        Args:
            name: Name of the model.
            kernel: Number of the kernel. None stands for the newest one.
            stream: `stdout`, `stderr`, or `launcherlog` of the process that starts kernels.
            start: Offset of the first byte: 0, or the `end` of an earlier part.

        Raises:
            NoSuchModel: No model has this name.
        """
        query = {dlim.STREAM: stream, dlim.FROM: str(start)} | ({} if kernel is None else {dlim.KERNEL: str(kernel)})
        answer = self._model_call("GET", name, f"{dlim.LOGS}?{urlencode(query)}")
        told = answer.headers.get(dlim.NEXT_OFFSET.lower(), "")
        return LogPart(answer.text(), int(told[:18]) if told.isascii() and told.isdigit() else
                       start + len(answer.body()))

    def follow_model_log(
        self, name: str, *, kernel: int | None = None, stream: str = dlim.STDERR, start: int = 0,
    ) -> Iterator[str]:
        """Yield what a kernel of a model writes, as it arrives, until the model is stopped (local backend).

        Args:
            name: Name of the model.
            kernel: Number of the kernel. None stands for the newest one.
            stream: As for `model_log`.
            start: Offset of the first byte.

        Returns:
            Pieces of text.

        Raises:
            NoSuchModel: No model has this name.
        """
        at = start
        while True:
            is_started = self.model(name).is_started
            part = self.model_log(name, kernel=kernel, stream=stream, start=at)
            at = part.end
            if part.text:
                yield part.text
            elif not is_started:
                return
            else:
                cancel.sleep(POLL)

    # Revisions

    def model_traffic(self, name: str, weights: Mapping[int, int]) -> None:
        """Divide the requests for a model between its revisions (local backend).

        Args:
            name: Name of the model.
            weights: Number of each revision → its part of the requests, such as `{3: 90, 4: 10}`.

        Raises:
            NoSuchModel: No model has this name.
            SubmissionRefused: The server refuses the revisions or weights.
        """
        self._change(name, dlim.TRAFFIC, {str(number): weight for number, weight in weights.items()}, "the traffic")

    def promote_revision(self, name: str, revision: int) -> None:
        """Send all requests for a model to one revision (local backend).

        Args:
            name: Name of the model.
            revision: Number of the revision.

        Raises:
            NoSuchModel: No model has this name.
        """
        self._model_call("PUT", name, f"{dlim.PROMOTE}?{dlim.REVISION}={int(revision)}")

    def rollback_model(self, name: str) -> None:
        """Send all requests for a model to the revision that had them before (local backend).

        Args:
            name: Name of the model.

        Raises:
            NoSuchModel: No model has this name.
        """
        self._model_call("PUT", name, dlim.ROLLBACK)

    def share_model(self, name: str, users: Sequence[str] | bool) -> None:
        """Let other users send requests to a model (local backend).

        Args:
            name: Name of the model.
            users: Names of the users, in place of those before. True shares the model with all users, False with none.

        Raises:
            NoSuchModel: No model has this name.
            SubmissionRefused: The server does not know a user.
        """
        self._change(name, dlim.SHARED, users if users is True else list(users or ()), "the users")

    # Requests

    def invoke(
        self, name: str, data: bytes | str | Mapping[str, Any] | Sequence[Any], *, timeout: float | None = None,
        content_type: str | None = None,
    ) -> bytes:
        """Send a request to a model, and return its answer.

        The first request of a client to a model goes through the server. Later ones go directly to the address that
        the model names, if that is on the same host as the server.

        Args:
            name: Name of the model.
            data: Body of the request. A mapping or list is sent as JSON.
            timeout: Seconds for which the answer is useful. The server ends the request then. None stands for the
                limit in the profile of the model.
            content_type: Type of the body. The default is JSON for a mapping, a list, and a text that begins like
                JSON.

        Returns:
            The answer of the kernel, unchanged.

        Raises:
            NoSuchModel: No model has this name.
            ServerError: The model does not answer: HTTP 429 if too many requests wait, 503 if it is stopped, 504 if it
                did not answer in time.
        """
        return self._invoked(name, data, timeout, content_type, streamed=False).body()

    def invoke_stream(
        self, name: str, data: bytes | str | Mapping[str, Any] | Sequence[Any], *, timeout: float | None = None,
        content_type: str | None = None,
    ) -> Iterator[bytes]:
        """Send a request to a model, and yield its answer in pieces as they arrive. The arguments and errors are those
        of `invoke`.

        Returns:
            Pieces of the answer.
        """
        yield from self._invoked(name, data, timeout, content_type, streamed=True).chunks()

    def _invoked(
        self, name: str, data: bytes | str | Mapping[str, Any] | Sequence[Any], timeout: float | None,
        content_type: str | None, streamed: bool,
    ) -> Answer:
        body = _body(data)
        headers = {"Accept": "*/*", "Content-Type": content_type or _type_of(body)}
        if timeout is not None:
            headers[dlim.REQUEST_TIMEOUT] = f"{timeout:g}"
        patience = INVOKE_TIMEOUT if timeout is None else timeout + READ_TIMEOUT
        path = dlim.inference_path(checked_name(name))
        request = self._request("POST", path, headers, body, patience)._replace(streamed=streamed)
        answer = self._sent_directly(name, request) or self._sent(request)
        return accepted(answer, f"the request to the model {name}", name, of_kernel=True)

    def _sent_directly(self, name: str, request: Request) -> Answer | None:
        """Return the answer of the address that a model names; None if the request must go through the server."""
        gateways = self.gateways
        if gateways is None or not gateways.is_used(name):
            return None
        try:
            if gateways.url_of(name) is None:
                url = self.model(name).service_uri
                if not url:
                    return None  # it is stopped now
                gateways.learn(name, url)
            # The local backend ignores the token of this client, but its gateway does not.
            token = self._own_token() if isinstance(self._way, EmbeddedTransport) else self._token
        except ServerError:  # a token that only sends requests may not ask, and the server knows what is wrong
            gateways.learn(name, "")
            return None
        if token is None:
            return None
        return gateways.send(name, request._replace(headers={**request.headers, "Authorization": f"Bearer {token}"}))

    def _own_token(self) -> str:
        """Return a service token for the local backend, whose own token the client does not know."""
        if self._requests_token is None:
            self._requests_token = self.service_tokens().service
        return self._requests_token

    # Common parts

    def _model_call(self, method: str, name: str, action: str = "", body: bytes | None = None) -> Answer:
        """Send a call about one model. Raises NoSuchModel when no model has this name."""
        path = dlim.model_path(checked_name(name), action)
        headers = {"Content-Type": JSON} if body is not None else {"Content-Length": "0"} if method == "PUT" else None
        return accepted(self._send(method, path, headers, body), f"the call for the model {name}", name)

    def _change(self, name: str, action: str, value: Any, what: str) -> None:
        path = dlim.model_path(checked_name(name), action)
        accepted(self._send("PUT", path, {"Content-Type": JSON}, json.dumps(value).encode()), what, name)


def _token(found: Mapping[str, Any], key: str) -> str:
    """Return a token of an answer. Raises ServerError without one, and Denied for one that no header can carry."""
    token = found.get(key)
    if not isinstance(token, str) or not token:
        raise ServerError(f"the server's answer contains no {key}", 200)
    return checked_token(token, "the server's answer")


def _body(data: bytes | str | Mapping[str, Any] | Sequence[Any]) -> bytes:
    if isinstance(data, bytes):
        return data
    return data.encode() if isinstance(data, str) else json.dumps(data).encode()


def _type_of(body: bytes) -> str:
    """Return the type of a body that begins like JSON, or that of any bytes."""
    return JSON if body.lstrip()[:1] in (b"{", b"[") else "application/octet-stream"


def _fewest(profile: Mapping[str, Any]) -> Any:
    """Return the fewest kernels of a profile, or None."""
    policy = profile.get("policy")
    return policy.get("kernel_min") if isinstance(policy, Mapping) else None
