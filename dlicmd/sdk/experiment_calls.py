"""The calls about model definitions, hardware specifications and experiments (extension `experiments`)."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dlicmd.contract import wire
from dlicmd.sdk.calls import JSON, NOT_FOUND, SUBMIT_TIMEOUT, Calls, a_list, an_object
from dlicmd.sdk.errors import NoSuchObject
from dlicmd.sdk.experiment_objects import PlanMistakes, RunOfExperiment, SavedDefinition, SavedExperiment, SavedHardware
from dlicmd.sdk.messages import Progress, silent
from dlicmd.sdk.model_store_calls import accepted
from dlicmd.sdk.objects import Code
from dlicmd.sdk.transport import Answer, FilePart, Multipart


class ExperimentCalls(Calls):
    """Calls about the objects of the experiment builder. NAME also stands for OWNER/NAME."""

    # Model definitions

    def definitions(self) -> list[SavedDefinition]:
        """Return the model definitions that you may use, at their newest versions."""
        return [SavedDefinition(one) for one in a_list(self._call("GET", wire.DEFINITIONS))]

    def definition(self, name: str, version: int | None = None) -> SavedDefinition:
        """Return a model definition.

        Args:
            name: Name of the definition.
            version: Number of the version. None stands for the newest one.

        Raises:
            NoSuchObject: No definition has this name and version.
        """
        return SavedDefinition(an_object(self._team("GET", wire.DEFINITIONS, name, query=_of(version))))

    def definition_versions(self, name: str) -> list[SavedDefinition]:
        """Return all versions of a model definition, newest first.

        Args:
            name: Name of the definition.

        Raises:
            NoSuchObject: No definition has this name.
        """
        return [SavedDefinition(one) for one in a_list(self._team("GET", wire.DEFINITIONS, name, wire.VERSIONS))]

    def definition_code(self, name: str, version: int | None = None) -> Code:
        """Return the files of a model definition, small ones with their text.

        Args:
            name: Name of the definition.
            version: Number of the version. None stands for the newest one.

        Raises:
            NoSuchObject: No definition has this name and version.
        """
        return Code(an_object(self._team("GET", wire.DEFINITIONS, name, wire.CODE, _of(version))))

    def save_definition(
        self, definition: Mapping[str, Any], code: str | os.PathLike[str] | None = None,
        progress: Progress | None = None,
    ) -> SavedDefinition:
        """Save a model definition, or a new version of your definition of this name.

        Args:
            definition: The definition: `name`, `description`, `framework`, `command`, `condaEnv`, `environment`,
                `sharedWith`.
            code: Folder with the code, a zip or tar file, or one program. None: the code of the newest version.
            progress: Function that reports progress while a folder is packed. None reports nothing.

        Returns:
            The saved version. What equals the newest version is not saved again.

        Raises:
            SubmissionRefused: The server refuses the definition.
            UsageProblem: The code does not exist.
            PackageError: The folder cannot be packed.
        """
        from dlicmd.sdk import package  # packs, for this call alone

        parts: list[FilePart] = []
        try:
            if code is not None:
                parts.append(package.pack(package.selected(package.check_folder(os.fspath(code))), progress or silent)
                             if Path(code).is_dir() else package.single_file(os.fspath(code), "--model-dir"))
            body = Multipart(parts, [(wire.PART_DATA, json.dumps(dict(definition)))])
            answer = self._send("POST", wire.DEFINITIONS, {"Content-Type": body.content_type}, body, SUBMIT_TIMEOUT)
        finally:
            package.close_all(parts)
        return SavedDefinition(an_object(accepted(answer, "the model definition")))

    def delete_definition(self, name: str) -> None:
        """Delete a model definition with all versions. Runs keep their code.

        Args:
            name: Name of the definition.

        Raises:
            NoSuchObject: No definition has this name.
            ServerError: An experiment uses the definition (HTTP 409).
        """
        self._team("DELETE", wire.DEFINITIONS, name)

    # Hardware specifications

    def hardware_specifications(self) -> list[SavedHardware]:
        """Return the predefined hardware specifications, and those that you may use, at their newest versions."""
        return [SavedHardware(one) for one in a_list(self._call("GET", wire.HARDWARE))]

    def hardware_specification(self, name: str, version: int | None = None) -> SavedHardware:
        """Return a hardware specification.

        Args:
            name: Name of the specification.
            version: Number of the version. None stands for the newest one.

        Raises:
            NoSuchObject: No specification has this name and version.
        """
        return SavedHardware(an_object(self._team("GET", wire.HARDWARE, name, query=_of(version))))

    def hardware_versions(self, name: str) -> list[SavedHardware]:
        """Return all versions of a hardware specification, newest first.

        Args:
            name: Name of the specification.

        Raises:
            NoSuchObject: No specification has this name.
        """
        return [SavedHardware(one) for one in a_list(self._team("GET", wire.HARDWARE, name, wire.VERSIONS))]

    def save_hardware(self, hardware: Mapping[str, Any]) -> SavedHardware:
        """Save a hardware specification, or a new version of your specification of this name.

        Args:
            hardware: The specification: `name`, `hardwareSpec`, `description`, `sharedWith`.

        Returns:
            The saved version. What equals the newest version is not saved again.

        Raises:
            SubmissionRefused: The server refuses the specification.
        """
        return SavedHardware(self._saved(wire.HARDWARE, hardware, "the hardware specification"))

    def delete_hardware(self, name: str) -> None:
        """Delete a hardware specification with all versions.

        Args:
            name: Name of the specification.

        Raises:
            NoSuchObject: No specification has this name.
            ServerError: The specification is predefined, or an experiment uses it (HTTP 409).
        """
        self._team("DELETE", wire.HARDWARE, name)

    # Experiments

    def experiments(self) -> list[SavedExperiment]:
        """Return the experiments that you may use, at their newest versions, each with your last run."""
        return [SavedExperiment(one) for one in a_list(self._call("GET", wire.PLANS_OF_EXPERIMENTS))]

    def experiment(self, name: str, version: int | None = None) -> SavedExperiment:
        """Return an experiment with your last run.

        Args:
            name: Name of the experiment.
            version: Number of the version. None stands for the newest one.

        Raises:
            NoSuchObject: No experiment has this name and version.
        """
        return SavedExperiment(an_object(self._team("GET", wire.PLANS_OF_EXPERIMENTS, name, query=_of(version))))

    def experiment_versions(self, name: str) -> list[SavedExperiment]:
        """Return all versions of an experiment, newest first.

        Args:
            name: Name of the experiment.

        Raises:
            NoSuchObject: No experiment has this name.
        """
        found = self._team("GET", wire.PLANS_OF_EXPERIMENTS, name, wire.VERSIONS)
        return [SavedExperiment(one) for one in a_list(found)]

    def save_experiment(self, experiment: Mapping[str, Any]) -> SavedExperiment:
        """Save an experiment, or a new version of your experiment of this name.

        Args:
            experiment: The experiment: `name`, `description`, `dataSource`, `createDataPath`, `command`, `definitions`,
                `sharedWith`; see `docs/experiments.md`.

        Returns:
            The saved version. What equals the newest version is not saved again.

        Raises:
            SubmissionRefused: The server refuses the experiment.
            NoSuchObject: A model definition or hardware specification does not exist.
        """
        return SavedExperiment(self._saved(wire.PLANS_OF_EXPERIMENTS, experiment, "the experiment"))

    def check_experiment(self, experiment: Mapping[str, Any]) -> PlanMistakes:
        """Return the mistakes in an experiment, and what would run. Nothing is saved.

        Args:
            experiment: The experiment, as for `save_experiment`.

        Raises:
            SubmissionRefused: A value has the wrong type.
        """
        return PlanMistakes(self._saved(f"{wire.PLANS_OF_EXPERIMENTS}/check", experiment, "the experiment"))

    def run_experiment(self, name: str, version: int | None = None, key: str | None = None) -> RunOfExperiment:
        """Run an experiment: submit one exec for each model definition.

        Args:
            name: Name of the experiment.
            version: Number of the version. None stands for the newest one.
            key: Idempotency key. A call with the key of an earlier one submits only the model definitions that have no
                exec. None stands for a new key.

        Returns:
            The run. A model definition that the server refused has `code` and `message`.

        Raises:
            NoSuchObject: No experiment has this name and version.
        """
        import uuid  # takes 20 ms, for submissions alone

        headers = {wire.KEY_HEADER: f'"{key or uuid.uuid4()}"', "Content-Length": "0"}
        answer = self._team("POST", wire.PLANS_OF_EXPERIMENTS, name, wire.RUN, _of(version), headers)
        return RunOfExperiment(an_object(answer))

    def continue_experiment(self, name: str, run: int) -> RunOfExperiment:
        """Submit the model definitions of a run that have no exec yet.

        Args:
            name: Name of the experiment.
            run: Number of the run.

        Raises:
            NoSuchObject: No experiment has this name, or it has no such run of yours.
            ServerError: Each model definition has an exec (HTTP 409).
        """
        return RunOfExperiment(an_object(self._team(
            "POST", wire.PLANS_OF_EXPERIMENTS, name, f"runs/{run}", headers={"Content-Length": "0"})))

    def experiment_runs(self, name: str, limit: int = 20) -> list[RunOfExperiment]:
        """Return the last runs of an experiment that you began, newest first.

        Args:
            name: Name of the experiment.
            limit: Maximum number of runs.

        Raises:
            NoSuchObject: No experiment has this name.
        """
        found = self._team("GET", wire.PLANS_OF_EXPERIMENTS, name, "runs", f"{wire.LIMIT}={limit}")
        return [RunOfExperiment(one) for one in a_list(found)]

    def delete_experiment(self, name: str) -> None:
        """Delete an experiment with all versions. The execs of its runs stay.

        Args:
            name: Name of the experiment.

        Raises:
            NoSuchObject: No experiment has this name.
        """
        self._team("DELETE", wire.PLANS_OF_EXPERIMENTS, name)

    # Common parts

    def _team(  # noqa: PLR0917
        self, method: str, top: str, name: str, action: str = "", query: str = "", headers: dict[str, str] | None = None
    ) -> Answer:
        """Send a call about one object."""
        if not isinstance(name, str) or not name.strip("./ ") or not name.isprintable():
            raise NoSuchObject(f"'{name}' is not a valid name", NOT_FOUND)
        target = wire.team_path(top, name, action) + (f"?{query}" if query else "")
        answer = self._send(method, target, headers, timeout=SUBMIT_TIMEOUT if method == "POST" else 60.0)
        return accepted(answer, name)

    def _saved(self, path: str, value: Mapping[str, Any], what: str) -> dict[str, Any]:
        answer = self._send("POST", path, {"Content-Type": JSON}, json.dumps(dict(value)).encode(), SUBMIT_TIMEOUT)
        return an_object(accepted(answer, what))


def _of(version: int | None) -> str:
    return "" if version is None else f"{wire.VERSION}={version}"
