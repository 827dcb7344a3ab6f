"""Scripts that run as drivers do under the backend: in a process that is forked with torch imported."""

from __future__ import annotations

import signal
from functools import cache
from pathlib import Path

from forking import Host


class WarmScript:
    """One process, as `subprocess.Popen` shows them; its output goes to files."""

    def __init__(
        self, main: Path, arguments: tuple[str, ...], environment: dict[str, str], folder: Path,
        channel: int | None = None,
    ) -> None:
        """Start it in its own folder; it writes below `folder`, and has the descriptor `channel` as DLI_RUNNER_FD."""
        self._files = tuple(folder / f"driver.{stream}" for stream in ("stdout", "stderr"))
        for file in self._files:
            file.write_bytes(b"")
        request = {
            "main": str(main), "arguments": arguments, "environment": environment, "folder": str(main.parent),
            "stdout": str(self._files[0]), "stderr": str(self._files[1]),
        }
        self._process = _host().start(request, [] if channel is None else [channel])
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code that `communicate` has seen."""
        return self._process.returncode

    def communicate(self, timeout: float) -> tuple[str, str]:
        """Standard output and standard error when it has ended. Raises TimeoutExpired."""
        self._process.wait(timeout)
        out, err = (file.read_text() for file in self._files)
        return out, err

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it, unless it has ended."""
        self._process.kill()


@cache
def _host() -> Host:
    """Started with the first script; it ends with this process."""
    script = Path(__file__).parent / "warm_host.py"
    return Host(script, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", PYTHONHASHSEED="0")
