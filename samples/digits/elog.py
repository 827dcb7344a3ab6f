"""A text log in LOG_DIR/stdout. `dlicmd --exec-trainlogs` shows it, and notebooks parse it."""

import os
import time


class ELog:
    """Writes one line per report. Parsers rely on the separators."""

    def __init__(self, path):
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115

    @staticmethod
    def open(subId=None):
        folder = os.environ.get("LOG_DIR") or os.path.join(os.environ.get("JOB_STATE_DIR", "/tmp"), "logs")
        folder = os.path.join(folder, subId) if subId else folder
        os.makedirs(folder, exist_ok=True)
        return ELog(os.path.join(folder, "stdout"))

    def train(self, global_steps, iteration, loss, accuracy):
        self._write(
            f"Train,\tTimestamp: {stamp()},\tGlobal steps: {global_steps},\tIteration: {iteration},"
            f"\tLoss: {loss:.5f},\tAccuracy: {accuracy:.5f}"
        )

    def test(self, loss, accuracy):
        self._write(f"Test,\tTimestamp: {stamp()},\tLoss: {loss:.5f},\tAccuracy: {accuracy:.5f}")

    def close(self):
        self._file.close()

    def _write(self, text):
        self._file.write(f"[{time.strftime('%Y-%m-%d %H:%M:%S')}] {text}\n")
        self._file.flush()


def stamp():
    """Return the milliseconds since 1970."""
    return time.time_ns() // 1_000_000
