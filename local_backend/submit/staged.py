"""Takes over a folder that a client of the server's own user has copied into the home, without an upload.

The client names the folder by 32 random digits. Only the server's own user can write to its parent. The server
therefore reads no path that a client chose, and follows no link.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from local_backend.errors import Invalid, TooLarge
from local_backend.runtime import bundles
from local_backend.runtime.bundles import BundleLost
from local_backend.settings import Limits
from local_backend.submit.unpacker import ArchiveRefused, components


def take(staged: Path, target: Path, limits: Limits) -> None:
    """Move a staged folder to the existing, empty folder `target`. The content is durable when this returns.

    Raises Invalid, TooLarge or OSError.
    """
    try:
        names = [name for name, _ in bundles.entries(staged)]
        for name in names:
            components(name)
    except FileNotFoundError:
        raise Invalid("submission.files", "the staged folder does not exist; submit again") from None
    except BundleLost:
        raise Invalid("submission.files", "the staged folder contains something other than files and folders") from None
    except ArchiveRefused as problem:
        raise Invalid("submission.files", f"the staged folder is refused: {problem}") from None
    size = sum(path.lstat().st_size for path in (staged / name for name in names) if path.is_file())
    if len(names) > limits.unpacked_files or size > min(limits.upload_bytes, limits.unpacked_bytes):
        raise TooLarge("submission.too_large", "the staged folder is larger than the limits of this server")
    target.rmdir()
    shutil.move(staged, target)
    bundles.make_durable([target, *(target / name for name in names)])
