"""The messages of `open_inference.proto`, from its compiled form `open_inference.binpb`.

They live in a pool of their own, so that the same names of a client library in the process do not conflict, and they
work with any version of protobuf.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from local_backend.inference.gateway.refusal import Refused

_COMPILED = Path(__file__).parent / "open_inference.binpb"


@cache
def messages() -> Any:
    """Return the classes of messages as attributes. Raises Refused if protobuf is not installed."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError:
        raise Refused(501, "inference.no_grpc", "gRPC needs an extra of dlicmd on the server: pip install "
                      "'dlicmd[grpc]'") from None
    files = descriptor_pb2.FileDescriptorSet.FromString(_COMPILED.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for one in files.file:
        pool.Add(one)
    found = pool.FindFileByName(files.file[0].name)
    return SimpleNamespace(**{name: message_factory.GetMessageClass(about)
                              for name, about in found.message_types_by_name.items()})
