"""Every command of `toolway`, a line each. `--help` shows this table and loads nothing else."""

from __future__ import annotations

from typing import Final

from toolway.cli.frame import Entry
from toolway.cli.options import FILE, TALK

KEYS: Final = {
    "create": Entry("Make a key and show it, once.", "gateway:keys_create"),
    "ls": Entry("Show all keys.", "gateway:keys_ls"),
    "revoke": Entry("End a key.", "gateway:keys_revoke"),
}

TABLE: Final = {
    "ls": Entry("Show all servers: whether they work, and why not.", "servers:ls"),
    "status": Entry("Show all that is known about a server.", "servers:status"),
    "restart": Entry("Start a server of the running gateway again.", "servers:restart"),
    "tools": Entry("Search the tools of all servers.", "tools:tools"),
    "call": Entry("Call one tool and show its answer.", "tools:call"),
    "serve": Entry("Serve all servers at one endpoint, for every client.", "gateway:serve", FILE),
    "connect": Entry("Show what connects a client to the gateway.", "gateway:connect"),
    "keys": Entry("Keys for others who use the gateway.", of=KEYS),
    "token": Entry("Show the token that opens the gateway of this machine.", "gateway:token", TALK),
    "list": Entry("The same as ls.", "servers:ls", hidden=True),
}

SECTIONS: Final = {
    "Servers": ("ls", "status", "restart"),
    "Tools": ("tools", "call"),
    "The gateway": ("serve", "connect", "keys", "token"),
}
