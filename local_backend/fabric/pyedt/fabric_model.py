"""The same class as `fabric_model.FabricModel`."""

from fabric_model import FabricModel

__all__ = ["FabricModel"]
