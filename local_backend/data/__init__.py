"""Data sources: resolves the sources of a submission and fetches them into directories on this machine."""
