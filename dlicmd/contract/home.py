"""Where the state of a user lives, and the file by which a client finds the embedded backend."""

from __future__ import annotations

import os
from pathlib import Path

#: In DLICMD_HOME, mode 0600: a JSON object with the keys below. Present only while the backend serves.
BACKEND_FILE = "backend.json"
URL = "url"
PID = "pid"
TOKEN = "token"
#: How many slots it was started with by DLI_SLOTS; null when it has counted its devices.
SLOTS = "slots"
#: Of a server that speaks TLS: the file of its certificate, by which its own user's clients know it.
CERTIFICATE = "certificate"

#: In DLICMD_HOME, mode 0600: a JSON object about the server that serves or was the last to; stays when that ends.
SERVED_FILE = "served.json"
#: Whether it served its own user alone, and the command line by which it is started again.
EMBEDDED = "embedded"
COMMAND = "command"


def home() -> Path:
    """`DLICMD_HOME`, or `dlicmd` below the platform's per-user state directory. The directory may not exist yet."""
    named = os.environ.get("DLICMD_HOME")
    if named:
        return Path(named).expanduser().absolute()
    import platformdirs

    return Path(platformdirs.user_state_dir("dlicmd", appauthor=False))
