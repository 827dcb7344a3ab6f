"""Runs a backend without its HTTP server until its input closes. `runtime_support.Host` starts and kills it."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

from local_backend.runtime.local_launcher import LocalLauncher
from local_backend.runtime.resizing import ResizeError
from local_backend.runtime.supervisor import Supervisor
from local_backend.settings import Settings
from local_backend.store.database import Database


def main() -> None:
    home, slots, grace, idle, die, embedded, rested_kept = sys.argv[1:8]
    folder = Path(home)
    settings = Settings(
        home=folder, data_fs=folder / "data", result_fs=folder / "results", user="ada", slots=int(slots),
        stop_grace=float(grace), nursery_idle=float(idle), die_with_server=die == "True",
        embedded=embedded == "True", rested_kept=int(rested_kept),
    )
    database = Database(settings.paths.database)
    database.open()
    supervisor = Supervisor(settings, database, LocalLauncher(settings))
    supervisor.start()
    print("ready", flush=True)
    for line in sys.stdin:
        match line.split():
            case ["resize", exec_id, count]:
                with suppress(ResizeError):
                    supervisor.resize(exec_id, int(count))
            case ["why", exec_id]:
                reason = supervisor.reason(exec_id)
                print(reason.sentence if reason is not None else "", flush=True)
            case _:
                supervisor.wake()
    supervisor.close()
    database.close()


if __name__ == "__main__":
    main()
