"""Entries of the user's own files that wait for approval, because another program may have written them.

An entry that runs a command, or sends a secret or a variable, is used only if a person approved its content: by
writing it with `toolway add`, `edit`, `init` or `import`, or by `toolway trust NAME`. What is there at the first start
counts as approved. A plain URL needs no approval. `"toolway": {"gateway": {"reload": "all"}}` in a file approves all of
its entries; the setting itself must be approved like an entry. So must `toolway.audit.signer`, which is a command.

The library (`Hub`) needs no approvals: a program decides itself which files it reads.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import field
from typing import Any, Final, Literal

from toolway._lazy import dataclass
from toolway.config.admission.variables import is_never_allowed
from toolway.config.approval.accesses import Access, audit_signer, entry_accesses, iter_texts
from toolway.config.approval.trust_store import TrustStore, open_trust_store
from toolway.config.dotenv import DOTENV_NAME, read_dotenv_beside
from toolway.config.masking import mask_value
from toolway.config.schema import ConfigIssue
from toolway.config.server_entry import ALLOW_KEYS, DENY_KEYS, TIMEOUT_KEYS
from toolway.config.variables import WrittenReference, split_references
from toolway.errors import ConfigError

HELD_CODE: Final = "E-CONFIG-HELD"
#: A file that is named by --config or $TOOLWAY_CONFIG: "ignore" holds none of its entries, "take" takes those that are
#: there at the start, because a person named it, "hold" takes them only at the very first start.
NamedFileRule = Literal["ignore", "take", "hold"]
RELOAD_ALL_NAME: Final = "toolway.gateway.reload"  # `"reload": "all"` is approved like an entry of this name
SIGNER_NAME: Final = "toolway.audit.signer"  # the command that signs the audit log is approved like an entry
SETTING_NAMES: Final = frozenset({RELOAD_ALL_NAME, SIGNER_NAME})
#: Keys without influence on what an entry runs, reads and sends: a change of them needs no approval.
HARMLESS_KEYS: Final = frozenset(
    {
        *(*TIMEOUT_KEYS, "startTimeout", "connectTimeout", "maxRestarts", "restart", "enabled", "disabled", "lazy"),
        *("idleTimeout", "keepAliveInterval", "era", "shareConnection", "limits", "instances", "nodeLabels"),
        *("maxRetries", "retryDelayMs", "backoffMultiplier", "idempotent", "trusted", "tools", "idempotencyMetaKey"),
        *(
            "notProcessedCodes",
            "retry",
            "rateLimit",
            "validateArguments",
            "untrusted",
            "labels",
            "redact",
            "description",
        ),
        *(*ALLOW_KEYS, *DENY_KEYS),
    }
)

#: Keys of values that are only passed to the server. A new token in `.env` needs no approval.
_PASSED_VALUES: Final = (
    *("env.", "headers.", "openapi.headers.", "openapi.security.", "auth.clientSecret", "auth.privateKey"),
    *("auth.idpClientSecret", "tls.keyPassword"),
)


@dataclass(frozen=True, slots=True)
class HeldEntry:
    """Entry of one of the user's own files that waits for approval."""

    name: str  # as written in the file
    file: str
    entry: Any = field(repr=False)
    digest: str
    server: str = ""  # normalized name: messages and commands to copy show this one, because `name` may be any text
    line: int | None = None
    dotenv: Mapping[str, str] = field(default_factory=dict, repr=False)  # what `.env` adds to what it runs and reaches

    @property
    def accesses(self) -> list[Access]:
        if self.name == RELOAD_ALL_NAME:
            return []
        if self.name == SIGNER_NAME:
            return [Access("runs", str(self.entry), SIGNER_NAME)]
        values = [Access("reads", f"{name}={value}", DOTENV_NAME, self.name) for name, value in self.dotenv.items()]
        return [*entry_accesses(self.entry, self.name), *values]

    @property
    def issue(self) -> ConfigIssue:
        shown = self.accesses if self.name == SIGNER_NAME else entry_accesses(mask_value(self.entry), self.name)
        what = str(shown[0]) if shown else "it approves all later entries of the file"
        return ConfigIssue(
            self.name,
            f"{self.server} waits for your approval",
            detail=f"its entry is new or was changed, and not by toolway: {json.dumps(what)[1:-1]}",
            hint=f"review it: toolway trust {self.server}",
            code=HELD_CODE,
            file=self.file,
            line=self.line,
        )


