"""`toolway keys`: API keys of the gateway, and the token of this machine.

Keys are changed through the running gateway, or else in its key file.
"""

from __future__ import annotations

import inspect
import os
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import quote

import typer

from toolway.cli.exit_codes import ExitCode, UsageError
from toolway.cli.framework import CommandResult
from toolway.cli.options import CommandContext
from toolway.cli.output import Output
from toolway.cli.targets import find_gateway
from toolway.errors import NotFound
from toolway.gateway.principals import MAX_KEY_NAME_CHARS, is_valid_key_name, parse_key_rate, show_key
from toolway.gateway.state_dir import StateDir
from toolway.part_api import registry

if TYPE_CHECKING:
    from toolway.cli.targets import TargetOptions
    from toolway.types import Json

_UNIT_SECONDS: Final = {"m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 7 * 86_400.0}
_MAX_UNITS: Final = 100_000


def keys_create(
    context: CommandContext,
    name: Annotated[str, typer.Argument(help="Name of the key, such as who uses it.", show_default=False)],
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only", metavar="TOOLSET", help="Limit the key to this toolset, or server/NAME.", show_default=False
        ),
    ] = None,
    admin: Annotated[bool, typer.Option("--admin", help="Allow access to /admin.")] = False,
    rate: Annotated[
        str | None,
        typer.Option("--rate", metavar="CALLS", help="Rate limit: 10/s, 600/min, 5000/day, or none; default 100/s."),
    ] = None,
    search: Annotated[
        bool, typer.Option("--search", help="List the meta-tools of tool search instead of all tools.")
    ] = False,
    expires: Annotated[
        str | None,
        typer.Option("--expires", metavar="WHEN", help="When the key expires: 12h, 90d, or 2027-01-31."),
    ] = None,
    **limits: Any,
) -> CommandResult:
    given = {name: value for name, value in limits.items() if value is not None}
    output, options = context.output, context.target_options
    return run_keys_create(output, options, name, only or [], admin, rate, given, search, expires)


def _with_key_options(signature: inspect.Signature) -> inspect.Signature:
    """Return the signature of a command with an option for each attribute that parts add to API keys."""
    own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
    more = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                each.option_type | None, typer.Option(each.option, metavar=each.metavar, help=each.help)
            ],
        )
        for name, each in registry.key_attributes().items()
        if each.option
    ]
    at = next(number for number, each in enumerate(own) if each.name == "rate") + 1
    return signature.replace(
        parameters=[*own[:at], *more, *(each.replace(kind=each.KEYWORD_ONLY) for each in own[at:])]
    )


keys_create.__signature__ = _with_key_options(inspect.signature(keys_create, eval_str=True))  # type: ignore[attr-defined] # `inspect.signature` reads it


def keys_ls(context: CommandContext) -> CommandResult:
    return run_keys_ls(context.output, context.target_options)


def keys_revoke(
    context: CommandContext,
    id_: Annotated[str, typer.Argument(metavar="ID", help="Id of the key.", show_default=False)],
) -> CommandResult:
    return run_keys_revoke(context.output, context.target_options, id_)


def keys_local_token(context: CommandContext) -> CommandResult:
    """Show a token that every program of your user account can read. It has full access, even to /admin."""
    return run_local_token(context.output)


# -- API keys ----------------------------------------------------------------------------------------------------------


async def run_keys_create(
    output: Output,
    target_options: TargetOptions,
    name: str,
    only: Sequence[str],
    admin: bool,
    rate: str | None,
    limits: Mapping[str, Any],
    search: bool = False,
    expires: str | None = None,
) -> ExitCode:
    """Create an API key of the gateway and print its token, which is never shown again."""
    if not is_valid_key_name(name):
        raise UsageError(f"invalid key name: it must have 1 to {MAX_KEY_NAME_CHARS} printable characters on one line")
    if admin and only:
        raise UsageError(
            "--only and --admin cannot be used together",
            detail="a key with --admin can call every tool and create more keys",
            hint=f"create two keys: toolway keys create {name} --only {only[0]}, and another one with --admin",
        )
    try:
        limit = parse_key_rate(rate)
        for attribute, value in limits.items():
            registry.key_attributes()[attribute].read(value)
    except ValueError as exc:
        raise UsageError(str(exc)) from None
    ends_at = _parse_expiry(expires) if expires is not None else None
    gateway = await find_gateway(output, target_options)
    limited_to = list(only) or None
    if gateway is not None:
        created = await gateway.request_admin(
            "POST",
            "keys",
            {"name": name, "access": limited_to, "admin": admin, "rate": rate, **limits}
            | ({"search": True} if search else {})
            | ({"expires": ends_at} if ends_at is not None else {}),
        )
    else:
        store = StateDir.default(os.environ).open_key_store()
        token, key = store.create_key_sync(*(name, limited_to, admin, time.time(), limit, search, ends_at), **limits)
        created = {**show_key(key), "token": token}
    if output.as_json:
        output.print_raw_json(created)
        return ExitCode.OK
    sys.stdout.write(created["token"] + "\n")
    output.info(f"key {created['id']} for {name}, {_describe_key(created)}. It is not shown again; revoke it with:")
    output.info(f"  toolway keys revoke {created['id']}")
    if limited_to is None and not admin:
        output.info("it can call every tool; to limit it, create one with --only TOOLSET or --only server/NAME")
    return ExitCode.OK


