"""The commands of `local-backend`."""
