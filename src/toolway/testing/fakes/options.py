"""The command line of both fakes."""

from __future__ import annotations

import argparse
import sys

from toolway.testing.fakes.modes import Modes, table_text
from toolway.testing.fakes.server import ERAS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from toolway.testing.fakes.modes import Table


def parser(about: str) -> argparse.ArgumentParser:
    """The options that both fakes have."""
    options = argparse.ArgumentParser(description=about)
    options.add_argument("--era", choices=ERAS, default="both", help="which era to speak (both)")
    options.add_argument(
        "--mode", action="append", default=[], metavar="NAME[=VALUE][;OPTION=VALUE]…", help="misbehave; may be repeated"
    )
    options.add_argument("--list-modes", action="store_true", help="show all modes and exit")
    options.add_argument("--name", default="fake", help="what the server calls itself (fake)")
    options.add_argument("--tools", type=int, default=0, metavar="N", help="N more tools")
    options.add_argument("--page", type=int, default=0, metavar="N", help="N tools to a page of tools/list")
    options.add_argument("--ttl", type=int, default=0, metavar="MS", help="ttlMs of modern results (0)")
    options.add_argument("--effects", default="", metavar="FILE", help="where the tool `counter` writes")
    return options


def read(command: argparse.ArgumentParser, table: Table) -> argparse.Namespace:
    """Read the command line. Ends the program where there is nothing to serve."""
    options = command.parse_args()
    if options.list_modes:
        print(table_text(table))
        sys.exit()
    try:
        Modes(table, options.mode)
    except ValueError as error:
        command.error(f"{error} (--list-modes shows all)")
    return options


def server_options(options: argparse.Namespace) -> dict[str, Any]:
    """What `Server` is made of."""
    return {name: getattr(options, name) for name in ("name", "era", "tools", "page", "ttl", "effects")}
