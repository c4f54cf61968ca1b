"""`toolway trust` and `toolway secrets`: trusted project files and the secret store.

The value of a secret is typed or piped in. It is never an argument and is never shown.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from toolway.cli.exit_codes import ExitCode, UsageError
from toolway.cli.framework import CommandResult
from toolway.cli.options import CommandContext
from toolway.cli.output import Output
from toolway.errors import ConfigError, NotFound

if TYPE_CHECKING:
    from toolway.config.scopes import UntrustedFile
    from toolway.config.secrets import SecretMove
    from toolway.types import Json

_MAX_SECRET_CHARS: Final = 64 * 1024  # characters
_SHA256_HEX: Final = re.compile("[0-9a-f]{64}")  # the full digest: a prefix can be forged
SecretName = Annotated[
    str, typer.Argument(metavar="NAME", help="For example server.NAME; used as ${keyring:NAME}.", show_default=False)
]


def trust(
    context: CommandContext,
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="Default: the file of this project.", show_default=False)
    ] = None,
    digest: Annotated[
        str | None,
        typer.Option("--digest", metavar="SHA256", help="Trust this content without a prompt.", show_default=False),
    ] = None,
    revoke: Annotated[bool, typer.Option("--revoke", help="No longer trust the file.")] = False,
) -> CommandResult:
    """A project's config file starts no server before you trust it.

    After a change of the file it must be trusted again.
    """
    return run_trust_revoke(context.output, file) if revoke else run_trust(context.output, file, digest)


def secrets_set(
    context: CommandContext,
    name: SecretName,
    extra: Annotated[str | None, typer.Argument(hidden=True)] = None,  # accepted only to explain why it is refused
) -> CommandResult:
    """Prompt for the value of the secret, or read it from a pipe."""
    return run_secrets_set(context.output, name, extra)


def secrets_ls(context: CommandContext) -> CommandResult:
    """Show only the names of secrets, with the servers that use them."""
    return run_secrets_ls(context.output, context.target_options.config)


def secrets_rm(context: CommandContext, name: SecretName) -> CommandResult:
    return run_secrets_rm(context.output, context.target_options.config, name)


# -- trust -------------------------------------------------------------------------------------------------------------


def run_trust(output: Output, file: Path | None, digest: str | None) -> ExitCode:
    """Show the project config files that are not trusted yet, and trust those the user confirms.

    Trust is for the current content. A given digest replaces the confirmation. Commands and arguments are shown in
    full, with invisible characters escaped: the user must see what is trusted. Only values in `env` and `headers`
    that are clearly secrets are masked.
    """
    from toolway.config.scopes import open_trust_store

    if digest is not None and not _SHA256_HEX.fullmatch(digest):
        raise UsageError("a digest has 64 characters of 0-9 and a-f", hint="show it: toolway trust")
    pending = _files_to_trust(file)
    documents = [_file_to_json(each) for each in pending]
    trusted = []
    for each, document in zip(pending, documents, strict=True):
        if not output.as_json:
            _print_file(output, document)
        if _confirm_trust(each, digest, only_file=len(pending) == 1, interactive=not output.as_json):
            open_trust_store(os.environ).trust(each.path, each.content)
            trusted.append(each.path)
            if not output.as_json:
                output.info(f"trusted: {each.path}", "green")
        elif not output.as_json:
            output.info(f"not trusted; to trust this content: toolway trust --digest {each.digest}", "yellow")
    if output.as_json:
        output.print_json(
            {"files": [{**document, "trusted": Path(document["file"]) in trusted} for document in documents]}
        )
    elif not pending:
        output.info("no file needs to be trusted")
    return ExitCode.OK if len(trusted) == len(pending) else ExitCode.CONFIG


def run_trust_revoke(output: Output, file: Path | None) -> ExitCode:
    """Revoke the trust in a project's config file, so that it is no longer used."""
    from toolway.config.scopes import find_config_paths, open_trust_store

    files = [file] if file is not None else list(find_config_paths(os.environ, Path.cwd()).project)
    revoked = [str(each) for each in files if open_trust_store(os.environ).revoke(each)]
    if not revoked:
        raise NotFound("no trusted file found here", hint="name the file: toolway trust --revoke FILE")
    if output.as_json:
        output.print_json({"revoked": revoked})
    else:
        output.info(f"no longer used: {', '.join(revoked)}")
    return ExitCode.OK


