"""Messages between the server and the gateway: one JSON object per line on a Unix socket of the home.

The gateway listens, and the server connects, again and again. The server sends the whole `GatewayState` at first and
after each change; the gateway keeps its last state while no server is there. The gateway sends a `GatewayLoad` when
something changed, at most a few times per second, and at once when requests begin to wait.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

#: What the gateway does with a revision. `starting`: it may get requests as soon as a kernel is ready. `serving`.
#: `draining`: it gets no new requests. `failed`: its kernels cannot start, and `why` says why.
RevisionState = Literal["starting", "serving", "draining", "failed"]
#: Upper bounds of the histogram of latencies: seconds from the head of a request until its answer.
LATENCY_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


@dataclass(frozen=True)
class Revision:
    """One deployed version of a model that has kernels, or gets them."""

    number: int
    #: Id of the exec that runs its kernels.
    exec_id: str
    #: Text that a kernel must show in its HELLO.
    key: str
    state: RevisionState
    #: Part of the requests that it gets, relative to the weights of the other revisions.
    weight: int = 100
    #: Why it has no kernels now, such as the reason why its exec waits for slots; "" if it has.
    why: str = ""


@dataclass(frozen=True)
class RequestLimits:
    """What bounds the requests of one model. Times are seconds, None for no limit. From the profile, see profile.py."""

    batch_size: int = 1
    #: Longest wait for further tasks of a batch, in seconds.
    batch_delay: float = 0.0
    #: Batches that a kernel gets before it has answered the first one.
    pipe_size: int = 1
    #: Tasks, or batches, that a kernel runs at the same time.
    parallel_size: int = 1
    execution_timeout: float | None = 60.0
    #: Requests that may wait; more are refused with 429.
    queue_size: int = 1000
    #: Most bytes of a request.
    body_bytes: int = 64 << 20
    #: Requests per second for each token; None for no limit.
    token_rate: float | None = None
    #: Whether requests of a kernel that died go to another kernel once.
    retry: bool = True


@dataclass(frozen=True)
class Model:
    """One model as the gateway serves it. A model without revisions is stopped."""

    name: str
    owner: str
    #: Users that may send requests; `True` for all users.
    shared: tuple[str, ...] | Literal[True] = ()
    limits: RequestLimits = field(default_factory=RequestLimits)
    revisions: tuple[Revision, ...] = ()
    #: The description of OIP's model metadata: `platform`, `inputs`, `outputs`; empty if the submission has none.
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Token:
    """A token that the server accepts. `scope` is that of an API token; None for the token of a logon."""

    user: str
    admin: bool
    #: Epoch seconds.
    expires: float
    scope: str | None = None


@dataclass(frozen=True)
class GatewayState:
    """All that the gateway must know. `tokens` are by their SHA-256 as 64 hexadecimal digits."""

    #: Increases with each change.
    version: int
    models: Mapping[str, Model] = field(default_factory=dict)
    tokens: Mapping[str, Token] = field(default_factory=dict)


@dataclass(frozen=True)
class KernelLoad:
    """One kernel that has said HELLO."""

    number: int
    pid: int
    ready: bool
    leaving: bool = False
    #: Tasks that it has now; tasks since it connected that it answered, and that failed.
    running: int = 0
    finished: int = 0
    failed: int = 0


@dataclass(frozen=True)
class RevisionLoad:
    """What the autoscaler and the views need to know about one revision. Counts are since the gateway started."""

    #: Requests that wait; that kernels have.
    queued: int = 0
    running: int = 0
    #: Seconds that the oldest waiting request has waited.
    oldest: float = 0.0
    arrived: int = 0
    finished: int = 0
    failed: int = 0
    #: Bytes of requests and answers.
    transferred: int = 0
    #: Seconds that a kernel needs for a batch: moving average, 0.0 if unknown. Tasks of a batch: moving average.
    batch_seconds: float = 0.0
    batch_tasks: float = 0.0
    #: Open connections that have sent a request to the model.
    clients: int = 0
    kernels: tuple[KernelLoad, ...] = ()


@dataclass(frozen=True)
class GatewayLoad:
    """The load of all revisions. `when` is epoch seconds. `loads` is by model and revision number. `latencies` are the
    counts of the histogram of each model since the gateway started: one for each of LATENCY_BOUNDS, and one above."""

    when: float
    loads: Mapping[str, Mapping[int, RevisionLoad]] = field(default_factory=dict)
    latencies: Mapping[str, Sequence[int]] = field(default_factory=dict)


def to_line(message: GatewayState | GatewayLoad) -> bytes:
    """Return a message as one line."""
    kind = "state" if isinstance(message, GatewayState) else "load"
    return json.dumps({"op": kind} | asdict(message)).encode() + b"\n"


def state_of(value: Mapping[str, Any]) -> GatewayState:
    """Return the state of a received object. Raises KeyError, TypeError or ValueError for anything else."""
    models = {}
    for name, one in value["models"].items():
        shared = one["shared"]
        models[name] = Model(**one | {
            "shared": True if shared is True else tuple(shared), "limits": RequestLimits(**one["limits"]),
            "revisions": tuple(Revision(**each) for each in one["revisions"]),
        })
    return GatewayState(value["version"], models, {digest: Token(**one) for digest, one in value["tokens"].items()})


def load_of(value: Mapping[str, Any]) -> GatewayLoad:
    """Return the load of a received object. Raises KeyError, TypeError or ValueError for anything else."""
    return GatewayLoad(value["when"], {name: {
        int(number): RevisionLoad(**one | {"kernels": tuple(KernelLoad(**each) for each in one["kernels"])})
        for number, one in revisions.items()} for name, revisions in value["loads"].items()},
        {name: tuple(map(int, counts)) for name, counts in value.get("latencies", {}).items()})
