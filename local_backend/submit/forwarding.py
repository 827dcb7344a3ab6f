"""The options of a submission that forward its metrics."""

from __future__ import annotations

from dlicmd.contract.argv import CommandLine
from local_backend.errors import Invalid
from local_backend.forward import rabbitmq, target


def targets(line: CommandLine) -> target.Targets | None:
    """Return the targets of the metrics; None if there are none. A token without a URL is ignored. Raises Invalid."""
    url, broker = line.text("--cs-url-meta"), line.text("--cs-rmq-meta")
    if not url and not broker:
        return None
    if broker and not rabbitmq.is_installed():
        raise Invalid("submission.metrics", "--cs-rmq-meta: this server has no RabbitMQ client; install it with "
                            "pip install 'dlicmd[rabbitmq]'")
    option = "--cs-url-meta"
    try:
        rest = target.rest(url, line.text("--cs-url-bearer") or "") if url else None
        option = "--cs-rmq-meta"
        rabbit = target.rabbit(broker) if broker else None
    except target.BadTarget as problem:
        raise Invalid("submission.metrics", f"{option}: {problem}") from None
    return target.Targets(rest, rabbit)
