"""The command line `dlicmd`, on the client of `dlicmd.sdk`."""

from dlicmd.cli.program import main

__all__ = ["main"]
