"""The elastic training engine. The engine works without the backend. This package itself does not import torch."""

#: Modules that the nursery (fork server) imports before it forks workers, so that a worker starts in milliseconds. They
#: include the whole engine: a job keeps the version that it began with when other code is installed while it runs.
#: These imports run no tensor operation, start no thread and touch no device.
PRELOAD = (
    "torch", "torch.distributed", "torch._dynamo", "torch.utils.data", "numpy", "local_backend.elastic.worker.worker",
    "local_backend.elastic.api.fabric_model", "local_backend.elastic.api.callbacks",
    "local_backend.elastic.api.emetrics", "local_backend.elastic.driver.driver",
)

#: Folder in CHECKPOINT_DIR with the snapshots and records of a job. A runner removes it once the driver has ended on
#: its own: until then, the driver may be killed, and the next one needs it.
RECORDS = "elastic"

#: Environment variable of a driver that a runner has started: the descriptor of its socket to the runner.
RUNNER_FD = "DLI_RUNNER_FD"
