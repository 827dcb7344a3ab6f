"""The elastic training engine. The engine works without the backend. This package itself does not import torch."""

#: Modules that the nursery (fork server) imports before it forks workers, so that a worker starts in milliseconds.
#: These imports run no tensor operation, start no thread and touch no device.
PRELOAD = (
    "torch", "torch.distributed", "torch._dynamo", "torch.utils.data", "numpy", "local_backend.elastic.worker.worker",
)

#: Environment variable of a driver that a runner has started: the descriptor of its socket to the runner.
RUNNER_FD = "DLI_RUNNER_FD"
