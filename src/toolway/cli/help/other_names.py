"""Former names of commands and options, and names from other programs. The error gives ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from toolway.cli.exit_codes import UsageError, did_you_mean
from toolway.part_api import registry

#: Names before 0.1, with all their words, and the commands that replace them.
RENAMED: Final = {
    "import": "clients import",
    "export": "clients export",
    "sync": "clients sync",
    "status": "show",
    "get": "show NAME --entry",
    "list": "ls",
    "tokens": "tools cost",
    "codegen": "tools codegen",
    "trace": "calls show",
    "lock": "trust lock",
    "update": "trust update",
    "sandbox": "trust sandbox",
    "sandbox try": "trust sandbox",
    "who": "whoami",
    "approvals yes": "approvals approve",
    "approvals no": "approvals deny",
    "agent-help": "help agents",
    "lint": "doctor --tools",
}

#: Options before 0.1, by the command that had them, and what replaces them. Among the words of an old command, the
#: option decides: `export cursor --via-gateway` is `connect`.
RENAMED_OPTIONS: Final = {
    ("export", "--via-gateway"): "connect CLIENT",
    ("clients export", "--via-gateway"): "connect CLIENT",
    ("call", "--replay"): "calls replay ID",
    ("calls", "--principal"): "calls --caller NAME",
    ("doctor", "--company"): "doctor --security",
    ("connect", "--group"): "connect CLIENT --toolset NAME",
    ("keys create", "--scope"): "keys create NAME --only TOOLSET",
}

#: Error codes before 0.1, without the prefix `E-`.
RENAMED_CODES: Final = {
    "CONFIG-APPROVAL": "CONFIG-UNTRUSTED",
    "CONFIG-HELD": "CONFIG-REVIEW",
    "START-REFUSED": "START-REJECTED",
    "TOOL-HELD": "TOOL-ON-HOLD",
}

#: Names in other programs.
ALIASES: Final = {
    "approve": "approvals approve",
    "deny": "approvals deny",
    "accept": "trust tools accept",
    "remove": "rm",
    "delete": "rm",
    "uninstall": "rm",
    "install": "add",
    "create": "new",
    "scaffold": "new",
    "template": "new",
    "info": "show",
    "describe": "show",
    "find": "search",
    "run": "call",
    "exec": "call",
    "replay": "calls replay",
    "read": "resources",
    "prompt": "prompts",
    "resource": "resources",
    "generate": "tools codegen",
    "start": "serve",
    "up": "serve",
    "gateway": "serve",
    "dashboard": "ui",
    "web": "ui",
    "watch": "top",
    "check": "doctor",
    "diagnose": "doctor",
    "validate": "config validate",
    "rollback": "config rollback",
    "undo": "config rollback",
    "history": "config history",
    "auth": "login",
    "authenticate": "login",
    "signin": "login",
    "signout": "logout",
    "allow": "trust",
    "pin": "trust lock",
    "upgrade": "trust update",
    "nodes": "cluster nodes",
    "replicas": "cluster nodes",
    "members": "cluster nodes",
    "cordon": "cluster drain",
}


def unknown_command(path: str, args: Sequence[str], table: Mapping[str, Any]) -> UsageError:
    """Return the error for a command line whose next word is not a command of `table`.

    `path` is the command before it, such as `toolway keys`. `args` are the words that follow.
    """
    words = [*path.split()[1:], *args]
    depth = len(path.split())
    renamed, options = renamed_commands(), renamed_options()
    for length in (depth + 1, depth):
        old = " ".join(words[:length])
        if len(words) >= length and old in renamed:
            moved = [new for (command, option), new in options.items() if command == old and option in args]
            new = (moved or [renamed[old]])[0]
            return UsageError(f"unknown command {old}: use `toolway {new}`", hint=_show_usage(new))
    name, alias = " ".join(words[:depth]), ALIASES.get(args[0]) if depth == 1 else None
    suggestion = f"did you mean {path} {alias}?" if alias else did_you_mean(args[0], table)
    everything = "toolway help --all" if depth == 1 else f"{path} --help"
    return UsageError(f"unknown command {name!r}", hint=suggestion or f"list all commands: {everything}")


def find_moved_option(path: str, option: str) -> str:
    """Return the message for an option that moved or changed its meaning; "" for others."""
    new = renamed_options().get((path.partition(" ")[2], option))
    if new is not None:
        return f"unknown option {option} of {path}: use `toolway {new}`"
    if (path, option) == ("toolway", "--config"):  # without a file, in any command
        return "--config needs a FILE; to see the entry of a server: toolway show NAME --entry"
    return ""


def renamed_commands() -> dict[str, str]:
    """Return the former names of all commands, including commands of parts."""
    return {**RENAMED, **{old: new for old, new in registry.former_commands().items() if " -" not in old}}


def renamed_options() -> dict[tuple[str, str], str]:
    """Return the former options of all commands: `RENAMED_OPTIONS`, and former commands of parts with an option."""
    words = {old.rpartition(" "): new for old, new in registry.former_commands().items() if " -" in old}
    return {**RENAMED_OPTIONS, **{(command, option): new for (command, _, option), new in words.items()}}


def _show_usage(command: str) -> str:
    words = [word for word in command.split() if word.islower() and not word.startswith("-")]
    return f"show the usage: toolway {' '.join(words)} --help"
