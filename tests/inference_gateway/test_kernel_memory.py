"""What kernels can make the gateway hold."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gateway_host import model, revision

from local_backend.inference.control import GatewayState
from local_backend.inference.gateway.kernel_socket import KernelSocket
from local_backend.inference.gateway.served_models import ServedModels
from local_backend.inference.kernel import frames

HELLO = frames.json_frame(frames.HELLO, {"version": 1, "key": "key-1", "kernel": 1})


def test_the_kernel_with_the_longest_part_of_a_frame_is_closed_above_the_limit(folder: Path) -> None:
    async def work() -> tuple[bytes, int]:
        models = ServedModels(lambda waits: None, lambda when: None)
        models.apply(GatewayState(1, {"m": model("m", revision(1))}), 0.0)
        kernels = KernelSocket(models, 100_000)
        server = await asyncio.get_running_loop().create_unix_server(kernels.connection, str(folder / "k.sock"))
        async with server:
            links = [await asyncio.open_unix_connection(str(folder / "k.sock")) for _ in range(2)]
            for (reader, writer), size in zip(links, (70_000, 40_000), strict=True):
                writer.write(HELLO)
                await reader.readexactly(5)
                writer.write(frames.frame(frames.REPLY, bytes(1_000_000))[:size])
                await writer.drain()
            greedy = await links[0][0].read()
            while len(kernels.connections) > 1:
                await asyncio.sleep(0.01)
            left = len(kernels.connections)
            for _, writer in links:
                writer.close()
            return greedy, left

    _, left = asyncio.run(asyncio.wait_for(work(), 60))
    assert left == 1
