"""dlicmd: submit a model folder with one command and follow it to its result."""

__version__ = "0.1.0"
