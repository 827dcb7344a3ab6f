"""The folder of a user's state, and the file by which a client finds the embedded backend."""

from __future__ import annotations

import os
from pathlib import Path

#: In DLICMD_HOME, mode 0600: a JSON object with the keys below. The file exists only while the backend serves.
BACKEND_FILE = "backend.json"
URL = "url"
PID = "pid"
TOKEN = "token"
#: The number of slots from DLI_SLOTS at the server's start; null if the server counted its devices.
SLOTS = "slots"
#: The file of the certificate of a server that speaks TLS. The clients of the server's own user trust it.
CERTIFICATE = "certificate"

#: In DLICMD_HOME: a file with the process id of the server that holds its lock (flock).
LOCK_FILE = "backend.lock"

#: In DLICMD_HOME, mode 0600: a JSON object about the current or last server. The file stays when that server ends.
SERVED_FILE = "served.json"
#: Whether the server served its own user alone, and the command line that starts it again.
EMBEDDED = "embedded"
COMMAND = "command"

#: In DLICMD_HOME, mode 0700: folders that clients copied there, for the backend to take over.
STAGING = "staging"


def home() -> Path:
    """Return `DLICMD_HOME`, or `dlicmd` below the platform's per-user state directory. The directory may not exist
    yet. The path is absolute and without links: it identifies the processes of jobs, however a user spells it."""
    named = os.environ.get("DLICMD_HOME")
    if named:
        return Path(os.path.realpath(Path(named).expanduser()))
    import platformdirs  # a variable usually names the folder

    return Path(os.path.realpath(platformdirs.user_state_dir("dlicmd", appauthor=False)))