def _files_to_trust(file: Path | None) -> Sequence[UntrustedFile]:
    """Return the config files to review: the named one, or the untrusted ones of this project.

    Raises `UsageError` if the named file is not a project's config file.
    """
    from toolway.config.loader import read_config_bytes
    from toolway.config.scopes import UntrustedFile, find_config_paths, load_scopes

    if file is None:
        return load_scopes(os.environ, Path.cwd()).untrusted
    path = file.absolute()
    if path not in find_config_paths(os.environ, path.parent).project:
        raise UsageError(
            f"{file} is not a project's config file",
            detail="a project's file is its mcp.json or .mcp.json; other files need not be trusted",
            hint=f"use it: toolway --config {file}",
        )
    return [UntrustedFile(path, read_config_bytes(os.fspath(path)), changed=False)]


def _confirm_trust(pending: UntrustedFile, digest: str | None, *, only_file: bool, interactive: bool) -> bool:
    from toolway.config.scopes import UNTRUSTED_CODE

    if digest is not None:
        if only_file and pending.digest != digest:
            raise ConfigError(
                f"{pending.path} differs from the content to trust",
                detail=f"its digest is {pending.digest}",
                hint="review it again: toolway trust",
                code=UNTRUSTED_CODE,
            )
        return pending.digest == digest
    if not interactive or not sys.stdin.isatty():
        return False
    sys.stderr.write("Use this file, exactly as it is now? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _file_to_json(pending: UntrustedFile) -> Json:
    from toolway.config.editing import jsonc
    from toolway.config.loader import TOOLWAY_BLOCK, decode_config, find_server_map
    from toolway.config.masking import mask_value

    file = os.fspath(pending.path)
    document = jsonc.parse_jsonc(decode_config(pending.content, file), file)
    _, entries = find_server_map(document, file)
    fields: Json = {
        "file": file,
        "digest": pending.digest,
        "changed": pending.changed,
        "servers": {name: _mask_entry(entry) for name, entry in entries.items()},
    }
    if isinstance(document.value, dict) and TOOLWAY_BLOCK in document.value:
        fields[TOOLWAY_BLOCK] = mask_value(document.value[TOOLWAY_BLOCK], TOOLWAY_BLOCK)
    return fields


def _mask_entry(entry: Any) -> Any:
    from toolway.config.masking import mask_value

    if not isinstance(entry, Mapping):
        return entry
    unmasked = {key: entry[key] for key in ("command", "args") if key in entry}
    return {**mask_value(entry), **unmasked}


def _print_file(output: Output, document: Json) -> None:
    from toolway.config.loader import TOOLWAY_BLOCK

    output.print_line(f"{document['file']}{' has changed since it was trusted' if document['changed'] else ''}", "bold")
    output.print_line(f"sha256 {document['digest']}", "dim")
    for name, entry in document["servers"].items():
        output.print_line(f"\n{_escape_json(name)[1:-1]}", "bold")
        for key, value in entry.items() if isinstance(entry, Mapping) else [("", entry)]:
            if isinstance(value, Mapping):
                for inner, text in value.items():
                    _print_field(output, f"{key}.{inner}", text)
            else:
                _print_field(output, key, value)
    if TOOLWAY_BLOCK in document:
        output.print_line(f"\n{TOOLWAY_BLOCK}  {_escape_json(document[TOOLWAY_BLOCK])}")
    output.print_line()


def _print_field(output: Output, key: str, value: Any) -> None:
    output.print_line(f"  {_escape_json(key)[1:-1]:<22}  {_escape_json(value)}")


def _escape_json(value: Any) -> str:
    """Return `value` as ASCII JSON: no look-alike letters and no control characters."""
    return json.dumps(value)


# -- secret store ------------------------------------------------------------------------------------------------------


def run_secrets_set(output: Output, name: str, extra: str | None) -> ExitCode:
    """Store a secret, or replace its value. The value is prompted for or read from a pipe."""
    from toolway.config.secret_refs import SecretRef
    from toolway.secrets import check_secret_name, open_store

    if extra is not None:
        raise UsageError(
            "a secret cannot be passed on the command line",
            detail="every user of this machine can see it there, and the shell stores it in its history",
            hint=f"toolway secrets set {check_secret_name(name)}, and type the value at the prompt",
        )
    check_secret_name(name)
    value = _read_secret_value(name)
    store = open_store(os.environ)
    store.set(name, value)
    reference = str(SecretRef("keyring", name))
    if output.as_json:
        output.print_json({"name": name, "store": store.location, "reference": reference})
    else:
        output.info(f"stored {name} in {store.location}", "green")
        output.info(f"reference it in an entry as {reference}")
    return ExitCode.OK


def run_secrets_ls(output: Output, config: Path | None) -> ExitCode:
    """Print the names of all secrets, the servers that use them, and missing secrets."""
    from toolway.auth.encrypted_token_store import KEY_SECRET_NAME as KEY_OF_LOGINS
    from toolway.secrets import open_store

    store = open_store(os.environ)
    names, users = store.names(), _servers_by_secret(output, config)
    missing = sorted(users.keys() - set(names))
    users = {**users, KEY_OF_LOGINS: ["toolway login"]}
    if output.as_json:
        rows = [
            {"name": name, "used_by": users.get(name, []), "missing": name in missing} for name in [*names, *missing]
        ]
        output.print_json({"store": store.location, "secrets": rows})
        return ExitCode.OK
    if names or missing:
        stored_rows = [(name, ", ".join(users.get(name, [])) or "–") for name in names]
        missing_rows = [
            (name, f"{', '.join(users[name])}; missing, set it: toolway secrets set {name}") for name in missing
        ]
        output.print_table(("name", "used by"), [*stored_rows, *missing_rows])
        output.info(f"stored in {store.location}", "dim")
    else:
        output.info("there are no secrets; store one with: toolway secrets set server.NAME")
    return ExitCode.OK


def run_secrets_rm(output: Output, config: Path | None, name: str) -> ExitCode:
    """Delete a secret from the secret store."""
    from toolway.secrets import check_secret_name, open_store

    check_secret_name(name)
    if not open_store(os.environ).delete(name):
        raise NotFound(f"unknown secret {name}", hint="list all: toolway secrets ls", code="E-SECRETS-NAME")
    users = _servers_by_secret(output, config).get(name, [])
    if output.as_json:
        output.print_json({"removed": name, "used_by": users})
    else:
        output.info(f"deleted {name}")
        if users:
            output.info(f"it is still referenced by {', '.join(users)}", "yellow")
    return ExitCode.OK


def _read_secret_value(name: str) -> str:
    """Read the value of a secret from a prompt or a pipe, without the final line break.

    Raises `UsageError` if the value is empty or too long.
    """
    from toolway.secrets import remember_secret

    if sys.stdin.isatty():
        value = getpass.getpass(f"value of {name} (not shown): ")
    else:
        value = sys.stdin.read(_MAX_SECRET_CHARS + 1).removesuffix("\n").removesuffix("\r")
    remember_secret(value)
    if not value or len(value) > _MAX_SECRET_CHARS:
        why = "it is empty" if not value else f"it is longer than {_MAX_SECRET_CHARS} characters"
        raise UsageError("the secret is invalid", detail=why, hint=f"toolway secrets set {name} < FILE")
    return value


def _servers_by_secret(output: Output, config: Path | None) -> Mapping[str, list[str]]:
    """Return the servers that reference each secret, by secret name."""
    from toolway.config.scopes import load_config
    from toolway.config.secrets import list_secret_refs

    try:
        servers = load_config(os.environ, Path.cwd(), config).servers
    except ConfigError as exc:
        if exc.code != "E-CONFIG-NONE" and not output.as_json:
            output.info(f"the servers that use them are unknown: {exc.message}", "yellow")
        return {}
    users: dict[str, list[str]] = {}
    for server, entry in servers.items():
        for reference in list_secret_refs(entry):
            if reference.kind == "keyring":
                users.setdefault(reference.target, []).append(server)
    return users


# -- plain-text tokens of config entries -------------------------------------------------------------------------------


def find_plain_secrets(entries: Mapping[str, Mapping[str, Any]]) -> dict[str, list[SecretMove]]:
    """Return the plain-text secrets in server entries that can be moved to the secret store."""
    from toolway.config.secrets import plan_secret_moves

    found = {name: plan_secret_moves(name, entry) for name, entry in entries.items()}
    return {name: moves for name, moves in found.items() if moves}


def move_secrets_to_store(output: Output, entries: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Move plain-text secrets of server entries to the secret store.

    Return the entries with references to the secrets.
    """
    from toolway.config.secrets import migrate_secrets
    from toolway.secrets import open_store

    result = {name: dict(entry) for name, entry in entries.items()}
    moves = find_plain_secrets(entries)
    if not moves:
        return result
    store = open_store(os.environ)
    for name, server_moves in moves.items():
        result[name] = migrate_secrets(result[name], server_moves, store)
        for move in server_moves:
            output.info(f"{name}: stored {move.location} in {store.location} as {move.name}")
    return result
