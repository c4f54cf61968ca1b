"""`toolway add` of a published description: an MCPB bundle, or a `server.json` of the registry."""

from __future__ import annotations

import getpass
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toolway.cli.exits import UsageError
from toolway.cli.output import Output
from toolway.cli.showing import tilde
from toolway.config import mcpb, server_json
from toolway.config.asks import Ask
from toolway.config.formats import content, text_of
from toolway.secrets import open_store, remember


def entry_of(
    output: Output, file: Path, answers: Mapping[str, str], offer: int, *, dry_run: bool
) -> tuple[str, dict[str, Any]]:
    """The name and the entry that a file describes. What it asks for is taken from `answers`, or asked."""
    if file.suffix == ".json":
        return _of_registry(output, file, answers, offer, dry_run)
    return _of_bundle(output, file, answers, dry_run)


def _of_bundle(output: Output, file: Path, answers: Mapping[str, str], dry_run: bool) -> tuple[str, dict[str, Any]]:
    bundle = mcpb.read(file)
    given = _answered(output, bundle.asks, answers, dry_run)
    version = f"-{bundle.version}" if bundle.version else ""
    folder = _data_folder() / "bundles" / f"{bundle.name}{version}".replace("/", "-")
    entry = mcpb.entry(bundle, folder, given, sys.platform)  # raises before anything is unpacked
    if not dry_run:
        mcpb.unpack(bundle, folder)
        output.say(f"{file.name} is unpacked to {tilde(folder)}; its sha256 is {bundle.sha256}")
    return bundle.name, entry


def _of_registry(
    output: Output, file: Path, answers: Mapping[str, str], offer: int, dry_run: bool
) -> tuple[str, dict[str, Any]]:
    described = server_json.parse(text_of(content(os.fspath(file)), os.fspath(file)), os.fspath(file))
    offers = [each for each in described.offers if each.entry is not None]
    if not 0 < offer <= len(offers):
        labels = "; ".join(f"{number} {each.label}" for number, each in enumerate(offers, 1))
        raise UsageError(
            f"{file} has no offer {offer}",
            evidence=labels or "it is a bundle only, which has to be fetched first",
            fix="choose one with --offer" if offers else f"fetch and add it: {described.offers[0].bundle}",
        )
    chosen = offers[offer - 1]
    for number, each in enumerate(offers, 1):
        if len(offers) > 1:
            output.say(f"{'→' if number == offer else ' '} --offer {number}: {each.label}", "dim")
    given = _answered(output, chosen.asks, answers, dry_run)
    return described.short, _with_answers(chosen.entry or {}, chosen.asks, given)


def _with_answers(entry: dict[str, Any], asks: Sequence[Ask], given: Mapping[str, Any]) -> dict[str, Any]:
    """Answers for variables and headers stand in the entry; others stay what the description makes of them."""
    for ask in asks:
        field, _, name = ask.where.partition(".")
        if ask.name in given and not ask.secret and field in ("env", "headers") and name:
            entry[field] = {**entry.get(field, {}), name: str(given[ask.name])}
        elif ask.open and not ask.secret and field == "args" and ask.name in given:
            wanted = "${" + ask.name.upper().replace("-", "_") + "}"
            entry["args"] = [str(given[ask.name]) if word == wanted else word for word in entry.get("args", [])]
    return entry


def _answered(output: Output, asks: Sequence[Ask], answers: Mapping[str, str], dry_run: bool) -> dict[str, Any]:
    """Answers to what is asked; a secret goes into the store and nowhere else. Raises `UsageError`."""
    unknown = answers.keys() - {ask.name for ask in asks}
    if unknown:
        known = ", ".join(ask.name for ask in asks) or "nothing"
        raise UsageError(f"it does not ask for {', '.join(sorted(unknown))}", evidence=f"it asks for {known}")
    found: dict[str, Any] = {}
    for ask in asks:
        if ask.name in answers and ask.secret:
            raise UsageError(
                f"{ask.name} is a secret, and is not given on the command line",
                fix=f"toolway secrets set {ask.secret_name}",
            )
        if ask.name in answers:
            found[ask.name] = [answers[ask.name]] if ask.many else answers[ask.name]
        elif ask.secret and not dry_run:
            _keep(output, ask)
        elif ask.open and not ask.secret and (said := _ask(output, ask)) is not None:
            found[ask.name] = [said] if ask.many else said
    return found


def _keep(output: Output, ask: Ask) -> None:
    store = open_store(os.environ)
    if store.get(ask.secret_name) is not None:
        return
    value = getpass.getpass(f"{ask.name} ({ask.description}; it is not shown): ") if _somebody(output) else ""
    if value:
        remember(value)
        store.set(ask.secret_name, value)
    elif ask.required:
        output.say(f"it needs a secret: toolway secrets set {ask.secret_name}", "yellow")


def _ask(output: Output, ask: Ask) -> str | None:
    if not _somebody(output):
        raise UsageError(
            f"{ask.name} has to be known", evidence=ask.description, fix=f"give it: --set {ask.name}=VALUE"
        )
    sys.stderr.write(f"{ask.name} ({', '.join(ask.choices) or ask.description}): ")
    sys.stderr.flush()
    return sys.stdin.readline().strip() or None


def _somebody(output: Output) -> bool:
    return not output.as_json and not output.quiet and sys.stdin.isatty() and sys.stderr.isatty()


def _data_folder() -> Path:
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path(os.environ.get("HOME") or Path.home()) / ".local/share") / "toolway"
