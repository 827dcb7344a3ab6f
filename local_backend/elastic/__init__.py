"""The elastic training engine. Usable without the backend; importing this package alone imports no torch."""

#: What a fork server imports before it forks workers, so that a worker starts in milliseconds. Importing these runs
#: no tensor operation, starts no thread and touches no device.
PRELOAD = ("torch", "torch.distributed", "torch._dynamo", "torch.utils.data", "numpy", "local_backend.elastic.worker")
