"""`toolway audit restart`: replace a lost or altered audit log, with an administrator's consent."""

from __future__ import annotations

from typing import Annotated

import typer

from toolway._os import describe_user
from toolway.audit.log import open_error
from toolway.cli.exit_codes import ExitCode
from toolway.cli.framework import CommandResult
from toolway.cli.options import CommandContext
from toolway.errors import ConfigError
from toolway.parts.audit.log_access import LogFile, audit_settings, with_cluster_key
from toolway.parts.audit.restart import restart_log

MAX_REASON_CHARS = 500


def audit_restart(
    context: CommandContext,
    log: LogFile = None,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Why; recorded in the new log.", show_default=False)
    ] = "",
) -> CommandResult:
    """Restart a lost or altered log. The first new record names who did it, and the last signed record before it."""
    settings = with_cluster_key(audit_settings(context, log))
    try:
        done = restart_log(settings, describe_user(), reason[:MAX_REASON_CHARS])
    except ConfigError:
        raise
    except Exception as exc:
        raise open_error(settings, exc) from exc
    if context.output.as_json:
        after = {"seq": done.after.seq, "hash": done.after.hash}
        context.output.print_json(
            {"where": settings.file, "after": after, "found": done.found, "movedTo": done.moved_to}
        )
        return ExitCode.OK
    context.output.print_line(f"a new log begins: {settings.file}", "green")
    context.output.print_line(f"the earlier one was signed through record {done.after.seq}; {done.found}")
    if done.moved_to:
        context.output.print_line(f"its files are now in {done.moved_to}")
    return ExitCode.OK