async def run_keys_ls(output: Output, target_options: TargetOptions) -> ExitCode:
    """Print all API keys of the gateway, without their secret tokens."""
    gateway = await find_gateway(output, target_options)
    if gateway is not None:
        keys = (await gateway.request_admin("GET", "keys"))["keys"]
    else:
        keys = [show_key(key) for key in StateDir.default(os.environ).open_key_store().list_keys()]
    if output.as_json:
        output.print_json({"keys": keys})
    elif keys:
        rows = [
            (key["id"], key["name"], _describe_key(key), format_date(key["created"]), _describe_expiry(key))
            for key in keys
        ]
        output.print_table(("id", "name", "access", "created", "until"), rows)
    else:
        output.info("no API keys yet. The local token has full access: toolway keys local-token")
    return ExitCode.OK


async def run_keys_revoke(output: Output, target_options: TargetOptions, id_: str) -> ExitCode:
    """Revoke an API key of the gateway. Requests with this key are rejected from now on."""
    gateway = await find_gateway(output, target_options)
    if gateway is not None:
        await gateway.request_admin("DELETE", f"keys/{quote(id_, safe='')}")
    elif not StateDir.default(os.environ).open_key_store().revoke_key_sync(id_):
        raise NotFound(f"unknown key {id_!r}", hint="list all: toolway keys ls")
    if output.as_json:
        output.print_json({"revoked": id_})
    else:
        output.info(f"key {id_} is revoked")
    return ExitCode.OK


def describe_access(key: Json) -> str:
    """Describe what a key or user may use, and with which limits."""
    only: Any = key["access"]
    access = "everything" if only is None else ", ".join(only)
    access = f"{access} and /admin" if key["admin"] else access
    access = f"{access}, by search" if key.get("search") else access
    limits = [key["rate"]] if key.get("rate") else []
    for name, each in registry.key_attributes().items():
        if key.get(name):
            limits += each.describe(key[name])
    return ", ".join([access, *limits])


def _describe_key(key: Json) -> str:
    return describe_access(key) if key.get("rate") else f"{describe_access(key)}, no rate limit"


def _describe_expiry(key: Json) -> str:
    expires = key["expires"]
    if expires is None:
        return ""
    return f"ended {format_date(expires)}" if expires <= time.time() else format_date(expires)


def _parse_expiry(text: str) -> float:
    """Parse an expiry (`90d`, `12h`, `30m`, or a date) to seconds since 1970. Raises `UsageError`."""
    number, unit = text[:-1], text[-1:]
    if unit in _UNIT_SECONDS and number.isascii() and number.isdecimal() and 0 < int(number) <= _MAX_UNITS:
        return time.time() + int(number) * _UNIT_SECONDS[unit]
    try:
        found = datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise UsageError("invalid expiry date", detail=text[:50], hint="use 12h, 90d, or 2027-01-31") from None
    if found.timestamp() <= time.time():
        raise UsageError("the expiry date is in the past", detail=text[:50], hint="use 12h, 90d, or 2027-01-31")
    return found.timestamp()


def format_date(seconds: float) -> str:
    """Return seconds since 1970 as a date with hours and minutes, in local time."""
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M")


# -- token of this machine ---------------------------------------------------------------------------------------------


def run_local_token(output: Output) -> int:
    """Print the access token that programs on this machine use for its gateway."""
    state = StateDir.default(os.environ)
    if output.as_json:
        output.print_raw_json({"token": state.read_token(), "file": str(state.folder / "token")})
    else:
        sys.stdout.write(state.read_token() + "\n")
    return ExitCode.OK