class ApprovalGate:
    """Gate that decides which entries of the user's own config files may be used, by the approvals in the trust store.

    The first load of the files may approve all entries that it finds (`start`); every later load uses only approved
    entries. An entry that this process approved stays approved for it even if the trust store cannot be written.
    """

    def __init__(self, store: TrustStore | None, named: NamedFileRule = "ignore") -> None:
        self._store = store
        self._named = named
        self._taken: dict[str, set[str]] = {}
        self._is_started = False
        self.recorded: list[str] = []  # names of the entries that `take` approved in the trust store

    @classmethod
    def open(cls, environment: Mapping[str, str], named: NamedFileRule = "ignore") -> ApprovalGate:
        """Return the approval gate of this process, with the trust store of this user if there is a folder for it."""
        try:
            return cls(open_trust_store(environment), named)
        except ConfigError:
            return cls(None, named)

    @property
    def covers_named(self) -> bool:
        """Return True if the entries of a config file that the user names explicitly (`--config`) need approval too."""
        return self._named != "ignore"

    def start(self, named_file: str | None = None) -> bool:
        """Register a load of config files. Return True if the caller must approve all entries that it finds in them.

        True only at the first load in this process: if no approvals are stored yet for this user or for `named_file`,
        or if all entries of a named file count as approved.
        """
        is_first_load, self._is_started = not self._is_started, True
        if not is_first_load:
            return False
        if self._store is None:
            return True
        if named_file is None:
            return not self._store.has_entries
        return self._named == "take" or self._store.approved_entries(named_file) is None

    def take(self, file: str, entries: Mapping[str, Any], block: Any, dotenv: Mapping[str, str]) -> None:
        """Approve the entries that a file has now: for this process, and in the trust store if that can be written.

        `dotenv` are the variables of the `.env` file beside it.
        """
        digests = _digests(entries, block, dotenv)
        self._taken.setdefault(os.path.abspath(file), set()).update(digests.values())
        if self._store is not None:
            with suppress(ConfigError):
                self._store.approve_entries(file, list(dict.fromkeys(digests.values())))
                self.recorded += digests

    def find_held(
        self, file: str, entries: Mapping[str, Any], block: Any, dotenv: Mapping[str, str]
    ) -> list[HeldEntry]:
        """Return the entries of a file that are not approved. `dotenv` are the variables of the `.env` beside it."""
        approved = set(self._taken.get(os.path.abspath(file), ()))
        if self._store is not None:
            approved |= self._store.approved_entries(file) or frozenset()
        digests = _digests(entries, block, dotenv)
        if digests.get(RELOAD_ALL_NAME) in approved:
            return []
        return [
            HeldEntry(name, file, entry, digest, dotenv=_used_variables(entry, dotenv))
            for name, digest in digests.items()
            for entry in [audit_signer(block) if name == SIGNER_NAME else entries.get(name)]
            if digest not in approved
        ]


FileContent = tuple[Mapping[str, Any], Any]  # server map and `toolway` block of a config file


def approve_written(
    store: TrustStore, file: str, before: FileContent, after: FileContent, *, keep_waiting: bool = False
) -> None:
    """Approve the entries that a person wrote with a command of Toolway: those that are in `after` and not in `before`.

    An entry that another program wrote before still waits for approval; with `keep_waiting` even if the command has
    changed it. Raises `ConfigError` if the store cannot be written.
    """
    if not store.has_entries:
        return  # the first load takes all that is there
    dotenv = read_dotenv_beside(file)
    old, new = _digests(*before, dotenv), _digests(*after, dotenv)
    approved = store.approved_entries(file) or frozenset()
    waiting = {
        name
        for name, digest in old.items()
        # The command shows no `.env`: what waits because of it still waits.
        if digest not in approved and (keep_waiting or _used_variables(before[0].get(name), dotenv))
    }
    written = {name: digest for name, digest in new.items() if digest not in old.values() and name not in waiting}
    store.approve_entries(file, list(dict.fromkeys(written.values())))


def count_waiting(names: Iterable[str]) -> str:
    """Return a line that says how many entries wait for approval: `1 new command waits: toolway trust planted`."""
    found = list(names)
    subject = "1 new command waits" if len(found) == 1 else f"{len(found)} new commands wait"
    return f"{subject}: toolway trust {found[0]}" if len(found) == 1 else f"{subject}: toolway trust"


def entry_digest(entry: Any, dotenv: Mapping[str, str]) -> str:
    """Return a digest of all that a server entry runs, reads and sends. Its name and harmless keys are not part of it.

    Variables of `.env` count if they decide what runs, or where something is sent: another program could write them
    there instead of into the entry.
    """
    used = _used_variables(entry, dotenv)
    if isinstance(entry, Mapping):
        entry = {key: value for key, value in entry.items() if key not in HARMLESS_KEYS}
    return json_digest({"entry": entry, DOTENV_NAME: used} if used else entry)


def _used_variables(entry: Any, dotenv: Mapping[str, str]) -> dict[str, str]:
    """Return the `.env` variables that change what an entry does; those only passed to the server are left out."""
    if not dotenv:
        return {}
    return {
        part.target: dotenv[part.target]
        for key, text in iter_texts(entry)
        if not _is_passed_value(key)
        for part in split_references(text)
        if isinstance(part, WrittenReference) and part.kind == "env" and part.target in dotenv
    }


def _is_passed_value(key: str) -> bool:
    """Return True if the value of this key of an entry, such as a token, is only passed on and selects no program."""
    return key.startswith(_PASSED_VALUES) and not (key.startswith("env.") and is_never_allowed(key[4:]))


def json_digest(value: Any) -> str:
    """Return the SHA-256 digest of a JSON value. It does not depend on the order of keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _digests(entries: Mapping[str, Any], block: Any, dotenv: Mapping[str, str]) -> dict[str, str]:
    """Return the digests of the entries and settings of a file that need approval, by name."""
    found = {name: entry_digest(entry, dotenv) for name, entry in entries.items() if entry_accesses(entry)}
    gateway = block.get("gateway") if isinstance(block, Mapping) else None
    if isinstance(gateway, Mapping) and gateway.get("reload") == "all":
        found[RELOAD_ALL_NAME] = json_digest({RELOAD_ALL_NAME: "all"})
    if signer := audit_signer(block):
        found[SIGNER_NAME] = entry_digest({SIGNER_NAME: signer}, dotenv)
    return found
