"""Command-line options of the fake servers, and the command of the stdio server."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys

from toolway.testing import tools
from toolway.testing.faults import ActiveFaults, format_fault_table
from toolway.testing.server import ERAS, FakeServer
from toolway.testing.stdio import StdioServer
from toolway.testing.stdio_faults import STDIO_FAULTS

TYPE_CHECKING = False  # importing typing would take a third of the start

if TYPE_CHECKING:
    from typing import Any

    from toolway.testing.faults import FaultTable


def main() -> None:
    arg_parser = build_parser("Fake stdio MCP server that misbehaves on request.")
    arg_parser.add_argument("--silent-probe", action="append_const", dest="mode", const="silent_probe")
    arg_parser.add_argument("--die-on-probe", action="append_const", dest="mode", const="die_on_probe")
    options = parse_options(arg_parser, STDIO_FAULTS)
    with contextlib.suppress(KeyboardInterrupt):
        StdioServer(FakeServer(tools, **server_options(options)), ActiveFaults(STDIO_FAULTS, options.mode)).run()
    os._exit(0)  # threads that still wait have no client left to respond to


def build_parser(description: str) -> argparse.ArgumentParser:
    """Return a parser with the options that the fake stdio and HTTP servers have in common."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--era", choices=ERAS, default="both", help="protocol era to support (both)")
    options.add_argument(
        "--mode", action="append", default=[], metavar="NAME[=VALUE][;OPTION=VALUE]…", help="fault mode; repeatable"
    )
    options.add_argument("--list-modes", action="store_true", help="show all fault modes and exit")
    options.add_argument("--name", default="fake", help="name of the server (fake)")
    options.add_argument("--tools", type=int, default=0, metavar="N", help="number of additional tools (0)")
    options.add_argument("--page", type=int, default=0, metavar="N", help="page size of tools/list (0: one page)")
    options.add_argument("--ttl", type=int, default=0, metavar="MS", help="ttlMs of modern results (0)")
    options.add_argument("--effects", default="", metavar="FILE", help="file to which the tool `counter` writes")
    return options


def parse_options(arg_parser: argparse.ArgumentParser, fault_table: FaultTable) -> argparse.Namespace:
    """Parse the command line of a fake server.

    Exits after `--list-modes`, and with a usage error for an invalid fault mode.
    """
    options = arg_parser.parse_args()
    if options.list_modes:
        print(format_fault_table(fault_table))
        sys.exit()
    try:
        ActiveFaults(fault_table, options.mode)
    except ValueError as error:
        arg_parser.error(f"{error} (--list-modes shows all)")
    return options


def server_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the keyword arguments of `FakeServer` from the parsed options."""
    return {name: getattr(options, name) for name in ("name", "era", "tools", "page", "ttl", "effects")}
