"""The name under which training scripts import FabricModel. Importing it shows the paths and the backend of the job."""

from local_backend.elastic.api.fabric_model import FabricModel, announce

__all__ = ["FabricModel"]

announce()
