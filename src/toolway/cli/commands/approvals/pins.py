"""`toolway pins`: definitions of tools, prompts and templates that changed since they were pinned.

The commands read and write the file of the pins. A gateway that runs with it applies an approval within a second.
"""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from toolway._lazy import dataclass
from toolway.cli.exit_codes import ExitCode
from toolway.cli.framework import CommandResult
from toolway.cli.options import CommandContext
from toolway.config.locations import gateway_state_folder
from toolway.errors import ConfigError, NotFound

if TYPE_CHECKING:
    from toolway.catalog.pin_keeper import PinFile
    from toolway.catalog.pins import Deviation, ServerPins
    from toolway.cli.output import Output
    from toolway.types import Json

_KINDS: Final = ("tools", "prompts", "templates")
_MAX_VALUE_CHARS: Final = 300

ItemNames = Annotated[
    list[str],
    typer.Argument(
        metavar="NAME…", help="server.tool, or a server for all of its definitions that wait.", show_default=False
    ),
]


def pins_ls(context: CommandContext) -> CommandResult:
    """List the definitions that changed, are new, or hide text.

    A held definition is in no list and no search, and a call of it fails.
    """
    return run_pins_ls(context.output)


def pins_diff(context: CommandContext, names: ItemNames) -> CommandResult:
    """Show the pinned and the received definition of a tool, prompt or template."""
    return run_pins_diff(context.output, names)


def pins_approve(
    context: CommandContext,
    names: ItemNames,
    digest: Annotated[
        str | None,
        typer.Option(
            "--digest", metavar="SHA256", help="Approve only if the definition has this digest.", show_default=False
        ),
    ] = None,
) -> CommandResult:
    """Approve the received definitions. A gateway uses them within a second."""
    return run_pins_approve(context.output, names, digest)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A definition that deviates from its pin."""

    server: ServerPins
    key: str  # kind/name
    deviation: Deviation

    @property
    def name(self) -> str:
        return f"{self.server.name}.{self.key.partition('/')[2]}"

    def to_json(self) -> Json:
        found = self.deviation
        return {
            "name": self.name,
            "kind": self.key.partition("/")[0],
            "reason": found.reason,
            "held": found.held,
            "since": found.since,
            "digest": found.digest,
            "findings": list(found.findings),
        }


def run_pins_ls(output: Output) -> ExitCode:
    """Print the pinned servers and the definitions that deviate."""
    file = _pin_file()
    servers = [*_load(file).values()]
    waiting = _waiting(servers)
    if output.as_json:
        rows = [{"server": each.name, "pins": len(each.pins)} for each in servers]
        output.print_json({"servers": rows, "deviations": [each.to_json() for each in waiting]})
        return ExitCode.OK
    if not servers:
        output.info("there are no pins yet: `toolway serve` pins the definitions of each server that it starts")
        return ExitCode.OK
    if waiting:
        rows_ = [
            (each.name, "held" if each.deviation.held else "noted", each.deviation.reason, _first_finding(each))
            for each in waiting
        ]
        output.print_table(("definition", "state", "reason", "finding"), rows_)
        output.info(f"see the difference: toolway pins diff {waiting[0].name}")
    count = sum(len(each.pins) for each in servers)
    output.info(f"{count} definitions of {len(servers)} servers are pinned in {file.path}", "dim")
    return ExitCode.OK


def run_pins_diff(output: Output, names: list[str]) -> ExitCode:
    """Print what differs between the pinned and the received definition."""
    from toolway.catalog.pins import describe_changes

    chosen = _choose(_waiting(_load(_pin_file()).values()), names)
    documents: list[Json] = []
    for each in chosen:
        pin = each.server.pins.get(each.key)
        old = pin.definition if pin is not None else None
        new = each.deviation.definition
        changes = describe_changes(old if old is not None else {}, new if new is not None else {})
        documents.append({**each.to_json(), "changes": [{"path": path, "old": a, "new": b} for path, a, b in changes]})
        if output.as_json:
            continue
        output.print_line(f"{each.name} ({each.deviation.reason})", "bold")
        if new is None:
            output.print_line("  the definition is too large to be kept: compare it at the server")
        for path, before, after in changes:
            if before is not None:
                output.print_line(f"- {path}  {_show(before)}", "red")
            if after is not None:
                output.print_line(f"+ {path}  {_show(after)}", "green")
        for finding in each.deviation.findings:
            output.print_line(f"  note: {finding}")
        output.info(f"approve it: toolway pins approve {each.name} --digest {each.deviation.digest}")
    if output.as_json:
        output.print_json({"definitions": documents})
    return ExitCode.OK


def run_pins_approve(output: Output, names: list[str], digest: str | None) -> ExitCode:
    """Approve the named definitions, and print them."""
    file = _pin_file()
    chosen = _choose(_waiting(_load(file).values()), names)
    if digest is not None:
        other = [each for each in chosen if each.deviation.digest != digest]
        if other:
            raise _changed_error(other[0], f"its digest is {other[0].deviation.digest}")
    approved: list[str] = []
    for each in chosen:
        if not file.approve(each.server, {each.key: each.deviation.digest}, time.time()):
            raise _changed_error(each, "it changed again while you approved it")
        approved.append(each.name)
    if output.as_json:
        output.print_json({"approved": approved})
    else:
        for name in approved:
            output.info(f"approved {name}")
    return ExitCode.OK


def _changed_error(waiting: _Waiting, detail: str) -> ConfigError:
    return ConfigError(
        f"{waiting.name} has another definition than the one you reviewed",
        detail=detail,
        hint=f"see the difference: toolway pins diff {waiting.name}",
        code="E-PINS-DIGEST",
    )


def _pin_file() -> PinFile:
    from toolway.catalog.pin_keeper import PIN_FILE_NAME, PinFile

    folder = gateway_state_folder(os.environ)
    if folder is None:
        raise ConfigError("no state folder", detail="HOME is not set", hint="set HOME or TOOLWAY_STATE", code="E-STATE")
    return PinFile(folder / PIN_FILE_NAME)


def _load(file: PinFile) -> dict[str, ServerPins]:
    from toolway.catalog.pin_keeper import DamagedPinsError

    try:
        return file.load()
    except DamagedPinsError as exc:
        raise ConfigError(
            "the pins cannot be read",
            detail=f"{file.path}: {exc}",
            hint=f"restore the file, or remove it to pin all definitions again: {file.path}",
            code="E-PINS-FILE",
        ) from None


def _waiting(servers: Any) -> list[_Waiting]:
    return [_Waiting(each, key, found) for each in servers for key, found in each.deviations.items()]


def _choose(waiting: list[_Waiting], names: list[str]) -> list[_Waiting]:
    """Return the waiting definitions that are named. Raises `NotFound` if a name has none."""
    chosen: list[_Waiting] = []
    for name in names:
        found = [each for each in waiting if name in (each.name, each.server.name)]
        if not found:
            raise NotFound(
                f"no definition of {name} waits",
                detail=", ".join(each.name for each in waiting)[:300] or "nothing waits",
                hint="list what waits: toolway pins ls",
            )
        chosen += [each for each in found if each not in chosen]
    return chosen


def _first_finding(waiting: _Waiting) -> str:
    return waiting.deviation.findings[0][:80] if waiting.deviation.findings else ""


def _show(value: Any) -> str:
    """Return a value on one line. Everything that is not ASCII is escaped, so that nothing stays invisible."""
    text = json.dumps(value)
    return text if len(text) <= _MAX_VALUE_CHARS else text[: _MAX_VALUE_CHARS - 1] + "…"
