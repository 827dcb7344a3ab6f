"""Which execs have metrics to forward, on disk: one file each, from before the submission is acknowledged until all is
sent. They hold tokens and passwords, sealed."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from local_backend.files import read_json, write_json
from local_backend.forward.target import Targets
from local_backend.runtime.paths import HomePaths
from local_backend.store import execs
from local_backend.vault import Vault, VaultError


@dataclass(frozen=True)
class Order:
    """The metrics of an exec of `user` go to these targets."""

    exec_id: str
    user: str
    targets: Targets


def place(home: HomePaths, order: Order) -> None:
    """Write an order down, durably. Raises OSError and VaultError."""
    sealed = Vault(home.vault).seal_text(json.dumps(order.targets.to_json()))
    write_json(home.order(order.exec_id), {"user": order.user, "targets": sealed})


def reseal(home: HomePaths, anew: Callable[[str], str]) -> None:
    """Have `anew` seal anew what is sealed. What an earlier version has written down in clear is as its text. Raises
    OSError and what `anew` raises."""
    for exec_id in open_orders(home):
        value = read_json(home.order(exec_id))
        targets = value.get("targets") if isinstance(value, dict) else None
        if targets is not None:
            text = targets if isinstance(targets, str) else json.dumps(targets)
            write_json(home.order(exec_id), {**value, "targets": anew(text)})


def remove(home: HomePaths, exec_id: str) -> None:
    """Forget an order and how far it has come, as far as the disk lets us: the next start tries again."""
    for path in (home.order(exec_id), *home.forwarding.glob(f"{exec_id}.*.json")):
        with suppress(OSError):
            path.unlink(missing_ok=True)


def find(home: HomePaths, exec_id: str) -> Order | None:
    """The order of an exec, None when there is none that can be read."""
    try:
        value = read_json(home.order(exec_id))
        if not value:
            return None
        targets = json.loads(Vault(home.vault).open_text(value["targets"]))
        return Order(exec_id, str(value["user"]), Targets.from_json(targets))
    except (OSError, KeyError, TypeError, AttributeError, VaultError):
        return None


def open_orders(home: HomePaths) -> list[str]:
    """Ids of the execs that have one. Files that belong to none are removed: when an exec is deleted while a batch of
    its metrics is under way, what that has come to is noted afterwards."""
    found = sorted(home.forwarding.glob("*"))
    ids = {path.stem for path in found if path.suffix == ".json" and execs.is_exec_id(path.stem)}
    for path in found:
        if path.name.partition(".")[0] not in ids:
            with suppress(OSError):
                path.unlink()
    return sorted(ids)
