"""The setting `toolway.approve`: which calls through the gateway someone must approve.

"approve": {
  "destructive": "client",
  "bank.*": "admin",
  "bank.balance": "none",
  "prod-db.query": {"by": "admin", "when": "!args.sql.startsWith('select')"}
}

A key is `destructive` or a pattern of `server.tool`. The last pattern that matches a tool decides. The rule
`destructive` also applies, unless that pattern says `none`; the stricter one wins.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import translate
from typing import Any, Final, Literal, cast

import msgspec

from toolway.config.field_reader import (
    CONFIG_KEY_CODE,
    field_error,
    json_type_name,
    quote_plain_word,
    shorten_key,
)
from toolway.errors import ConfigError

ApprovedBy = Literal["client", "admin", "none"]
APPROVERS: Final = ("client", "admin", "none")
DESTRUCTIVE: Final = "destructive"  # tools whose server says `destructiveHint: true`
MAX_RULES: Final = 1000
MAX_CONDITION_CHARS: Final = 4096


class ApproveRule(msgspec.Struct, frozen=True):
    """A rule in `toolway.approve`: who must approve a tool's calls, and when."""

    by: ApprovedBy  # client: the user of the calling client; admin: an administrator of the gateway; none
    when: str = ""  # CEL expression over `args`; "": every call


def parse_approve(block: Any) -> Mapping[str, ApproveRule]:
    """Return the rules of `toolway.approve` by key, in the order of the file.

    Raises `ConfigError` if one is invalid.
    """
    if block is None:
        return {}
    if not isinstance(block, Mapping):
        raise field_error("toolway.approve", "an object, such as {'bank.*': 'admin'}", block)
    if len(block) > MAX_RULES:
        raise ConfigError(
            "toolway.approve has too many rules", detail=f"{len(block)} of at most {MAX_RULES}", code=CONFIG_KEY_CODE
        )
    return {_check_key(str(key)): _parse_rule(str(key), value) for key, value in block.items()}


def _check_key(key: str) -> str:
    if key != DESTRUCTIVE and (key.startswith("!") or ("." not in key and "*" not in key)):
        raise field_error("a key of toolway.approve", f"{DESTRUCTIVE!r} or server.tool, such as bank.*", key)
    return key


def _parse_rule(key: str, value: Any) -> ApproveRule:
    path = f"toolway.approve.{shorten_key(key)}"
    by, when = (value.get("by"), value.get("when", "")) if isinstance(value, Mapping) else (value, "")
    if isinstance(value, Mapping) and (unknown := [str(name) for name in value if name not in ("by", "when")]):
        detail, hint = ", ".join(unknown)[:200], "known keys: by and when"
        raise ConfigError(f"unknown key in {path}", detail=detail, hint=hint, code=CONFIG_KEY_CODE)
    if by not in APPROVERS:
        found = quote_plain_word(by) if isinstance(by, str) else json_type_name(by)
        raise ConfigError(
            f"{path} must be 'client', 'admin' or 'none', or an object with `by` and `when`",
            detail=f"found {found}",
            hint="it was renamed: use 'admin'"
            if by == "operator"
            else 'use "admin" to ask an administrator, "client" to ask the user',
            code=CONFIG_KEY_CODE,
        )
    if not isinstance(when, str) or len(when) > MAX_CONDITION_CHARS:
        raise field_error(f"{path}.when", f"a CEL expression of at most {MAX_CONDITION_CHARS} characters", when)
    if by == "none" and (when or key == DESTRUCTIVE):
        raise ConfigError(
            f"{path} cannot be 'none'" if not when else f"{path}: 'none' cannot have a condition",
            hint="remove the rule" if not when else "put the condition in a rule that asks for approval",
            code=CONFIG_KEY_CODE,
        )
    return ApproveRule(cast(ApprovedBy, by), when)


class ApproveRules:
    """Compiled rules of `toolway.approve`. No I/O.

    A server's hints can add a question but never skip one, so a tool without hints only needs approval if a pattern
    matches its name.
    """

    def __init__(self, rules: Mapping[str, ApproveRule]) -> None:
        self._destructive = rules.get(DESTRUCTIVE)
        names = [(key, rule) for key, rule in rules.items() if key != DESTRUCTIVE]
        self._patterns = [(re.compile(translate(key.replace("[", "[[]"))), rule) for key, rule in reversed(names)]

    def __bool__(self) -> bool:
        return self._destructive is not None or bool(self._patterns)

    def find(self, server: str, tool: str, *, destructive: bool) -> tuple[ApproveRule, ...]:
        """Return the rules that may require approval for a call to this tool, with administrators' rules first."""
        name = f"{server}.{tool}"
        named = next((rule for pattern, rule in self._patterns if pattern.match(name)), None)
        if named is not None and named.by == "none":
            return ()
        found = [rule for rule in (named, self._destructive if destructive else None) if rule is not None]
        return tuple(sorted(found, key=lambda rule: rule.by != "admin"))
