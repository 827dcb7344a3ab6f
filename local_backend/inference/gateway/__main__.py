"""Run the gateway: `python -m local_backend.inference.gateway CONFIG.json`."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import uvloop

from local_backend.errors import ServingError
from local_backend.inference.gateway.config import GatewayFailed, read_config
from local_backend.inference.gateway.process import run
from local_backend.tracing import GATEWAY, traced


def main(arguments: list[str]) -> int:
    """Run the gateway until SIGTERM or a hand-over. Return the exit status."""
    if len(arguments) != 1:
        print("usage: python -m local_backend.inference.gateway CONFIG.json", file=sys.stderr)
        return 2
    try:
        config = read_config(Path(arguments[0]))
        logging.basicConfig(filename=config.log, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
        with traced(GATEWAY):
            uvloop.run(run(config))
    except (GatewayFailed, ServingError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
