"""The name under which training scripts import EMetrics."""

from local_backend.elastic.api.emetrics import EMetrics

__all__ = ["EMetrics"]
