"""Drivers and workers that run as they do under the backend: in a forked process with PyTorch imported."""

from __future__ import annotations

import signal
from functools import cache
from pathlib import Path

from forking import Forked, Host


def warm_worker(environment: dict[str, str], folder: Path, stdout: Path, stderr: Path) -> Forked:
    """Start a worker in a folder, and return its process."""
    request = {"main": None, "environment": environment, "folder": str(folder), "stdout": str(stdout),
               "stderr": str(stderr)}
    return _host().start(request, [])


class WarmScript:
    """One process with the interface of `subprocess.Popen`; its output goes to files."""

    def __init__(
        self, main: Path, arguments: tuple[str, ...], environment: dict[str, str], folder: Path,
        channel: int | None = None,
    ) -> None:
        """Start the script in its own folder.

        Its output goes below `folder`, and the descriptor `channel` is its DLI_RUNNER_FD.
        """
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
        """The exit code that `communicate` has read."""
        return self._process.returncode

    def communicate(self, timeout: float) -> tuple[str, str]:
        """Wait for the end and return standard output and standard error. Raises TimeoutExpired."""
        self._process.wait(timeout)
        out, err = (file.read_text() for file in self._files)
        return out, err

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kill the process, unless it has ended."""
        self._process.kill()


@cache
def _host() -> Host:
    """Start the host with the first process. It ends with this process."""
    script = Path(__file__).parent / "warm_host.py"
    # Threads of OpenMP that wait for each other sleep instead of using up the processors of a busy machine.
    return Host(script, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", PYTHONHASHSEED="0", OMP_WAIT_POLICY="passive")
