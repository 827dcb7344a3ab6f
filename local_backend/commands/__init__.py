"""Commands of `local-backend`."""
