"""FabricModel under the name that newer notebooks import."""
