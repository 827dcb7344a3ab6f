"""An elastic torchrun on this machine, with one agent per worker. Agents start and stop."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from elastic_bench.machine import environment, slots
from elastic_bench.stamps import Stamp

SCRIPT = Path(__file__).parent / "scripts" / "torchrun_train.py"
#: Steps between two snapshots.
SNAPSHOT_EVERY = 50
#: Steps of a training: more than a measurement takes.
STEPS = 20000


class Torchrun:
    """Agents on seats 0, 1, ... The first agent hosts the rendezvous and stays."""

    def __init__(self, folder: Path, model: str, workers: int, least: int, most: int) -> None:
        """Start `workers` agents of a training that can run on any number of workers from `least` to `most`."""
        self.stamps = folder / "stamps"
        self.stamps.mkdir(parents=True)
        self._log = (folder / "torchrun.log").open("a+")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._command = [
            sys.executable, "-m", "torch.distributed.run", f"--nnodes={least}:{most}", "--nproc-per-node=1",
            "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=bench",
            # By default torchrun waits 30 s for more agents each time.
            "--rdzv-conf=last_call_timeout=1", "--local-addr=127.0.0.1", "--max-restarts=1000",
            str(SCRIPT), model, str(STEPS), str(folder / "snapshot.pt"), str(SNAPSHOT_EVERY),
        ]
        self._agents: list[subprocess.Popen] = []
        self.resize(workers)

    def resize(self, count: int) -> None:
        """Start agents, or end the last agents with SIGTERM, as a scheduler does."""
        while len(self._agents) < count:
            self._agents.append(self._start(len(self._agents)))
        for agent in self._agents[count:]:
            agent.terminate()
        del self._agents[count:]

    def kill(self, stamps: list[Stamp]) -> int:
        """Send SIGKILL to the worker on the last seat, not to its agent. Return its process id."""
        pid = next(stamp.pid for stamp in reversed(stamps) if stamp.seat == len(self._agents) - 1)
        os.kill(pid, signal.SIGKILL)
        return pid

    def failure(self) -> str | None:
        """Return why the training cannot continue, None while it can."""
        ended = [seat for seat, agent in enumerate(self._agents) if agent.poll() is not None]
        return f"agent {ended[0]} of torchrun ended, see its log" if ended else None

    def close(self) -> None:
        """End the agents, and thereby their workers."""
        for agent in self._agents:
            agent.terminate()
        for agent in self._agents:
            try:
                agent.wait(10)
            except subprocess.TimeoutExpired:
                agent.kill()
                agent.wait()
        self._log.close()

    def _start(self, seat: int) -> subprocess.Popen:
        variables = environment(
            BENCH_STAMPS=str(self.stamps),
            BENCH_SEAT=str(seat),
            CUDA_VISIBLE_DEVICES=slots()[seat].gpu,
            # With the shared store torch 2.13 hangs when an agent joins.
            TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1",
        )
        return subprocess.Popen(self._command, env=variables, stdout=self._log, stderr=self._log)
