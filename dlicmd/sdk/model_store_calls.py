"""The calls about runtimes of kernels, and about the model store; the meaning of answers of the inference service."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from dlicmd.contract import dlim
from dlicmd.contract.reading import objects
from dlicmd.sdk.calls import (
    BAD_REQUEST,
    JSON,
    NOT_FOUND,
    SUBMIT_TIMEOUT,
    Calls,
    a_list,
    an_object,
    checked,
    refused,
)
from dlicmd.sdk.errors import NoSuchExec, NoSuchModel, NoSuchObject, ServerError, SubmissionRefused
from dlicmd.sdk.model_objects import DeployedModel, ModelLoading, SavedModel, ServingRuntime
from dlicmd.sdk.transport import Answer

#: HTTP codes of requests to models: too many wait; from the second one on, the model or the gateway failed.
BUSY, FAILED = 429, 500


class ModelStoreCalls(Calls):
    """Calls about runtimes and saved models."""

    # Runtimes

    def runtimes(self) -> list[ServingRuntime]:
        """Return the runtimes of the server."""
        return [ServingRuntime(one) for one in objects(an_object(self._call("GET", dlim.RUNTIMES)).get(
            dlim.RUNTIME_LIST))]

    def runtime(self, name: str) -> ServingRuntime:
        """Return one runtime.

        Args:
            name: Name of the runtime.

        Raises:
            NoSuchObject: No runtime has this name.
        """
        return ServingRuntime(an_object(self._runtime_call("GET", name)))

    def create_runtime(self, runtime: Mapping[str, Any]) -> None:
        """Create a runtime.

        Args:
            runtime: The runtime, with its name as `type`.

        Raises:
            SubmissionRefused: The server refuses the runtime.
        """
        self._sent_json("POST", dlim.RUNTIMES, dict(runtime), "the runtime")

    def change_runtime(self, name: str, runtime: Mapping[str, Any]) -> None:
        """Replace a runtime.

        Args:
            name: Name of the runtime.
            runtime: The runtime, as for `create_runtime`.

        Raises:
            NoSuchObject: No runtime has this name.
            SubmissionRefused: The server refuses the runtime.
        """
        self._runtime_call("PUT", name, json.dumps(dict(runtime)).encode())

    def delete_runtime(self, name: str) -> None:
        """Delete a runtime.

        Args:
            name: Name of the runtime.

        Raises:
            NoSuchObject: No runtime has this name.
        """
        self._runtime_call("DELETE", name)

    # Model store

    def saved_models(self) -> list[SavedModel]:
        """Return the models of the model store (local backend)."""
        return [SavedModel(one) for one in a_list(self._call("GET", dlim.STORE))]

    def save_model(self, exec_id: str, name: str, path: str | None = None) -> SavedModel:
        """Save the model of a finished exec under a name in the model store (local backend).

        Args:
            exec_id: Id of the exec.
            name: Name of the model. A name that exists gets a new version.
            path: File or folder of the result; `.` for the whole result. The default is the files that serving needs,
                without the states from which a training continues.

        Raises:
            NoSuchExec: No exec has this id.
            SubmissionRefused: The server refuses the name or the path.
            ServerError: The exec has not finished.
        """
        given = {dlim.NAME: name, dlim.EXEC: exec_id, dlim.PATH: path}
        asked = {key: value for key, value in given.items() if value is not None}
        try:
            return SavedModel({**asked, **self._sent_json("POST", dlim.STORE, asked, f"the exec {exec_id}")})
        except ServerError as problem:
            if problem.code == NoSuchExec.code:
                raise NoSuchExec(exec_id, problem.status, problem.body) from None
            raise

    def promote_saved(self, name: str, space: str, version: int | None = None) -> SavedModel:
        """Promote a model of the model store to a space, whose models all users see (local backend).

        Args:
            name: Name of the model.
            space: Name of the space.
            version: Version of the model. None stands for the newest one.

        Raises:
            NoSuchObject: The model store has no model with this name.
        """
        asked: dict[str, Any] = {dlim.SPACE: space} | ({} if version is None else {dlim.VERSION: version})
        return SavedModel({dlim.NAME: name, **self._sent_json(
            "PUT", dlim.store_path(checked_name(name), dlim.TO_SPACE), asked, f"the model {name}")})

    def delete_saved(self, name: str, version: int | None = None) -> None:
        """Delete a model of the model store. Models that were deployed from it stay (local backend).

        Args:
            name: Name of the model.
            version: Version of the model. None deletes all versions.

        Raises:
            NoSuchObject: The model store has no such model.
        """
        query = "" if version is None else f"?{dlim.VERSION}={int(version)}"
        accepted(self._send("DELETE", dlim.store_path(checked_name(name)) + query), f"the model {name}")

    def saved_loading(
        self, name: str, version: int | None = None, *, kernel: str = "", weight: str = ""
    ) -> ModelLoading:
        """Return the kernel, the weights and the class that a deployment of a saved model uses (local backend).

        Args:
            name: Name of the model.
            version: Version of the model. None stands for the newest one.
            kernel: `kernel` of the deployment. "" lets the server find it.
            weight: `weight` of the deployment. "" lets the server find it.

        Raises:
            NoSuchObject: The model store has no model with this name.
        """
        given = {dlim.VERSION: version, dlim.KERNEL_FILE: kernel, dlim.WEIGHT_FILE: weight}
        query = urlencode({key: value for key, value in given.items() if value})
        answer = self._send("GET", f"{dlim.store_path(checked_name(name), dlim.DEPLOY)}{'?' if query else ''}{query}")
        return ModelLoading(an_object(accepted(answer, f"the model {name}")))

    def deploy_saved(self, name: str, options: Mapping[str, Any] | None = None) -> DeployedModel:
        """Deploy a model of the model store (local backend).

        Args:
            name: Name of the model.
            options: Keys of the request: `kernel` (a file) or `kernel_type`, and `name`, `runtime`, `weight`, `tag`,
                `attributes`, `environments`, `version`.

        Raises:
            NoSuchObject: The model store has no model with this name.
            SubmissionRefused: The server refuses the deployment.
        """
        return DeployedModel({dlim.NAME: name, **self._sent_json(
            "POST", dlim.store_path(checked_name(name), dlim.DEPLOY), dict(options or {}), f"the model {name}")})

    # Common parts

    def _runtime_call(self, method: str, name: str, body: bytes | None = None) -> Answer:
        headers = {"Content-Type": JSON} if body else None
        answer = self._send(method, dlim.runtime_path(checked_name(name)), headers, body)
        return accepted(answer, f"the runtime {name}")

    def _sent_json(self, method: str, path: str, value: Any, what: str) -> dict[str, Any]:
        """Send a JSON value, and return the object of the answer, empty if the answer is none."""
        answer = self._send(method, path, {"Content-Type": JSON}, json.dumps(value).encode(), SUBMIT_TIMEOUT)
        try:
            return an_object(accepted(answer, what))
        except ServerError as problem:
            if problem.status >= 300:
                raise
            return {}


def accepted(answer: Answer, what: str, model: str | None = None, *, of_kernel: bool = False) -> Answer:
    """Return the answer if it is a success. Raises NoSuchModel for an unknown model of this name, NoSuchObject for
    anything else that the server does not know, SubmissionRefused for a wrong value, and ServerError. `of_kernel`: the
    call sends a request, so the body is not that of dlicmd."""
    is_unknown = answer.status == NOT_FOUND and not answer.code.startswith("http.")
    if is_unknown and model is not None and answer.code in ("", dlim.NO_SUCH_MODEL):
        raise NoSuchModel(model, answer.status)
    if is_unknown:
        raise refused(NoSuchObject, f"the server refused {what}", answer)
    if of_kernel and (answer.status == BUSY or answer.status >= FAILED):
        raise refused(ServerError, f"the model {model} gave no answer (HTTP {answer.status})", answer)
    if answer.status in (BAD_REQUEST, 413, 422) and not of_kernel:
        raise refused(SubmissionRefused, f"the server refused {what}", answer)
    return checked(answer, what)


def checked_name(name: str) -> str:
    """Return the name of a model. Raises NoSuchModel when it would name another path, or cannot be a name."""
    if not isinstance(name, str) or not name.strip(". ") or not name.isprintable():
        raise NoSuchModel(str(name))
    return name
