"""Data sources: what a submission says about its data becomes a directory on this machine."""
