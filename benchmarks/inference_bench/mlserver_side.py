"""MLServer: `python mlserver_side.py noop PORT`; its route is /echo. Its adaptive batching takes only requests of the
Open Inference Protocol, so it has no part in the row of the network."""

from __future__ import annotations

import asyncio
import socket
import sys

from mlserver import MLModel, MLServer, ModelSettings, Settings
from mlserver.handlers import custom_handler
from starlette.requests import Request
from starlette.responses import Response


class Noop(MLModel):
    """Answers with its input."""

    @custom_handler(rest_path="/echo", rest_method="POST")
    async def echo(self, request: Request) -> Response:
        """Answer with the body."""
        return Response(await request.body(), media_type="application/json")


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


async def main(port: int) -> None:
    """Serve until SIGTERM. The model runs in the process of the server, which is faster for this model."""
    settings = Settings(host="127.0.0.1", http_port=port, grpc_port=free_port(), metrics_endpoint=None, debug=False,
                        parallel_workers=0, gzip_enabled=False)
    server = MLServer(settings)
    await server.start([ModelSettings(name="noop", implementation=Noop)])


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[2])))
