"""The name under which training scripts import the base classes of callbacks and loggers."""

from local_backend.elastic.api.callbacks import Callback, LoggerCallback

__all__ = ["Callback", "LoggerCallback"]
