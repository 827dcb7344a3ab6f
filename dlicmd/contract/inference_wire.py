"""Paths, header names and content types of the data plane: what the gateway of models reads and sends."""

from __future__ import annotations

DLIM = "/dlim/v1"
#: Followed by the name of a model: the body goes to a kernel verbatim, and the answer of the kernel comes back.
INFERENCE = DLIM + "/inference/"
#: The Open Inference Protocol, version 2.
OIP = "/v2"
OIP_MODELS = OIP + "/models/"
OIP_LIVE, OIP_READY = OIP + "/health/live", OIP + "/health/ready"
#: Full name of the service of the Open Inference Protocol in gRPC. A method follows the slash.
GRPC_SERVICE = "/inference.GRPCInferenceService/"

#: Headers that may carry a token, besides `Authorization: Bearer`.
TOKEN_HEADERS = ("x-auth-token", "x-user-token")
#: Seconds that the client waits for an answer.
REQUEST_TIMEOUT = "request-timeout"
#: Bytes of JSON at the beginning of a body with the binary tensor extension of the Open Inference Protocol.
HEADER_LENGTH = "inference-header-content-length"
TRACE_PARENT = "traceparent"
#: On the Unix socket between the server and the gateway: the user that the server has found, and `1` for an admin.
LOCAL_USER, LOCAL_ADMIN = "x-dlicmd-user", "x-dlicmd-admin"
#: Scope of a token that may only send requests to models.
INFERENCE_SCOPE = "inference"

JSON, TEXT, BYTES = "application/json", "text/plain; charset=utf-8", "application/octet-stream"
EVENTS = "text/event-stream"
GRPC = "application/grpc"
#: Member of the metadata of a task that names a part of the request: see `KernelTask` in docs/kernel-protocol.md.
META_TYPE, META_LENGTH, META_DEADLINE, META_TRACE = "content_type", "header_length", "deadline", "traceparent"
