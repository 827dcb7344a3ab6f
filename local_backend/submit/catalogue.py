"""The frameworks and prebuilt models that a submission may name."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version

#: Names of the prebuilt models of the recorded catalogue. None of them is built yet.
PREBUILT_MODELS = frozenset({"AlexNet", "VGG16", "ResNet18", "MNIST"})
#: Answer to submissions that name a TensorFlow framework.
NO_TENSORFLOW = "TensorFlow programs are not supported by the local backend yet; use PyTorch, distPyTorch or edtPyTorch"


@dataclass(frozen=True)
class CatalogueEntry:
    """One framework. `refused` is the sentence that answers a submission; None if the framework can run."""

    name: str
    app_name: str
    backend: str
    command_generator: str
    help: tuple[str, ...]
    distributed: bool = True
    elastic: bool = False
    #: Default number of workers; None where the engine decides.
    workers: int | None = 1
    max_workers: int | None = None
    #: Memory of a worker that the catalogue shows; it is not a limit.
    memory: str | None = None
    has_driver: str = ""
    exports: tuple[tuple[str, str], ...] = ()
    strategy: str | None = None
    parameter_servers: int | None = None
    refused: str | None = None

    @property
    def version(self) -> str:
        """Version of the installed framework, or the recorded version if it is not installed: clients read the version
        of all frameworks."""
        return _installed("tensorflow" if self.backend.lower() == "tensorflow" else "torch")


#: Distribution → version in the recorded catalogue.
_RECORDED = {"torch": "1.3.1", "tensorflow": "2.1"}


@cache
def _installed(distribution: str) -> str:
    try:
        return version(distribution).partition("+")[0]
    except PackageNotFoundError:
        return _RECORDED[distribution]


FRAMEWORKS: tuple[CatalogueEntry, ...] = (
    CatalogueEntry(
        "PyTorch", "SingleNodePytorchTrain", "PyTorch", "PyTorchCmdGen.py",
        (
            "PyTorch - one process on one worker.",
            "The program finds its data in DATA_DIR and stores its model below RESULT_DIR/model.",
            "dlicmd --exec-start PyTorch --model-dir DIR --model-main FILE [--cs-datastore-meta type=fs,data_path=PATH]"
            " [-- PROGRAM ARGUMENTS]",
        ),
        distributed=False, max_workers=1, memory="4G",
    ),
    CatalogueEntry(
        "distPyTorch", "DistributePyTorchTrain", "PyTorch", "distPyTorchCmdGen.py",
        (
            "distPyTorch - numWorker processes of one program, started together.",
            "Each finds MASTER_ADDR, MASTER_PORT, WORLD_SIZE and RANK in its environment, for init_process_group.",
            "dlicmd --exec-start distPyTorch --numWorker N --model-dir DIR --model-main FILE [-- PROGRAM ARGUMENTS]",
        ),
        has_driver="false", exports=(("GLOO_SOCKET_IFNAME", "lo"),),
    ),
    CatalogueEntry(
        "disttensorflow", "DistributeTensorflow2xTrain", "TensorFlow", "disttensorflowCmdGen.py",
        ("disttensorflow - not supported by the local backend yet.",),
        has_driver="false", memory="8G", strategy="MultiWorkerMirroredStrategy", parameter_servers=1,
        refused=NO_TENSORFLOW,
    ),
    CatalogueEntry(
        "edtPyTorch", "ElasticPyTorchTrain", "pytorch", "edtCmdGen.py",
        (
            "edtPyTorch - elastic training with FabricModel: a driver and 1 to numWorker workers.",
            "The program imports fabric_model; its result is the same for any number of workers.",
            "dlicmd --exec-start edtPyTorch --numWorker N --model-dir DIR --model-main FILE [-- PROGRAM ARGUMENTS]",
        ),
        elastic=True, workers=None, memory="4G",
    ),
    CatalogueEntry(
        "edtTensorflow", "ElasticTensorflow1xTrain", "tensorflow", "edtCmdGen.py",
        ("edtTensorflow - not supported by the local backend yet.",),
        elastic=True, workers=None, memory="8G", refused=NO_TENSORFLOW,
    ),
    CatalogueEntry(
        "tensorflow", "SingleNodeTensorflowTrain", "TensorFlow", "tensorflowCmdGen.py",
        ("tensorflow - not supported by the local backend yet.",),
        distributed=False, max_workers=1, memory="8G", refused=NO_TENSORFLOW,
    ),
)

#: Names are case-sensitive. Names in scripts of the first product generation may differ in case only.
BY_NAME = {framework.name: framework for framework in FRAMEWORKS}
