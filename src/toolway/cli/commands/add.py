"""`toolway add` and `toolway new`: an entry for an existing server, or a project for a new one."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from toolway.cli import described_server
from toolway.cli.commands.approvals.trust import move_secrets_to_store
from toolway.cli.exit_codes import ExitCode, UsageError
from toolway.cli.file_changes import (
    apply_own_edit,
    file_for_scope,
    mask_secrets,
    network_policy_for,
    plan_own_change,
    read_own_entries,
    with_tilde,
)
from toolway.cli.framework import CommandResult
from toolway.cli.new_server import CONFIG_FILE, NewServer, create_project
from toolway.cli.options import CommandContext
from toolway.cli.output import problem_to_json
from toolway.cli.params import DryRun, Plain, Scope, Yes
from toolway.cli.targets import server_name_from_url
from toolway.config.loader import normalize_name
from toolway.config.schema import check_server_name
from toolway.config.server_entry import parse_entry_with_issues
from toolway.config.settings import find_private_hosts
from toolway.errors import ConfigError, ToolwayError
from toolway.part_api import registry

if TYPE_CHECKING:
    from toolway.part_api.found_server import FoundServer

_SERVER_URL: Final = re.compile(r"(?:https?|wss?)://", re.IGNORECASE)
_PACKAGE_SOURCE: Final = re.compile(r"(pypi|npm):(.+)")
_KIND_SOURCE: Final = re.compile(r"([a-z][a-z0-9-]+):(.+)")  # a transport and its source, such as openapi:FILE
_BUNDLE_SUFFIXES: Final = (".mcpb", ".dxt", "server.json")
_RUNNERS: Final = frozenset({"npx", "uvx", "node", "python", "python3", "docker", "podman", "bunx", "deno", "uv", "sh"})
_NAME_AFFIXES: Final = re.compile(r"^(?:mcp-server-|server-|mcp-)|(?:-mcp-server|-mcp|-server)$")
_ADD_USAGE: Final = (
    "toolway add NAME -- COMMAND …, toolway add URL, or pypi:PACKAGE, npm:PACKAGE, openapi:DOCUMENT, "
    "a name in the registry such as io.github.OWNER/SERVER, a .mcpb or server.json file"
)


def add(
    context: CommandContext,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME] SOURCE",
            help="A URL, a registry name, pypi:, npm: or openapi:SOURCE, a .mcpb or server.json file; NAME -- COMMAND",
            show_default=False,
        ),
    ],
    env: Annotated[
        list[str] | None, typer.Option("--env", "-e", metavar="NAME=VALUE", help="Environment variable of the command.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="'NAME: VALUE'", help="HTTP header for the URL.")
    ] = None,
    cwd: Annotated[str | None, typer.Option("--cwd", metavar="FOLDER", help="Folder where the command runs.")] = None,
    scope: Scope = None,
    answer: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Input of a bundle or server.json.")
    ] = None,
    offer: Annotated[
        int, typer.Option("--offer", metavar="N", min=1, help="Use this offer of a server.json.", show_default=False)
    ] = 1,
    replace: Annotated[bool, typer.Option("--replace", help="Replace an existing server of this name.")] = False,
    yes: Yes = False,
    digest: Annotated[
        str | None,
        typer.Option("--digest", metavar="SHA256", help="Add it only if it is what was reviewed.", show_default=False),
    ] = None,
    plain: Plain = False,
    dry_run: DryRun = False,
) -> CommandResult:
    """Add a server by its URL or package: toolway add https://mcp.example.com/mcp, toolway add npm:PACKAGE.

    A server name and its command: toolway add files -- npx -y PACKAGE /folder. A name in the MCP registry, which you
    review first: toolway add io.github.OWNER/SERVER.

    Tokens are moved to the secret store, and the entry references them.
    """
    from toolway.cli.commands.add import run_add

    return run_add(
        context,
        words,
        env=env or [],
        headers=header or [],
        cwd=cwd,
        scope=scope,
        answers=answer or [],
        offer=offer,
        replace=replace,
        yes=yes,
        digest=digest,
        plain=plain,
        dry_run=dry_run,
    )


def new(
    context: CommandContext,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the server, for example my-notes.", show_default=False)
    ],
    http: Annotated[bool, typer.Option("--http", help="Serve Streamable HTTP instead of stdio.")] = False,
    folder: Annotated[
        Path | None,
        typer.Option("--dir", metavar="PATH", help="Folder of the project. Default: NAME.", show_default=False),
    ] = None,
) -> CommandResult:
    """Write a small project: a server with typed tools, its tests, a README and its config entry.

    Example: toolway new my-notes && cd my-notes && toolway doctor.
    """
    server = NewServer(name, http)
    target = folder or Path(name)
    files = create_project(server, target)
    steps = [f"cd {shlex.quote(os.fspath(target))}", *server.next_steps]
    output = context.output
    if output.as_json:
        output.print_json(
            {
                "server": name,
                "folder": os.fspath(target.absolute()),
                "package": server.package,
                "files": files,
                "entry": server.entry,
                "config": os.fspath(target.absolute() / CONFIG_FILE),
                "next": steps,
            }
        )
        return ExitCode.OK
    output.info(f"created {name} in {target}, with its entry in {CONFIG_FILE}:", "green")
    output.print_raw_json({name: server.entry})
    output.info("next:")
    for step in steps:
        output.info(f"  {step}")
    return ExitCode.OK


# -- entries from the command line -------------------------------------------------------------------------------------


def run_add(
    context: CommandContext,
    words: Sequence[str],
    *,
    env: Sequence[str],
    headers: Sequence[str],
    cwd: str | None,
    scope: str | None,
    answers: Sequence[str],
    offer: int,
    replace: bool,
    yes: bool,
    digest: str | None,
    plain: bool,
    dry_run: bool,
) -> ExitCode:
    """Add a server entry to one of Toolway's config files.

    The entry of a `server.json` or a bundle must pass the admission rules, and is shown before it is added. Tokens are
    moved to the secret store, and the entry references them.
    """
    output = context.output
    file = file_for_scope(context, scope)
    described, found = None, _find_by_name(context, words)
    if found is not None or words[-1].endswith(_BUNDLE_SUFFIXES):
        inputs = dict(_split_pair(each, "=", "--set NAME=VALUE") for each in answers)
        chosen = words[0] if len(words) > 1 else ""
        if found is not None:
            described = described_server.describe_found_server(output, found, chosen, inputs, offer)
        else:
            described = described_server.read_described_server(output, Path(words[-1]), chosen, inputs, offer)
        name, entry = described.name, described.entry
        described.check_admission(network_policy_for(file))
    else:
        name, entry = parse_spec(words)
    check_server_name(name)
    entry |= _entry_options(env, headers, cwd)
    parse_entry_with_issues(entry, _AnyVariable())  # raises for an unusable entry
    existing = {normalize_name(each): each for each in read_own_entries(file)}
    if name in existing and not replace:
        raise ConfigError(
            f"server {name!r} already exists",
            file=str(file),
            hint=f"pick another name, or replace it: toolway add --replace {name} …",
            code="E-CONFIG-NAME",
        )
    reviewed = {} if described is None else {"entry": entry, "digest": described.digest(entry)}
    if found is not None:
        reviewed["source"] = found.details
        for line, style in found.facts if not output.as_json else ():
            output.print_line(line, style)
    if described is not None:
        described_server.review(output, described, entry, yes=yes, digest=digest, dry_run=dry_run)
        if not dry_run:
            described_server.install(output, described)
    if not plain and not dry_run:
        entry = move_secrets_to_store(output, {name: entry})[name]
    address_problems = find_private_hosts({name: entry}, network_policy_for(file))
    edit = plan_own_change(file, {existing.get(name, name): entry}).edit
    mask_secrets(output, edit)
    document = apply_own_edit(output, edit, dry_run=dry_run)
    if found is not None and not dry_run:
        reviewed["source"] = {**found.details, **_secure(context, name, entry)}
    if output.as_json:
        output.print_json(
            {"server": name, "problems": [problem_to_json(each) for each in address_problems], **reviewed, **document}
        )
    elif not dry_run:
        output.info(f"added {name} to {with_tilde(file)}", "green")
        output.print_problems(address_problems)
        output.info(f"check that it works: toolway doctor {name}")
        words = [str(entry.get("command", "")), *map(str, entry.get("args", ()))]
        for checks in registry.guard_checks().values() if found is None else ():
            if advice := checks.advise_added(words, name):
                output.info(advice)
    return ExitCode.OK


def _find_by_name(context: CommandContext, words: Sequence[str]) -> FoundServer | None:
    """Return the server that a part finds by its name; None if the words name a file, a URL, a command or a package."""
    part = registry.by_server_name(words[-1]) if len(words) <= 2 else None
    if part is None or words[-1].endswith(_BUNDLE_SUFFIXES) or (len(words) == 2 and Path(words[1]).exists()):
        return None
    return part.find_server(context, words[-1])


def _secure(context: CommandContext, name: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Let parts secure an added server, such as lock its packages; print and return what they did."""
    words = [str(entry.get("command", "")), *map(str, entry.get("args", ()))]
    done: list[str] = []
    problems: list[str] = []
    for part in registry.in_use():
        try:
            if text := part.secure_added(context, words, name):
                done.append(text)
                context.output.info(text, "green")
        except ToolwayError as exc:
            problems.append(str(exc))
            context.output.info(f"{exc.message}: {exc.detail}" if exc.detail else exc.message, "yellow")
    for checks in registry.guard_checks().values() if problems else ():
        context.output.info(checks.advise_added(words, name), "yellow")
    return {"secured": done, "notSecured": problems}


