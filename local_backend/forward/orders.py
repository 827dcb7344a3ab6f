"""The execs with metrics to forward, on disk: one file each, from before the submission is acknowledged until all
metrics are sent. The files hold tokens and passwords, sealed."""

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
    """The targets for the metrics of an exec of `user`."""

    exec_id: str
    user: str
    targets: Targets


def place(home: HomePaths, order: Order) -> None:
    """Write an order to disk, durably. Raises OSError and VaultError."""
    sealed = Vault(home.vault).seal_text(json.dumps(order.targets.to_json()))
    write_json(home.order(order.exec_id), {"user": order.user, "targets": sealed})


def reseal(home: HomePaths, anew: Callable[[str], str]) -> None:
    """Seal all orders again. `anew` turns a sealed text into a newly sealed one; for targets that an earlier version
    stored in clear, `anew` gets their JSON text. Raises OSError and the errors of `anew`."""
    for exec_id in open_orders(home):
        value = read_json(home.order(exec_id))
        targets = value.get("targets") if isinstance(value, dict) else None
        if targets is not None:
            text = targets if isinstance(targets, str) else json.dumps(targets)
            write_json(home.order(exec_id), {**value, "targets": anew(text)})


def remove(home: HomePaths, exec_id: str) -> None:
    """Delete an order and its record of sent lines. If the disk refuses, the next start tries again."""
    for path in (home.order(exec_id), *home.forwarding.glob(f"{exec_id}.*.json")):
        with suppress(OSError):
            path.unlink(missing_ok=True)


def find(home: HomePaths, exec_id: str) -> Order | None:
    """Return the order of an exec; None if there is none that can be read."""
    try:
        value = read_json(home.order(exec_id))
        if not value:
            return None
        targets = json.loads(Vault(home.vault).open_text(value["targets"]))
        return Order(exec_id, str(value["user"]), Targets.from_json(targets))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, VaultError):
        return None


def open_orders(home: HomePaths) -> list[str]:
    """Return the ids of the execs with an order. Remove files that belong to no order: if an exec is deleted while a
    batch of its metrics is being sent, the forwarder records its progress afterwards."""
    found = sorted(home.forwarding.glob("*"))
    ids = {path.stem for path in found if path.suffix == ".json" and execs.is_exec_id(path.stem)}
    for path in found:
        if path.name.partition(".")[0] not in ids:
            with suppress(OSError):
                path.unlink()
    return sorted(ids)
