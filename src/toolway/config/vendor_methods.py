"""Vendor methods: methods that the protocol does not know, and that a server entry lets pass at its own endpoint."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Final

from toolway._lazy import compile_pattern
from toolway.errors import ConfigError

_METHOD: Final = compile_pattern(r"[A-Za-z0-9._$/-]{1,128}")
_PATTERN: Final = compile_pattern(r"[A-Za-z0-9._$/*?-]{1,128}")
#: First parts of the methods of the protocol, of any version, and of ours. No entry can let them pass.
_RESERVED: Final = frozenset(
    {
        *("initialize", "initialized", "ping", "server", "tools", "resources", "prompts", "completion", "logging"),
        *("sampling", "elicitation", "roots", "tasks", "subscriptions", "notifications", "cancelled", "progress"),
        *("message", "toolway"),
    }
)


def is_vendor_method(method: str) -> bool:
    """Return True if a method is well-formed and belongs neither to the protocol nor to Toolway.

    A notification may begin with `notifications/`.
    """
    namespace = method.removeprefix("notifications/").partition("/")[0]
    return _METHOD.fullmatch(method) is not None and namespace not in _RESERVED and not method.startswith("rpc.")


def passes(method: str, patterns: Iterable[str]) -> bool:
    """Return True if `method` is a vendor method that one of the patterns names."""
    return is_vendor_method(method) and any(fnmatchcase(method, pattern) for pattern in patterns)


def check_vendor_methods(patterns: Iterable[str]) -> tuple[str, ...]:
    """Check the patterns of an entry, and return them as a tuple.

    Raises `ConfigError` if one is no pattern, or can only match methods of the protocol or of Toolway.
    """
    found = tuple(patterns)
    for pattern in found:
        is_text = isinstance(pattern, str) and not isinstance(patterns, str)
        if not is_text or _PATTERN.fullmatch(pattern) is None:
            raise ConfigError(
                "vendorMethods must be a list of methods or patterns",
                hint='write "vendorMethods": ["x-acme/*"]',
                code="E-CONFIG-KEY",
            )
        namespace = pattern.removeprefix("notifications/").partition("/")[0]
        if namespace in _RESERVED or pattern.startswith("rpc."):
            raise ConfigError(
                f"vendorMethods cannot name {pattern}",
                detail="methods of the protocol and of Toolway have their own rules",
                hint="remove it",
                code="E-CONFIG-KEY",
            )
    return found
