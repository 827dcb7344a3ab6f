"""dlicmd: submit a model folder with one command and follow it to its result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dlicmd.client import Client as Client
    from dlicmd.errors import DlicmdError as DlicmdError

__version__ = "0.1.0"
__all__ = ["Client", "DlicmdError", "__version__"]


def __getattr__(name: str) -> Any:
    """Import the SDK when it is first used, so that `import dlicmd` stays light."""
    if name == "Client":
        from dlicmd.client import Client

        return Client
    if name == "DlicmdError":
        from dlicmd.errors import DlicmdError

        return DlicmdError
    raise AttributeError(f"module 'dlicmd' has no attribute '{name}'")
