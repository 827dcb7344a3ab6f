"""The command line `dlim` of inference: on the client of `dlicmd.sdk`, with the parts of `dlicmd.cli`."""

from dlicmd.dlim.program import main

__all__ = ["main"]
