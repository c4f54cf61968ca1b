"""`toolway trust tools`: tools, prompts, templates, and instructions that changed since they were pinned.

The commands ask the running gateway. If no gateway is running, they read and write the pin file.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Annotated, Final

import typer

from toolway.catalog.pin_keeper import PIN_FILE_NAME, DamagedPinsError, PinFile
from toolway.catalog.pin_report import describe_pins
from toolway.cli.exit_codes import ExitCode
from toolway.cli.framework import CommandResult
from toolway.cli.options import CommandContext
from toolway.cli.targets import find_gateway
from toolway.config.locations import gateway_state_folder
from toolway.errors import ConfigError, NotFound

if TYPE_CHECKING:
    from toolway.catalog.pins import ServerPins
    from toolway.cli.gateway_client import GatewayClient
    from toolway.cli.output import Output
    from toolway.types import Json

_MAX_SHOWN_CHARS: Final = 300

ItemNames = Annotated[
    list[str],
    typer.Argument(
        metavar="NAME…",
        help="server.tool, server/instructions, or a server for all its changes.",
        show_default=False,
    ),
]


def pins_ls(context: CommandContext) -> CommandResult:
    """List the definitions of servers that changed since they were pinned, are new, or contain hidden text.

    A definition on hold is in no list and no search, and a call of it fails.
    """
    return run_pins_ls(context)


def pins_diff(context: CommandContext, names: ItemNames) -> CommandResult:
    """Show the pinned and the received definition of a tool, prompt, template or of instructions."""
    return run_pins_diff(context, names)


def pins_accept(
    context: CommandContext,
    names: ItemNames,
    digest: Annotated[
        str | None,
        typer.Option(
            "--digest", metavar="SHA256", help="Accept only if the definition has this digest.", show_default=False
        ),
    ] = None,
) -> CommandResult:
    """Accept what the server sends now. All nodes of a cluster use it within a second."""
    return run_pins_accept(context, names, digest)


class _FilePins:
    """The pinned definitions in the state folder, used when no gateway is running."""

    def __init__(self, file: PinFile) -> None:
        self._file = file
        self.place = str(file.path)

    def _load(self) -> dict[str, ServerPins]:
        try:
            return self._file.load()
        except DamagedPinsError as exc:
            raise ConfigError(
                "the pins cannot be read",
                detail=f"{self._file.path}: {exc}",
                hint=f"restore the file, or remove it to pin all definitions again: {self._file.path}",
                code="E-PINS-FILE",
            ) from None

    async def list(self) -> Json:
        return describe_pins(self._load().values())

    async def accept(self, deviation: Json) -> None:
        key = f"{deviation['kind']}/{deviation['item']}"
        for server in self._load().values():
            is_named = server.name == deviation["server"]
            if is_named and self._file.approve(server, {key: deviation["digest"]}, time.time()):
                return
        raise _changed_error(deviation["name"], "it changed again during your review")


class _GatewayPins:
    """The pinned definitions of a running gateway or its cluster."""

    def __init__(self, gateway: GatewayClient) -> None:
        self._gateway = gateway
        self.place = gateway.url

    async def list(self) -> Json:
        return await self._gateway.request_admin("GET", "pins")

    async def accept(self, deviation: Json) -> None:
        body = {name: deviation[name] for name in ("server", "kind", "item", "digest")}
        await self._gateway.request_admin("POST", "pins/accept", body)


async def _open_pins(context: CommandContext) -> _FilePins | _GatewayPins:
    gateway = await find_gateway(context.output, context.target_options)
    if gateway is not None:
        return _GatewayPins(gateway)

    folder = gateway_state_folder(os.environ)
    if folder is None:
        raise ConfigError("no state folder", detail="HOME is not set", hint="set HOME or TOOLWAY_STATE", code="E-STATE")
    return _FilePins(PinFile(folder / PIN_FILE_NAME))


async def run_pins_ls(context: CommandContext) -> ExitCode:
    """Print the definitions that differ from the pinned ones, and the number of pinned servers."""
    output, pins = context.output, await _open_pins(context)
    found = await pins.list()
    if output.as_json:
        output.print_json(found)
        return ExitCode.OK
    servers, waiting = found["servers"], found["deviations"]
    if not servers:
        output.info("no pins yet: `toolway serve` pins the definitions of each server it starts")
        return ExitCode.OK
    if waiting:
        rows = [
            (
                each["name"],
                "on hold" if each["on_hold"] else "in use",
                each["reason"],
                "".join(each["findings"][:1])[:80],
            )
            for each in waiting
        ]
        output.print_table(("definition", "state", "reason", "finding"), rows)
        output.info(f"see the difference: toolway trust tools diff {waiting[0]['name']}")
    count = sum(each["pins"] for each in servers)
    output.info(f"{count} definitions of {len(servers)} servers are pinned ({pins.place})", "dim")
    return ExitCode.OK


async def run_pins_diff(context: CommandContext, names: list[str]) -> ExitCode:
    """Print the differences between the pinned and the received definitions."""
    output = context.output
    chosen = _choose((await (await _open_pins(context)).list())["deviations"], names)
    if output.as_json:
        output.print_json({"definitions": chosen})
        return ExitCode.OK
    for each in chosen:
        _print_difference(output, each)
    return ExitCode.OK


def _print_difference(output: Output, deviation: Json) -> None:
    output.print_line(f"{deviation['name']} ({deviation['reason']})", "bold")
    if not deviation["complete"]:
        output.print_line("  the definition is too large to store: compare it on the server")
    for change in deviation["changes"]:
        if change["old"] is not None:
            output.print_line(f"- {change['path']}  {_cut(change['old'])}", "red")
        if change["new"] is not None:
            output.print_line(f"+ {change['path']}  {_cut(change['new'])}", "green")
    for finding in deviation["findings"]:
        output.print_line(f"  note: {finding}")
    output.info(f"accept it: toolway trust tools accept {deviation['name']} --digest {deviation['digest']}")


async def run_pins_accept(context: CommandContext, names: list[str], digest: str | None) -> ExitCode:
    """Accept the named definitions, and print their names."""
    output, pins = context.output, await _open_pins(context)
    chosen = _choose((await pins.list())["deviations"], names)
    for each in chosen:
        if digest is not None and each["digest"] != digest:
            raise _changed_error(each["name"], f"its digest is {each['digest']}")
    for each in chosen:
        await pins.accept(each)
    if output.as_json:
        output.print_json({"accepted": [each["name"] for each in chosen]})
    else:
        for each in chosen:
            output.info(f"accepted {each['name']}")
    return ExitCode.OK


def _changed_error(name: str, detail: str) -> ConfigError:
    return ConfigError(
        f"{name} changed after you reviewed it",
        detail=detail,
        hint=f"see the difference: toolway trust tools diff {name}",
        code="E-PINS-DIGEST",
    )


def _choose(waiting: list[Json], names: list[str]) -> list[Json]:
    """Return the definitions waiting for a review that match `names`, which name a definition or its server.

    Raises `NotFound` if nothing is waiting under a name.
    """
    chosen: list[Json] = []
    for name in names:
        found = [each for each in waiting if name in (each["name"], each["server"])]
        if not found:
            raise NotFound(
                f"nothing to review for {name}",
                detail=", ".join(each["name"] for each in waiting)[:300] or "nothing is waiting",
                hint="see what is waiting: toolway trust tools ls",
            )
        chosen += [each for each in found if each not in chosen]
    return chosen


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN_CHARS else text[: _MAX_SHOWN_CHARS - 1] + "…"
