"""Every `toolway …` in a hint, on a page about an error, or in the dashboard is a command that exists."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from toolway.cli.app import app
from toolway.cli.framework import LazyGroup
from toolway.cli.table import COMMANDS

ROOT = Path(__file__).resolve().parent.parent.parent
FILES = [
    *(ROOT / "src" / "toolway").rglob("*.py"),
    *(ROOT / "docs" / "errors").glob("*.md"),
    *(file for kind in ("*.ts", "*.tsx") for file in (ROOT / "dashboard" / "src").rglob(kind)),
    *(file for kind in ("*.yml", "*.yaml", "*.json") for file in (ROOT / "deploy").rglob(kind)),
]
NAMED = re.compile(r"(?<![\w./@-])(?<!from )toolway ([^`\n\"'|;#()<>]+)")
GLOBAL_VALUES = ("-c", "--config", "-g", "--gateway", "--token")
NOT_COMMANDS = {"src/toolway/cli/help/other_names.py"}  # it names old commands on purpose
# Words behind `toolway` that begin no command: labels of keys and of files, names of threads, and prose.
PROSE = {
    "src/toolway/auth/encrypted_token_store.py": "tokens",
    "src/toolway/upstream/upstream.py": "upstream",
    "src/toolway/middleware/approval.py": "gateway",
    "src/toolway/parts/lock/malware.py": "malware",
    "src/toolway/hub/event_stream.py": "watchdog",
    "src/toolway/audit/mac.py": "audit",
    "src/toolway/audit/signing.py": "audit",
    "src/toolway/audit/checkpoints.py": "audit",
    "src/toolway/audit/journal.py": "audit",
    "src/toolway/cluster/keys.py": "tenant purpose",
    "src/toolway/cli/file_changes.py": "never",
    "src/toolway/cli/commands/config.py": "never",
    "dashboard/src/components/common.tsx": "command",
    "dashboard/src/pages/agents.tsx": "agent",
}
PLACEHOLDER = re.compile(r"[{\[A-Z…]")


def find_mentions() -> list[tuple[str, int, str]]:
    found = []
    for file in FILES:
        name = file.relative_to(ROOT).as_posix()
        if name in NOT_COMMANDS:
            continue
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            found += [(name, number, match[1].strip()) for match in NAMED.finditer(line)]
    return [each for each in found if each[2].split()[0].rstrip(",.") not in PROSE.get(each[0], "").split()]


def problem_with(text: str) -> str:
    """Why the words behind `toolway` are not a command line; "" if they are one."""
    group: Any = typer.main.get_command(app)
    command, options = group, _options(group)
    path: list[str] = []
    words = iter(text.split())
    for word in words:
        name = word.rstrip(".,:")
        if word == "--" or (isinstance(command, LazyGroup) and PLACEHOLDER.match(word)):
            return ""  # only arguments follow, or the command is not known here
        if word in GLOBAL_VALUES:
            next(words, "")
        elif name.startswith("-"):
            if (option := re.split("[={]", name)[0]) not in options:
                return f"{' '.join(['toolway', *path])} has no option {option}"
        elif isinstance(command, LazyGroup) and name in command.table:
            entry = command.table[name]
            path.append(name)
            own = command.own_command(name) if entry.takes_words else None
            command = command.get_command(None, name)
            options = _options(command) | (_options(own) if own is not None else set())
        elif isinstance(command, LazyGroup) and not path:
            return f"no command {name}"
        elif isinstance(command, LazyGroup) and not _takes_words(path) and re.fullmatch(r"[a-z][a-z-]*", name):
            return f"no command {' '.join([*path, name])}"
        else:
            command = None  # arguments follow
        if name != word:
            break  # the end of the command in a sentence
    return ""


def _takes_words(path: list[str]) -> bool:
    return len(path) == 1 and COMMANDS[path[0]].takes_words


@cache
def _options(command: Any) -> set[str]:
    return {"-h", "--help", *(opt for param in command.params for opt in param.opts)}


def test_every_command_in_a_hint_exists_with_its_options():
    mentions = find_mentions()
    assert len(mentions) > 300
    wrong = [
        f"{name}:{number}: toolway {text}: {why}" for name, number, text in mentions if (why := problem_with(text))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "text",
    [
        "pins ls",
        "config show",
        "trust tools approve x",
        "call --replay ID",
        "doctor --company",
        "approvals yes 4f1c",
        "connect CLIENT --via-gateway",
        "status github.",
    ],
)
def test_hint_with_unknown_command_is_found(text):
    assert problem_with(text)


@pytest.mark.parametrize(
    "text", ["trust tools diff {name}, then look", "tools cost", "trust {name}", "-g URL whoami", "show NAME --entry"]
)
def test_hint_with_existing_command_passes(text):
    assert problem_with(text) == ""
