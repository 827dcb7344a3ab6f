"""dlicmd: submit a model folder with one command and follow it to its result. docs/client.md describes the client."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dlicmd.program_log import log
    from dlicmd.sdk.async_client import AsyncClient, AsyncJob, AsyncJobs, AsyncSearchJob
    from dlicmd.sdk.client import Client
    from dlicmd.sdk.errors import (
        BackendNotStarted,
        BackendSuspended,
        ConnectFailed,
        ConnectionLost,
        Denied,
        DlicmdError,
        JobFailed,
        ModelFailed,
        NeverSchedulable,
        NoExecYet,
        NoSuchApplication,
        NoSuchExec,
        NoSuchModel,
        NoSuchObject,
        NoSuchSearch,
        PackageError,
        QueryRefused,
        ResultError,
        ServerError,
        SubmissionRefused,
        TokenFileError,
        Unreachable,
        UsageProblem,
        WaitTimeout,
    )
    from dlicmd.sdk.experiment_objects import (
        PlanMistakes,
        RunMember,
        RunOfExperiment,
        SavedDefinition,
        SavedExperiment,
        SavedHardware,
    )
    from dlicmd.sdk.job import Curves, Job, Jobs
    from dlicmd.sdk.model_objects import (
        DeployedModel,
        DeployedRevision,
        LogPart,
        ModelLoading,
        ModelWhy,
        SavedModel,
        ServiceTokens,
        ServingKernel,
        ServingReplica,
        ServingRuntime,
        ServingState,
    )
    from dlicmd.sdk.objects import (
        Application,
        Code,
        CodeFile,
        Curve,
        Exec,
        File,
        Files,
        Framework,
        Holder,
        Holding,
        Holdings,
        Labelled,
        Line,
        News,
        PendingExec,
        Plan,
        Preview,
        SavedView,
        Slot,
        SlotHolder,
        SlotView,
        StopOutcome,
        StoredData,
        Why,
    )
    from dlicmd.sdk.records import Record
    from dlicmd.sdk.search_job import SearchJob
    from dlicmd.sdk.search_objects import Algorithm, Experiment, HyperParameter, MetricRange, Search
    from dlicmd.sdk.search_start import StoredCode
    from dlicmd.sdk.submission import SubmitOptions
    from dlicmd.sdk.transport import Answer, FilePart, Multipart

__version__ = "0.1.0"
__all__ = [
    "Algorithm",
    "Answer",
    "Application",
    "AsyncClient",
    "AsyncJob",
    "AsyncJobs",
    "AsyncSearchJob",
    "BackendNotStarted",
    "BackendSuspended",
    "Client",
    "Code",
    "CodeFile",
    "ConnectFailed",
    "ConnectionLost",
    "Curve",
    "Curves",
    "Denied",
    "DeployedModel",
    "DeployedRevision",
    "DlicmdError",
    "Exec",
    "Experiment",
    "File",
    "FilePart",
    "Files",
    "Framework",
    "Holder",
    "Holding",
    "Holdings",
    "HyperParameter",
    "Job",
    "JobFailed",
    "Jobs",
    "Labelled",
    "Line",
    "LogPart",
    "MetricRange",
    "ModelFailed",
    "ModelLoading",
    "ModelWhy",
    "Multipart",
    "NeverSchedulable",
    "News",
    "NoExecYet",
    "NoSuchApplication",
    "NoSuchExec",
    "NoSuchModel",
    "NoSuchObject",
    "NoSuchSearch",
    "PackageError",
    "PendingExec",
    "Plan",
    "PlanMistakes",
    "Preview",
    "QueryRefused",
    "Record",
    "ResultError",
    "RunMember",
    "RunOfExperiment",
    "SavedDefinition",
    "SavedExperiment",
    "SavedHardware",
    "SavedModel",
    "SavedView",
    "Search",
    "SearchJob",
    "ServerError",
    "ServiceTokens",
    "ServingKernel",
    "ServingReplica",
    "ServingRuntime",
    "ServingState",
    "Slot",
    "SlotHolder",
    "SlotView",
    "StopOutcome",
    "StoredCode",
    "StoredData",
    "SubmissionRefused",
    "SubmitOptions",
    "TokenFileError",
    "Unreachable",
    "UsageProblem",
    "WaitTimeout",
    "Why",
    "__version__",
    "log",
]

#: The modules with the names of `__all__`. A name is imported at its first use, so that `import dlicmd` stays fast.
_MODULES = (
    "errors", "objects", "model_objects", "experiment_objects", "transport", "submission", "client", "job",
    "search_job", "search_start", "async_client",
)


def __getattr__(name: str) -> Any:
    """Return a name of `__all__`. Raises AttributeError for any other name."""
    if name == "log":  # without the modules of the client: training programs call it
        from dlicmd.program_log import log

        return log
    if name in __all__:
        for module in _MODULES:
            found = getattr(import_module(f"dlicmd.sdk.{module}"), name, None)
            if found is not None:
                return found
    raise AttributeError(f"module 'dlicmd' has no attribute '{name}'")


def __dir__() -> list[str]:
    """Return the public names."""
    return list(__all__)
