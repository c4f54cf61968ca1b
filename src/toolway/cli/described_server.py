"""Servers that a `server.json` or an MCPB bundle describes: inputs, review and installation.

The document is untrusted. Its entry must pass the admission rules, and the user sees all of it before it is added.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from toolway._os import SYSTEM_NAME, data_folder
from toolway.cli.exit_codes import UsageError
from toolway.cli.file_changes import confirm, with_tilde
from toolway.cli.output import Output
from toolway.config import mcpb, server_json
from toolway.config.admission.entry import ADMISSION_CODE, AdmissionPolicy, check_entry, rejection_error
from toolway.config.approval.accesses import entry_accesses
from toolway.config.loader import decode_config, read_config_bytes
from toolway.config.server_entry import parse_entry_with_issues
from toolway.errors import ConfigError
from toolway.network.policy import NetworkPolicy
from toolway.secrets import open_store, remember_secret

if TYPE_CHECKING:
    from toolway.config.mcpb import Bundle
    from toolway.config.server_json import InstallInput
    from toolway.part_api.found_server import FoundServer

_SHA256_HEX: Final = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class DescribedServer:
    """A server described by a `server.json` file or a bundle: its entry, and its admission rules."""

    name: str
    entry: dict[str, Any] = field(repr=False)
    policy: AdmissionPolicy
    inputs: Sequence[InstallInput] = ()
    bundle: Bundle | None = None
    folder: Path | None = None  # where the bundle is unpacked

    def check_admission(self, addresses: NetworkPolicy) -> None:
        """Raise `ConfigError` if the admission rules reject the entry."""
        variables = {"HOME": os.environ.get("HOME") or str(Path.home())}
        server = parse_entry_with_issues(self.entry, variables)[0]
        rejection = check_entry(server, self.policy, addresses)
        if rejection is not None:
            hint = "if you trust it, add it by its command or its URL: toolway add NAME -- COMMAND"
            raise rejection_error(self.name, rejection, hint)

    def digest(self, entry: Mapping[str, Any]) -> str:
        """Return the SHA-256 of the added server: its name, its entry and the content of its bundle."""
        content = {"server": self.name, "entry": entry, "bundle": self.bundle.sha256 if self.bundle is not None else ""}
        text = json.dumps(content, sort_keys=True)
        if self.folder is not None:
            text = text.replace(json.dumps(str(self.folder))[1:-1], "${__dirname}")  # the same on every machine
        return hashlib.sha256(text.encode()).hexdigest()


def read_described_server(
    output: Output, file: Path, name: str, answers: Mapping[str, str], offer: int
) -> DescribedServer:
    """Return the server that an MCPB bundle or a server.json file describes. Nothing is stored or unpacked.

    The entry is called `name`, or else as the file says. Inputs are taken from `answers` or prompted for.
    """
    if file.suffix == ".json":
        text = decode_config(read_config_bytes(os.fspath(file)), os.fspath(file))
        return _read_server_json(output, text, os.fspath(file), name, answers, offer)
    return _read_bundle(output, file, name, answers)


def describe_found_server(
    output: Output, found: FoundServer, name: str, answers: Mapping[str, str], offer: int
) -> DescribedServer:
    """Return the server that a part found by its name, as `read_described_server` does."""
    described = _read_server_json(output, json.dumps(found.document), found.origin, name, answers, offer)
    more = {**(found.command_keys if "command" in described.entry else {}), **found.keys}
    return replace(described, entry={**described.entry, **more})


def _read_bundle(output: Output, file: Path, name: str, answers: Mapping[str, str]) -> DescribedServer:
    bundle = mcpb.read_bundle(file, name)
    values = _collect_answers(output, bundle.inputs, answers)
    folder = _data_dir() / "bundles" / bundle.folder_name
    entry = mcpb.build_bundle_entry(bundle, folder, values, SYSTEM_NAME)
    policy = mcpb.admission_policy(bundle, folder, values, SYSTEM_NAME)
    return DescribedServer(bundle.name, entry, policy, bundle.inputs, bundle, folder)


def _read_server_json(
    output: Output, text: str, origin: str, name: str, answers: Mapping[str, str], offer: int
) -> DescribedServer:
    described = server_json.parse_server_json(text, origin, name=name)
    offers = [each for each in described.options if each.entry is not None]
    if not 0 < offer <= len(offers):
        labels = "; ".join(f"{number} {each.label}" for number, each in enumerate(offers, 1))
        raise UsageError(
            f"{origin} does not offer {offer}",
            detail=labels or "it has only a bundle, which must be downloaded first",
            hint="pick one with --offer" if offers else f"download and add it: {described.options[0].bundle}",
        )
    for number, each in enumerate(offers, 1):
        if len(offers) > 1:
            output.info(f"{'→' if number == offer else ' '} --offer {number}: {each.label}", "dim")
    values = _collect_answers(output, offers[offer - 1].inputs, answers)
    texts = {key: value[0] if isinstance(value, list) else str(value) for key, value in values.items()}
    answered = server_json.parse_server_json(text, origin, name=name, answers=texts)
    chosen = [each for each in answered.options if each.entry is not None][offer - 1]
    policy = server_json.admission_policy(chosen, texts)
    return DescribedServer(described.short_name, chosen.entry or {}, policy, chosen.inputs)


# -- inputs ------------------------------------------------------------------------------------------------------------


def _collect_answers(output: Output, asks: Sequence[InstallInput], answers: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of the inputs that a bundle or server.json asks for, except secrets.

    They are taken from `answers` or prompted for. Raises `UsageError` for an unknown input, a secret in `answers`, or
    a missing value.
    """
    unknown = answers.keys() - {ask.name for ask in asks}
    if unknown:
        known = ", ".join(ask.name for ask in asks) or "nothing"
        raise UsageError(f"unknown input {', '.join(sorted(unknown))}", detail=f"its inputs are: {known}")
    found: dict[str, Any] = {}
    for ask in asks:
        if ask.name in answers and ask.secret:
            raise UsageError(
                f"{ask.name} is a secret and cannot be passed on the command line",
                hint=f"toolway secrets set {ask.secret_name}",
            )
        if ask.name in answers:
            found[ask.name] = [answers[ask.name]] if ask.allows_many else answers[ask.name]
        elif ask.needs_value and not ask.secret:
            typed = _prompt(output, ask)
            found[ask.name] = [typed] if ask.allows_many else typed
    return found


