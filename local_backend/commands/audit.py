"""`local-backend audit`: the records of what users did, newest first."""

from __future__ import annotations

import json

import click

from local_backend.commands.running import owner, refusals, settings_here


@click.command(short_help="Show what users did.")
@click.option("--user", default="", metavar="USER", help="Only records of this user.")
@click.option("--action", default="", metavar="ACTION", help="Only actions that begin so, such as exec. or user.add.")
@click.option("--outcome", type=click.Choice(["done", "refused", "failed", "cut"]), help="Only this outcome.")
@click.option("--from", "begin", default="", metavar="TIME", help="Only records since this time (ISO 8601).")
@click.option("--to", "end", default="", metavar="TIME", help="Only records before this time (ISO 8601).")
@click.option("-n", "--number", type=click.IntRange(1, 1000), default=50, show_default=True,
              help="Maximum number of records.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="Output format.")
def audit(*, user: str, action: str, outcome: str | None, begin: str, end: str, number: int, output: str) -> None:
    """Show the records of the audit log, newest first."""
    from local_backend.api.administration import audit_filter
    from local_backend.services.audit import AuditService
    from local_backend.services.base import Recorder, audit_log

    settings = settings_here()
    with refusals():
        wanted = audit_filter(user, action, outcome or "", begin, end)
        service = AuditService(Recorder(settings, audit_log(settings)))
        found = service.records(owner(settings), wanted, 0, number)
    if output == "json":
        click.echo(json.dumps(found, indent=2))
        return
    for one in found:
        code = f" ({one['code']})" if "code" in one else ""
        about = f" {', '.join(one['about'])}" if one["about"] else ""
        # Everything except printable ASCII is escaped, as in the file.
        text = f"{one['time']}  {one['user']}  {one['action']}{about}: {one['outcome']}{code}"
        click.echo(text.encode("ascii", "backslashreplace").decode())
