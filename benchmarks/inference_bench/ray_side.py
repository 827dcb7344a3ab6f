"""Ray Serve: `python ray_side.py noop PORT`."""

from __future__ import annotations

import signal
import sys

from ray import serve
from starlette.requests import Request
from starlette.responses import Response


@serve.deployment(num_replicas=1, max_ongoing_requests=1000)
class Noop:
    """Answers with its input."""

    async def __call__(self, request: Request) -> Response:
        return Response(await request.body(), media_type="application/json")


if __name__ == "__main__":
    serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[2])})
    serve.run(Noop.bind())
    signal.pause()
