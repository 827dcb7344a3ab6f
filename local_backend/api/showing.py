"""The exec object of the contract, made from everything that the server knows about an exec."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping

from local_backend.api.as_json import encoded
from local_backend.api.models.execs import Exec
from local_backend.api.objects import exec_object, more, told
from local_backend.services.views import ExecView
from local_backend.store.execs import ExecRow
from local_backend.store.labels import Labels

#: An exec, the address of the server, whether there is a result, and the labels if details are shown.
EndingKey = tuple[ExecRow, str, bool, Labels | None]


class Endings:
    """The most recently requested JSON objects of ended execs. Safe for use from any thread.

    Only the row of an ended exec, its labels and the content of its model folder can change. All are part of the key,
    so no entry is ever outdated.
    """

    #: Maximum number of entries, and of characters of a submission and its object: 40 MB in all.
    MOST, LONGEST = 1000, 16 << 10

    def __init__(self) -> None:
        self._kept: OrderedDict[EndingKey, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: EndingKey, make: Callable[[], bytes]) -> bytes:
        """Return the kept object, or the one that `make` returns."""
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                return found
        found = make()
        if len(key[0].spec) + len(found) <= self.LONGEST:
            with self._lock:
                self._kept[key] = found
                if len(self._kept) > self.MOST:
                    self._kept.popitem(last=False)
        return found


def show(view: ExecView, base_url: str, labels: Labels | None = None) -> Exec:
    """Return the exec object, with the progress that the program reported last. With `labels`, it has all details."""
    found: Exec = {**exec_object(view, base_url.rstrip("/")), **told(view)}
    return found if labels is None else {**found, **more(view, labels)}


def show_json(
    endings: Endings, views: Iterable[ExecView], base_url: str, labels: Mapping[str, Labels] | None
) -> list[bytes]:
    """Return the exec object of each view as JSON. With `labels` by the ids of execs, it has all details."""
    return [_as_json(endings, view, base_url, None if labels is None else labels.get(view.row.id, Labels()))
            for view in views]


def _as_json(endings: Endings, view: ExecView, base_url: str, labels: Labels | None) -> bytes:
    if not view.row.terminal:
        return encoded(show(view, base_url, labels))
    return endings.get((view.row, base_url, view.has_result, labels), lambda: encoded(show(view, base_url, labels)))
