"""The command that serves on stdin and stdout: it puts the server together with its tools and modes."""

from __future__ import annotations

import contextlib
import os

from toolway.testing.fakes import tools
from toolway.testing.fakes.modes import Modes
from toolway.testing.fakes.options import parser, read, server_options
from toolway.testing.fakes.process_modes import MODES
from toolway.testing.fakes.server import Server
from toolway.testing.fakes.stdio import Stdio


def main() -> None:
    command = parser("A stdio MCP server that misbehaves on purpose.")
    command.add_argument("--silent-probe", action="append_const", dest="mode", const="silent_probe")
    command.add_argument("--die-on-probe", action="append_const", dest="mode", const="die_on_probe")
    options = read(command, MODES)
    with contextlib.suppress(KeyboardInterrupt):
        Stdio(Server(tools, **server_options(options)), Modes(MODES, options.mode)).run()
    os._exit(0)  # whatever still waits in a thread has nobody left to answer
