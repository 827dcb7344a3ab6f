"""EMetrics: evaluation metrics as lines of JSON, in the file and format that hyperparameter tools read."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

#: Name of the file in the log directory, and of the list of test values in RESULT_DIR.
FILE = "evaluation-metrics.txt"
VALUES_FILE = "val_dict_list.json"

_INTEGER = 2
_FLOAT = 3


class EMetrics:
    """Appends one JSON object per record to `evaluation-metrics.txt`.

        with EMetrics.open() as metrics:
            metrics.record(EMetrics.TEST_GROUP, step, {"loss": 0.1})

    With a sub id, the file lies in a folder of that name, and `close` writes the values that were recorded for
    TEST_GROUP to RESULT_DIR/val_dict_list.json.
    """

    TEST_GROUP = "test"
    TRAIN_GROUP = "train"

    def __init__(self, subId: str | None = None, f: str | None = None) -> None:
        """Open a file. Programs use `EMetrics.open` instead. `f`: the file to append to."""
        self._sub_id = subId
        self._file = open(f or os.path.join(log_dir(subId), FILE), "a", encoding="utf-8")  # noqa: SIM115
        self._training_id = os.environ.get("TRAINING_ID", "")
        self._index = 0
        self._tested: list[dict[str, Any]] = []

    @staticmethod
    def open(subId: str | None = None) -> EMetrics:
        """Open the file for appending in LOG_DIR, else in JOB_STATE_DIR/logs, else in /tmp.

        Args:
            subId: name of a folder for the file, in these folders.

        Raises:
            OSError: the file cannot be opened.
        """
        return EMetrics(subId)

    def __enter__(self) -> EMetrics:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def record(self, group: str, iteration: int | None, values: Mapping[str, Any]) -> None:
        """Append one record.

        Args:
            group: `TEST_GROUP`, `TRAIN_GROUP` or another name.
            iteration: the step; None for a record without one.
            values: name → value. Values become text; numbers also get a type.

        Raises:
            OSError: the record cannot be written.
        """
        self._index += 1
        now = time.time_ns() // 1_000_000
        meta: dict[str, Any] = {"training_id": self._training_id, "time": now, "rindex": self._index}
        if self._sub_id:
            meta["subid"] = str(self._sub_id)
        times: dict[str, Any] = {"time_stamp": {"value": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime()) + "Z"}}
        if iteration is not None:
            times = {"iteration": _typed(iteration), **times}
        line = {
            "meta": meta,
            "grouplabel": group,
            "etimes": times,
            "values": {name: _typed(value) for name, value in values.items()},
        }
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        if self._sub_id and group == self.TEST_GROUP:
            steps = {} if iteration is None else {"steps": _plain(iteration)}
            self._tested.append({**steps, **{name: _plain(value) for name, value in values.items()}})

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        if self._file.closed:
            return
        self._file.close()
        if self._sub_id and self._tested:
            folder = os.environ.get("RESULT_DIR") or "/tmp"
            target = os.path.join(folder, VALUES_FILE)
            with open(target + ".tmp", "w", encoding="utf-8") as file:
                json.dump(self._tested, file)
            os.replace(target + ".tmp", target)


def log_dir(sub_id: str | None = None) -> str:
    """Return the folder for a program's own logs, and create it if it is missing."""
    if os.environ.get("LOG_DIR"):
        folder = os.environ["LOG_DIR"]
    elif os.environ.get("JOB_STATE_DIR"):
        folder = os.path.join(os.environ["JOB_STATE_DIR"], "logs")
    else:
        folder = "/tmp"
    folder = os.path.join(folder, str(sub_id)) if sub_id else folder
    os.makedirs(folder, exist_ok=True)
    return folder


def _plain(value: Any) -> Any:
    """Return a Python number or text. Numbers of other libraries (numpy, torch) are converted, arrays become text."""
    if hasattr(value, "item"):
        try:
            value = value.item()
        except (ValueError, RuntimeError):  # several numbers
            return str(value)
    return value if isinstance(value, (bool, int, float, str)) else str(value)


def _typed(value: Any) -> dict[str, Any]:
    value = _plain(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return {"value": str(value)}
    return {"type": _INTEGER if isinstance(value, int) else _FLOAT, "value": str(value)}