def _prompt(output: Output, ask: InstallInput) -> str:
    typed = ""
    if _can_prompt(output):
        sys.stderr.write(output.sanitize(f"{ask.name} ({', '.join(ask.choices) or ask.description}): "))
        sys.stderr.flush()
        typed = sys.stdin.readline().strip()
    if not typed:
        raise UsageError(
            f"{ask.name} is required", detail=ask.description, hint=f"pass it with: --set {ask.name}=VALUE"
        )
    return typed


def _can_prompt(output: Output) -> bool:
    return not output.as_json and not output.quiet and sys.stdin.isatty() and sys.stderr.isatty()


# -- review and installation -------------------------------------------------------------------------------------------


def review(
    output: Output,
    described: DescribedServer,
    entry: Mapping[str, Any],
    *,
    yes: bool,
    digest: str | None,
    dry_run: bool,
) -> None:
    """Show the complete entry to add, and ask the user to confirm. Only shows it with `dry_run`.

    `digest` accepts exactly the entry with this SHA-256, `yes` accepts every entry. Raises `UsageError` if neither is
    given without a terminal, and `ConfigError` if the user declines or the digest is another.
    """
    found = described.digest(entry)
    if digest is not None and not _SHA256_HEX.fullmatch(digest):
        raise UsageError("invalid digest: expected 64 hex characters", hint="show it: toolway add SOURCE --dry-run")
    if not output.as_json:
        _print_entry(output, described.name, entry)
        for secret in _stored_secrets(described.inputs):
            output.print_line(f"  {'gets a stored secret':<22}  {secret}", "yellow")
        output.print_line(f"sha256 {found}\n", "dim")
    if dry_run:
        return
    if digest is not None and digest != found:
        raise ConfigError(
            f"server {described.name!r} is not the one you reviewed",
            detail=f"its digest is {found}",
            hint="review it again: toolway add SOURCE --dry-run",
            code=ADMISSION_CODE,
        )
    if digest is None and not confirm(output, "Add this server, exactly as it is shown?", yes):
        raise ConfigError(
            f"server {described.name!r} was not added",
            detail="it was not confirmed",
            hint=f"to add it without a prompt: --digest {found}",
            code=ADMISSION_CODE,
        )


def _print_entry(output: Output, name: str, entry: Mapping[str, Any]) -> None:
    """Print all keys of an entry, and what it runs, reads and sends, as `toolway trust` does.

    The values are ASCII JSON. None is masked or shortened.
    """
    output.print_line(name, "bold")
    for key, value in entry.items():
        rows = {f"{key}.{inner}": text for inner, text in value.items()} if isinstance(value, Mapping) else {key: value}
        for label, text in rows.items():
            output.print_line(f"  {json.dumps(label)[1:-1]:<22}  {json.dumps(text)}")
    for access in entry_accesses(entry):
        output.print_line(f"  {json.dumps(str(access))[1:-1]}", "yellow")


def _stored_secrets(asks: Sequence[InstallInput]) -> list[str]:
    """Return the names of secrets that the server would get from the secret store without a prompt."""
    names = [ask.secret_name for ask in asks if ask.secret]
    if not names:
        return []
    store = open_store(os.environ)
    return [name for name in names if store.get(name) is not None]


def install(output: Output, described: DescribedServer) -> None:
    """Store the secrets of a confirmed server, and unpack its bundle."""
    for ask in described.inputs:
        if ask.secret:
            _store_secret(output, ask)
    if described.bundle is not None and described.folder is not None:
        mcpb.unpack_bundle(described.bundle, described.folder)
        file, folder = described.bundle.path.name, with_tilde(described.folder)
        output.info(f"unpacked {file} to {folder}; its sha256 is {described.bundle.sha256}")


def _store_secret(output: Output, ask: InstallInput) -> None:
    store = open_store(os.environ)
    if store.get(ask.secret_name) is not None:
        return
    prompt = output.sanitize(f"{ask.name} ({ask.description}; not shown): ")
    value = getpass.getpass(prompt) if _can_prompt(output) else ""
    if value:
        remember_secret(value)
        store.set(ask.secret_name, value)
    elif ask.required:
        output.info(f"a secret is missing: toolway secrets set {ask.secret_name}", "yellow")


def _data_dir() -> Path:
    return data_folder(os.environ) or Path.home() / ".local/share/toolway"
