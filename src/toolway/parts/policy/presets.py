"""Policy files to start from: presets, and `toolway.access` rules written in Cedar. No I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from toolway.errors import ConfigError

_HEAD: Final = """\
// Policies of a Toolway gateway, in Cedar (https://docs.cedarpolicy.com).
// Use them with "toolway": {"policy": "policy.cedar"}. They apply in addition to `access` and `keys create --only`.
//
//   principal   User::"SUBJECT" (a user, in Group::"NAME"), User::"key:NAME" (a key), User::"local" (the local token)
//   action      call (tools), get (prompts), read (resources)
//   resource    Tool::"server.tool", Prompt::"server.prompt", Resource::"server.uri", all in Server::"NAME"
//   context     client, hour (UTC), mfa, and for tools args.NAME
//
// Anything no policy permits is denied. A forbid wins over every permit.
// Check this file: toolway policy check. Try it: toolway policy why alice github.create_issue --group eng
"""

_LOCAL: Final = """
// The local token, including `toolway serve --stdio`.
@id("local")
permit (principal == User::"local", action, resource);
"""

PRESETS: Final[Mapping[str, tuple[str, str]]] = {
    "read-only": (
        "Everyone may call tools that their servers describe as read-only, and read everything.",
        """
// The hint is the server's own claim about its tool. Pins make sure that it does not change unnoticed.
@id("read-only-tools")
permit (principal, action == Action::"call", resource) when { resource.readOnlyHint };

@id("prompts-and-resources")
permit (principal, action in [Action::"get", Action::"read"], resource);
""",
    ),
    "groups": (
        "Each group of the identity provider has its servers.",
        """
@id("engineers")
permit (principal in Group::"eng", action, resource in Server::"github");

@id("sales")
permit (principal in Group::"sales", action, resource in Server::"crm");

// No repository is deleted through the gateway.
@id("no-deletes")
forbid (principal, action == Action::"call", resource in Server::"github") when { resource.name like "delete_*" };
""",
    ),
    "careful": (
        "Everything is permitted, except destructive tools: they need several factors and working hours.",
        """
@id("all")
permit (principal, action, resource);

// A tool that says nothing about its effect counts as destructive, as the specification says.
@id("destructive-needs-mfa")
forbid (principal, action == Action::"call", resource)
when { resource.destructiveHint && principal.kind == "user" } unless { context.mfa };

@id("destructive-in-working-hours")
forbid (principal, action == Action::"call", resource)
when { resource.destructiveHint } unless { context.hour >= 7 && context.hour < 18 };
""",
    ),
    "arguments": (
        "Limits on the arguments of individual tools.",
        """
@id("bank")
permit (principal in Group::"finance", action, resource in Server::"bank");

// An argument has the type that the tool's schema says. A call without the argument is denied.
@id("large-transfers")
forbid (principal, action == Action::"call", resource == Tool::"bank.transfer")
when { context.args.amount > 1000 } unless { principal in Group::"controllers" };
""",
    ),
}


def preset_text(name: str) -> str:
    """Return the policy file of a preset. Raises `KeyError` if no preset has this name."""
    title, body = PRESETS[name]
    return f"{_HEAD}//\n// Preset {name}: {title}\n{_LOCAL}{body}"


def access_text(access: Mapping[str, Sequence[str]]) -> str:
    """Return a policy file that expresses the rules in `toolway.access` for tools and prompts.

    Raises `ConfigError` if a rule cannot be expressed in Cedar.
    """
    parts = [_HEAD, "//\n// Made from toolway.access.\n", _LOCAL]
    for group, patterns in access.items():
        included, excluded = _expressions(group, patterns)
        principal = "principal" if group == "*" else f"principal in Group::{_quote(group)}"
        scope = f'({principal}, action in [Action::"call", Action::"get"], resource)'
        user = ' && principal.kind == "user"' if group == "*" else ""
        parts.append(f"\n@id({_quote(f'access {group}')})\npermit {scope}\nwhen {{ {included}{user} }};\n")
        if excluded != "false":
            name = _quote(f"access {group}: excluded")
            parts.append(f"\n@id({name})\nforbid {scope}\nwhen {{ {excluded}{user} }};\n")
    return "".join(parts)


def _expressions(group: str, patterns: Sequence[str]) -> tuple[str, str]:
    """Convert a group's patterns to two Cedar conditions: one for included tools, and one for excluded tools.

    The last matching pattern decides. Raises `ConfigError` if a pattern cannot be expressed in Cedar.
    """
    included = excluded = "false"
    for pattern in patterns:
        if "?" in pattern:
            raise ConfigError(
                "a pattern of toolway.access cannot be written in Cedar",
                detail=f"{group}: {pattern!r} has a ?, which means any one character",
                hint="use * instead, or list the tools",
                code="E-POLICY",
            )
        matches = f"resource.id like {_quote(pattern.removeprefix('!'))}"
        if pattern.startswith("!"):
            included, excluded = f"({included} && !({matches}))", f"({excluded} || {matches})"
        else:
            included, excluded = f"({included} || {matches})", f"({excluded} && !({matches}))"
    return (included, excluded) if any(each.startswith("!") for each in patterns) else (included, "false")


def _quote(text: str) -> str:
    """Return text as a Cedar string literal. Raises `ConfigError` if it has unprintable characters.

    Cedar and JSON escape all other characters in the same way.
    """
    quoted = json.dumps(text, ensure_ascii=False)
    if any(not each.isprintable() for each in text):
        raise ConfigError("a name cannot be written in Cedar", detail=ascii(text), code="E-POLICY")
    return quoted
