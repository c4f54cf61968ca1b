"""What only a user at a real machine can show, so no page forgets it."""

from __future__ import annotations

import sys

from tests.platforms.checks import NotRun, check
from tests.platforms.home import Home

GROUP = "A real machine only"
_KEYCHAINS = {"win32": "the Credential Manager", "darwin": "the Keychain"}


@check(GROUP, "secrets in the keychain of the desktop")
def keychain(home: Home) -> NotRun:
    return NotRun(f"needs a desktop with {_KEYCHAINS.get(sys.platform, 'Secret Service or KWallet')}")


@check(GROUP, "a desktop client starts `toolway serve --stdio` and lists the tools")
def desktop_client(home: Home) -> NotRun:
    return NotRun("needs Claude Desktop, Cursor or Windsurf with its window")


@check(GROUP, "`toolway login` in the browser of the desktop")
def browser(home: Home) -> NotRun:
    return NotRun("needs a desktop; the login above uses a fake browser")


@check(GROUP, "an audit record outlives a power cut")
def power_cut(home: Home) -> NotRun:
    ways = {"win32": "FlushFileBuffers", "darwin": "F_FULLFSYNC"}
    return NotRun(f"needs a machine whose power can be cut; {ways.get(sys.platform, 'fdatasync')} is called")


@check(GROUP, "a server that stays within the system's own sandbox (`sandbox-exec`)")
def seatbelt(home: Home) -> NotRun:
    return NotRun("needs a Mac" if sys.platform == "darwin" else "only macOS has it")


@check(GROUP, "nobody else on the machine can read the state folder")
def access_lists(home: Home) -> NotRun:
    return NotRun("needs a second user" + (" and NTFS; Wine keeps no access lists" if sys.platform == "win32" else ""))


@check(GROUP, "Ctrl-C at a console ends the gateway and its servers")
def console(home: Home) -> NotRun:
    return NotRun(
        "needs a console window and someone at it" if sys.platform == "win32" else "needs someone at a terminal"
    )
