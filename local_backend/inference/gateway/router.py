"""Which part of the gateway takes a request, and the form of its refusals."""

from __future__ import annotations

from dlicmd.contract import inference_wire as wire
from local_backend.inference.gateway import refusal as refusals
from local_backend.inference.gateway.answers import send_refusal
from local_backend.inference.gateway.endpoints import Endpoints
from local_backend.inference.gateway.exchange import HttpExchange
from local_backend.inference.gateway.grpc_calls import GrpcCalls, send_status
from local_backend.inference.gateway.open_inference import OpenInference
from local_backend.inference.gateway.refusal import Refused


class RequestRouter:
    """All paths of the gateway."""

    def __init__(self, endpoints: Endpoints) -> None:
        self.endpoints = endpoints
        self._open_inference = OpenInference(endpoints)
        self._grpc = GrpcCalls(endpoints, self._open_inference)

    def admit(self, exchange: HttpExchange) -> None:
        """Find the handler, the user, the model and the limit of a request. Raises Refused."""
        path = exchange.path
        if path.startswith(wire.INFERENCE):
            self.endpoints.admit(exchange)
        elif path.startswith(wire.OIP + "/") or path == wire.OIP:
            self._open_inference.admit(exchange)
        elif is_grpc(exchange):
            if not exchange.is_multiplexed:
                raise refusals.bad_request("gRPC needs HTTP/2", close=True)
            self._grpc.admit(exchange)
        else:
            self.endpoints.admit(exchange)

    def refuse(self, exchange: HttpExchange, why: Refused) -> None:
        """Answer with a refusal, in the form that the client expects."""
        if exchange.is_multiplexed and is_grpc(exchange):
            send_status(exchange, why)
        else:
            send_refusal(exchange, why)


def is_grpc(exchange: HttpExchange) -> bool:
    """Return whether a request is a call of gRPC."""
    return exchange.headers.get("content-type", "").startswith(wire.GRPC)
