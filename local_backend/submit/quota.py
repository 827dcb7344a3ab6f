"""Quotas of users, and the free space that a disk must keep. Errors name the limit, and how to get below it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from sqlalchemy import Connection

from dlicmd.contract.sizes import show_size
from local_backend.errors import OverQuota, StorageFailed
from local_backend.runtime.paths import HomePaths
from local_backend.settings import Quotas
from local_backend.store import execs

_DELETE = "fetch the results of finished jobs and delete these jobs (dlicmd --exec-delete ID)"


def check_room(
    home: HomePaths, quotas: Quotas, adding: int, folders: Sequence[Path] | None = None
) -> None:
    """Raise StorageFailed when `adding` bytes would leave a disk with too little free space for running jobs: those of
    the server's home and results, or of `folders`."""
    for folder in dict.fromkeys((home.home, home.result_fs) if folders is None else folders):
        try:
            free = shutil.disk_usage(folder).free
        except OSError as problem:
            raise StorageFailed.from_os(problem) from None
        if free - adding < quotas.free_bytes:
            raise StorageFailed(
                "storage.full",
                f"the server's disk has only {show_size(free)} free; the minimum after a submission is "
                f"{show_size(quotas.free_bytes)}. Delete jobs that you do not need (dlicmd --exec-delete ID), then "
                "submit again",
            )


def check_user(
    connection: Connection, user: str, quotas: Quotas, *, size: Callable[[str], int], shared: int, adding: int
) -> None:
    """Raise OverQuota when a user may have no further exec of `adding` bytes. `size` returns the bytes of an exec, and
    `shared` are the bytes of the installed packages and model definitions of the user."""
    active, kept = execs.count(connection, user)
    if quotas.active_execs is not None and active >= quotas.active_execs:
        raise OverQuota(
            "quota.active",
            f"{user} has {active} pending or running jobs; the limit is {quotas.active_execs}. Wait until one "
            "finishes, or stop one (dlicmd --exec-stop ID)",
        )
    if quotas.stored_execs is not None and kept >= quotas.stored_execs:
        raise OverQuota("quota.execs", f"{user} has {kept} jobs; the limit is {quotas.stored_execs}; {_DELETE}")
    if quotas.stored_bytes is None:
        return
    stored = sum(map(size, execs.ids_of(connection, user))) + shared
    if stored + adding > quotas.stored_bytes:
        raise OverQuota(
            "quota.bytes",
            f"the jobs of {user} use {show_size(stored)}, {show_size(shared)} of it for installed packages and model "
            f"definitions, and this job needs {show_size(adding)}; the limit is {show_size(quotas.stored_bytes)} in "
            f"total; {_DELETE}",
        )