def parse_spec(words: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Return server name and entry for the words after `toolway add`.

    Raises `UsageError` if the name or the source is invalid.
    """
    if len(words) == 1:
        return _entry_from_source(words[0])
    if len(words) == 2 and _is_source(words[1]):
        return words[0], _entry_from_source(words[1])[1]
    if words[0] in _RUNNERS or _is_source(words[0]) or words[1].startswith("-"):
        raise UsageError(f"invalid server name {words[0]!r}", hint=f"toolway add NAME -- {' '.join(words)}")
    return words[0], {"command": words[1], "args": list(words[2:])} if words[2:] else {"command": words[1]}


def _is_source(word: str) -> bool:
    return bool(_SERVER_URL.match(word) or _PACKAGE_SOURCE.fullmatch(word) or _kind_entry(word))


def _entry_from_source(word: str) -> tuple[str, dict[str, Any]]:
    if _SERVER_URL.match(word):
        return server_name_from_url(word), {"url": word}
    package = _PACKAGE_SOURCE.fullmatch(word)
    if package is not None:
        return _package_entry(package[1], package[2])
    if found := _kind_entry(word):
        return found[0], dict(found[1])
    raise UsageError(f"unknown source {word!r}", hint=_ADD_USAGE)


def _kind_entry(word: str) -> tuple[str, Mapping[str, Any]] | None:
    """Return server name and entry for KIND:SOURCE, such as openapi:DOCUMENT; None if no transport reads it."""
    source = _KIND_SOURCE.fullmatch(word)
    transport = registry.transport(source[1]) if source is not None else None
    if source is None or transport is None:
        return None
    if source[2].startswith("//"):
        return server_name_from_url(word), {"url": word}
    found = transport.entry_from_source(source[2])
    if found is None:
        return None
    return server_name_from_url(found[0]) if "://" in found[0] else normalize_name(found[0]), found[1]


def _package_entry(registry: str, package: str) -> tuple[str, dict[str, Any]]:
    bare = re.split(r"==|(?<=.)@", package)[0]
    name = _NAME_AFFIXES.sub("", normalize_name(bare.rpartition("/")[2])) or normalize_name(bare)
    if registry == "npm":
        return name, {"command": "npx", "args": ["-y", package]}
    return name, {"command": "uvx", "args": [package.replace("==", "@")]}


def _entry_options(env: Sequence[str], headers: Sequence[str], cwd: str | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if env:
        found["env"] = dict(_split_pair(each, "=", "-e NAME=value") for each in env)
    if headers:
        found["headers"] = dict(_split_pair(each, ":", "-H 'Name: value'") for each in headers)
    if cwd:
        found["cwd"] = str(Path(cwd).absolute())
    return found


def _split_pair(text: str, separator: str, usage: str) -> tuple[str, str]:
    name, found, value = text.partition(separator)
    if not found or not name.strip():
        raise UsageError("a value is missing its name", hint=f"use {usage}")
    return name.strip(), value.strip()


class _AnyVariable(dict[str, str]):
    """An environment in which every variable counts as set, to check only the entry itself."""

    def get(self, key: str, default: Any = None) -> Any:
        return "x"

    def __contains__(self, key: object) -> bool:
        return True

    def __missing__(self, key: str) -> str:
        return "x"
