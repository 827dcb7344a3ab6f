"""LitServe: `python litserve_side.py noop|cnn PORT`."""

import sys
from typing import Any

import litserve
from fastapi import Request


class Noop(litserve.LitAPI):
    """Answers with its input."""

    def setup(self, device: str) -> None: ...

    def decode_request(self, request: Request) -> Any:
        return request

    def predict(self, found: Any) -> Any:
        return found

    def encode_response(self, output: Any) -> Any:
        return output


class Images(litserve.LitAPI):
    """Answers with the scores of images, in batches."""

    def setup(self, device: str) -> None:
        from network import network

        self.network = network()

    def decode_request(self, request: Request) -> Any:
        return request["data"]

    def batch(self, inputs: list[Any]) -> list[Any]:
        return inputs

    def predict(self, found: list[Any]) -> list[Any]:
        from network import answers

        return answers(self.network, found)

    def unbatch(self, output: list[Any]) -> list[Any]:
        return output

    def encode_response(self, output: Any) -> Any:
        return {"scores": output}


if __name__ == "__main__":
    api = Noop() if sys.argv[1] == "noop" else Images(max_batch_size=32, batch_timeout=0.005)
    litserve.LitServer(api, accelerator="cpu").run(port=int(sys.argv[2]), host="127.0.0.1", generate_client_file=False,
                                                   log_level="error")
