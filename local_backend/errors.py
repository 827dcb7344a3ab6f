"""What ends the commands of `local-backend`."""

from __future__ import annotations


class ServerError(Exception):
    """The server cannot run; the text is one line that says why and what to do."""
