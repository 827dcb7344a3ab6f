"""File names of the user, each defined in one place."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path, PurePosixPath

from dlicmd.contract.home import BACKEND_FILE, LOCK_FILE, SERVED_FILE, STAGING, home

CONFIG = "config.yaml"


def token_file() -> Path:
    """Return the file that stores the token of a remote logon."""
    return Path.home() / ".dlicmd"


def pins_file() -> Path:
    """Return the file with the fingerprints of certificates that cannot be verified. The token file cannot contain
    them, because scripts read it as a bare token."""
    return Path.home() / ".dlicmd.certificates"


def function_key_file() -> Path:
    """Return the file with the secret from which the keys of submitted functions are derived."""
    return Path.home() / ".dlicmd.functions"


def config_file() -> Path:
    """Return the file with the profiles: `DLICMD_CONFIG`, or `dlicmd/config.yaml` below the platform's per-user
    configuration directory."""
    named = os.environ.get("DLICMD_CONFIG")
    if named:
        return Path(os.path.expanduser(named))
    return Path(os.path.expanduser(_configuration()), "dlicmd", CONFIG)


def servers_file() -> Path:
    """Return the file with the servers that the user logged on to, and their tokens."""
    return Path(os.path.expanduser(_configuration()), "dlicmd", "servers.json")


def link_file() -> Path:
    """Return the file that leads a browser to the console."""
    return Path(os.path.expanduser(_configuration()), "dlicmd", "console.html")


def authority_file(sha256: str) -> Path:
    """Return the file of an authority that the user trusts by this fingerprint."""
    return Path(os.path.expanduser(_configuration()), "dlicmd", "authorities", f"{sha256}.pem")


def _configuration() -> str:
    """Return the platform's directory, the same as that of platformdirs, which every command would have to import."""
    if sys.platform == "win32":
        return os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    usual = "~/Library/Application Support" if sys.platform == "darwin" else "~/.config"
    return os.environ.get("XDG_CONFIG_HOME", "").strip() or usual


def backend_file() -> Path:
    """Return the file by which a client finds the local backend."""
    return home() / BACKEND_FILE


def backend_lock() -> Path:
    """Return the lock that the local backend holds while it runs."""
    return home() / LOCK_FILE


def served_file() -> Path:
    """Return the file in which the local backend records how it was started."""
    return home() / SERVED_FILE


def staging_folder() -> Path:
    """Return the folder through which the local backend takes over folders of its own user."""
    return home() / STAGING


def backend_log() -> Path:
    """Return the file with the output of the local backend."""
    return home() / "backend.log"


def start_lock() -> Path:
    """Return the lock that a client holds while it starts the local backend."""
    return home() / "start.lock"


def samples_dir() -> Path:
    """Return the folder of the samples that come with dlicmd, installed or in a clone."""
    package = Path(__file__).parent.parent
    installed = package / "samples"
    return installed if installed.is_dir() else package.parent / "samples"


def safe_path(name: str) -> PurePosixPath | None:
    """Return a relative path from a server, or None if it is invalid or leaves its folder."""
    parts = name.split("/")
    if "\\" in name or ":" in parts[0] or not name.isprintable() or not {"", ".", ".."}.isdisjoint(parts):
        return None
    return PurePosixPath(*parts)


def safe_name(name: str) -> str:
    """Return a file name from a server, made harmless: its last part, no control characters, not hidden, not a device.

    Return "" when nothing usable is left.
    """
    name = re.split(r"[/\\]", name)[-1]
    invisible = r"\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff\ud800-\udfff"
    name = re.sub(rf'[\x00-\x1f\x7f-\x9f<>:"|?*{invisible}]', "", name)
    name = name.strip(" .").lstrip("-~")
    if re.fullmatch(r"(?i)(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", name):
        return ""
    while len(name.encode()) > 200:
        name = name[1:].lstrip(" .-~")
    return name
