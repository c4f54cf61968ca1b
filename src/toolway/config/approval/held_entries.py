"""Entries in the user's own files that need review, because another program may have written them.

An entry that runs a command, or sends a secret or a variable, is only used if a user approved its content: by writing
it with `toolway add`, `edit`, `init`, or `import`, or with `toolway trust NAME`. What exists at the first start counts
as approved. A plain URL does not need approval. `"toolway": {"gateway": {"reload": "all"}}` in a file approves all its
entries, but this setting must itself be approved like an entry. The same goes for `toolway.audit.signer`, which is a
command, `toolway.modelUrls`, which receive API keys, each agent, and each workflow with the contents of its files. A
project's workflow files must be approved too: trust in the project's config file does not cover them.

The library (`Hub`) works without approvals, because the program decides which files it reads.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from toolway.config.admission.variables import is_never_allowed
from toolway.config.approval.accesses import (
    Access,
    agent_accesses,
    agent_entries,
    audit_signer,
    entry_accesses,
    iter_texts,
    model_url_accesses,
)
from toolway.config.approval.trust_store import TrustStore, open_trust_store
from toolway.config.approval.workflow_files import CapturedWorkflow
from toolway.config.dotenv import DOTENV_NAME, read_dotenv_beside
from toolway.config.entry_transport import find_own_transport
from toolway.config.masking import mask_value
from toolway.config.schema import ConfigIssue
from toolway.config.server_entry import ALLOW_KEYS, DENY_KEYS, TIMEOUT_KEYS
from toolway.config.variables import WrittenReference, split_references
from toolway.errors import ConfigError

REVIEW_CODE: Final = "E-CONFIG-REVIEW"
#: A file that is named by --config or $TOOLWAY_CONFIG: "ignore" holds none of its entries, "take" takes those that are
#: there at the start, because a user named it, "hold" takes them only at the very first start.
NamedFileRule = Literal["ignore", "take", "hold"]
RELOAD_ALL_NAME: Final = "toolway.gateway.reload"  # `"reload": "all"` is approved like an entry of this name
SIGNER_NAME: Final = "toolway.audit.signer"  # the command that signs the audit log is approved like an entry
MODEL_URLS_NAME: Final = "toolway.modelUrls"  # addresses that get the API keys of model providers
AGENT_PREFIX: Final = "toolway.agents."  # before the name of an agent, which is approved like an entry
HeldKind = Literal["server", "setting", "agent", "workflow"]
#: Keys that do not affect what an entry runs, reads and sends: changing them does not need approval.
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

#: Keys of values that are only passed to the server. A new token in `.env` does not need approval.
_PASSED_VALUES: Final = (
    *("env.", "headers.", "auth.clientSecret", "auth.privateKey"),
    *("auth.idpClientSecret", "tls.keyPassword"),
)


@dataclass(frozen=True, slots=True)
class HeldEntry:
    """An entry that needs review: a server, a setting, an agent, or a workflow."""

    name: str  # as written in the file; of a setting or an agent: its path in the file
    file: str
    entry: Any = field(repr=False)
    digest: str
    server: str = ""  # normalized name: messages and commands to copy show this one, because `name` may be any text
    line: int | None = None
    dotenv: Mapping[str, str] = field(default_factory=dict, repr=False)  # what `.env` adds to what it runs and reaches
    kind: HeldKind = "server"
    workflow: CapturedWorkflow | None = field(default=None, repr=False)  # of the kind `workflow`
    in_project: bool = False  # `file` is a trusted file of a project

    @property
    def accesses(self) -> list[Access]:
        if self.kind == "workflow" or self.name == RELOAD_ALL_NAME:
            return []
        values = [Access("reads", f"{name}={value}", DOTENV_NAME, self.name) for name, value in self.dotenv.items()]
        if self.name == SIGNER_NAME:
            return [Access("runs", str(self.entry), SIGNER_NAME)]
        if self.name == MODEL_URLS_NAME:
            return [*model_url_accesses(self.entry), *values]
        if self.kind == "agent":
            return [*agent_accesses(self.entry, self.name), *values]
        return [*entry_accesses(self.entry, self.name), *values]

    @property
    def issue(self) -> ConfigIssue:
        shown = entry_accesses(mask_value(self.entry), self.name) if self.kind == "server" else self.accesses
        what = str(shown[0]) if shown else "it trusts all later entries of the file"
        if self.workflow is not None:
            what = f"the workflow {self.workflow.file or 'in the file'}"
        return ConfigIssue(
            self.name,
            f"{'the workflow ' if self.kind == 'workflow' else ''}{self.server} needs your review",
            detail=f"{'it' if self.kind == 'workflow' else 'its entry'} was added or changed "
            f"by something other than toolway: {json.dumps(what)[1:-1]}",
            hint=f"review it: toolway trust {self.server}",
            code=REVIEW_CODE,
            file=self.file,
            line=self.line,
        )


class ApprovalGate:
    """Decides which entries in the user's config files may be used, based on the trust store.

    The first time the files are loaded, all entries found may be approved (`start`). Every later load only uses
    approved entries. An entry that this process approved stays approved for this process, even if the trust store
    cannot be written.
    """

    def __init__(self, store: TrustStore | None, named: NamedFileRule = "ignore") -> None:
        self._store = store
        self._named = named
        self._taken: dict[str, set[str]] = {}
        self._is_started = False
        self.recorded: list[str] = []  # names of the entries that `take` approved in the trust store

    @classmethod
    def open(cls, environment: Mapping[str, str], named: NamedFileRule = "ignore") -> ApprovalGate:
        """Return this process's gate, with the user's trust store if there is a folder for it."""
        try:
            return cls(open_trust_store(environment), named)
        except ConfigError:
            return cls(None, named)

    @property
    def covers_named(self) -> bool:
        """Return True if the entries in a file given with `--config` need review too."""
        return self._named != "ignore"

    def start(self, named_file: str | None = None) -> bool:
        """Note that config files are being loaded. Return True if the caller must trust all entries it finds.

        This is only the case for the first load in this process, if no approvals are stored yet for this user or for
        `named_file`, or if all entries in a named file count as approved.
        """
        is_first_load, self._is_started = not self._is_started, True
        if not is_first_load:
            return False
        if self._store is None:
            return True
        if named_file is None:
            return not self._store.has_entries
        return self._named == "take" or self._store.approved_entries(named_file) is None

    def take(
        self,
        file: str,
        entries: Mapping[str, Any],
        block: Any,
        dotenv: Mapping[str, str],
        workflows: Iterable[CapturedWorkflow] = (),
    ) -> None:
        """Trust a file's current entries: in this process, and in the trust store if it is writable.

        `dotenv` has the variables in the `.env` file next to it, and `workflows` the workflows that it defines or
        names.
        """
        found = find_approvable(file, entries, block, dotenv, workflows)
        digests = list(dict.fromkeys(each.digest for each in found))
        self._taken.setdefault(os.path.abspath(file), set()).update(digests)
        if self._store is not None:
            with suppress(ConfigError):
                self._store.approve_entries(file, digests)
                self.recorded += [each.server or each.name for each in found]

    def find_held(
        self,
        file: str,
        entries: Mapping[str, Any],
        block: Any,
        dotenv: Mapping[str, str],
        workflows: Iterable[CapturedWorkflow] = (),
    ) -> list[HeldEntry]:
        """Return the entries and workflows in a file that are not trusted.

        `dotenv` has the variables in the `.env` file next to it, and `workflows` the workflows that it defines or
        names.
        """
        approved = set(self._taken.get(os.path.abspath(file), ()))
        if self._store is not None:
            approved |= self._store.approved_entries(file) or frozenset()
        found = find_approvable(file, entries, block, dotenv, workflows)
        if any(each.name == RELOAD_ALL_NAME and each.digest in approved for each in found):
            return []
        return [each for each in found if each.digest not in approved]


FileContent = tuple[Mapping[str, Any], Any]  # server map and `toolway` block of a config file


def approve_written(
    store: TrustStore, file: str, before: FileContent, after: FileContent, *, keep_waiting: bool = False
) -> None:
    """Trust entries that a user wrote with a Toolway command: those in `after` but not in `before`.

    An entry that another program wrote earlier still needs review. With `keep_waiting`, it needs review even if the
    command has changed it. Raises `ConfigError` if the store cannot be written.
    """
    if not store.has_entries:
        return  # the first load takes all that is there
    dotenv = read_dotenv_beside(file)
    old = find_approvable(file, *before, dotenv, _inline_workflows(before[1]))
    new = find_approvable(file, *after, dotenv, _inline_workflows(after[1]))
    approved = store.approved_entries(file) or frozenset()
    # The command shows no `.env`: what waits because of it still waits.
    waiting = {(each.kind, each.name) for each in old if each.digest not in approved and (keep_waiting or each.dotenv)}
    known = {each.digest for each in old}
    written = [each.digest for each in new if each.digest not in known and (each.kind, each.name) not in waiting]
    store.approve_entries(file, list(dict.fromkeys(written)))


def count_waiting(names: Iterable[str], kind: str = "command") -> str:
    """Return how many entries need review, such as `1 new command needs your review: toolway trust planted`."""
    found = list(names)
    if len(found) == 1:
        return f"1 new {kind} needs your review: toolway trust {found[0]}"
    return f"{len(found)} new {kind}s need your review: toolway trust"


def entry_digest(entry: Any, dotenv: Mapping[str, str]) -> str:
    """Return a digest of everything a server entry runs, reads, and sends, without its name.

    Variables in `.env` are included if they affect what runs or where something is sent, because another program could
    write them there instead of into the entry.
    """
    used = _used_variables(entry, dotenv)
    if isinstance(entry, Mapping):
        entry = {key: value for key, value in entry.items() if key not in HARMLESS_KEYS}
    return json_digest({"entry": entry, DOTENV_NAME: used} if used else entry)


def _used_variables(entry: Any, dotenv: Mapping[str, str]) -> dict[str, str]:
    """Return the `.env` variables that change what an entry does.

    Variables that are only passed to the server are left out.
    """
    if not dotenv:
        return {}
    own = find_own_transport(entry) if isinstance(entry, Mapping) else None
    passed = (*_PASSED_VALUES, *(f"{own.kind}.{key}" for key in own.passed_keys)) if own is not None else _PASSED_VALUES
    return {
        part.target: dotenv[part.target]
        for key, text in iter_texts(entry)
        if not _is_passed_value(key, passed)
        for part in split_references(text)
        if isinstance(part, WrittenReference) and part.kind == "env" and part.target in dotenv
    }


def _is_passed_value(key: str, passed: tuple[str, ...]) -> bool:
    """Return True if the value under this key of an entry, such as a token, is only passed on.

    Such a value does not affect which program runs.
    """
    return key.startswith(passed) and not (key.startswith("env.") and is_never_allowed(key[4:]))


def json_digest(value: Any) -> str:
    """Return a JSON value's SHA-256 digest, which does not depend on the order of keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def find_held_workflows(file: str, workflows: Iterable[CapturedWorkflow], approved: Collection[str]) -> list[HeldEntry]:
    """Return the untrusted workflow files that a trusted project file lists.

    Inline definitions do not need separate approval, because they are part of the trusted file.
    """
    found = (_workflow_entry(file, each) for each in workflows if each.file and not each.problem)
    return [replace(each, in_project=True) for each in found if each.digest not in approved]


def held_agents(held: Iterable[HeldEntry]) -> frozenset[str]:
    """Return the names of the agents that need review."""
    return frozenset(each.name.removeprefix(AGENT_PREFIX) for each in held if each.kind == "agent")


def workflow_digest(workflow: CapturedWorkflow) -> str:
    """Return the digest that trust in a workflow is based on, covering its location and all its content."""
    return json_digest(workflow.identity)


def _workflow_entry(file: str, workflow: CapturedWorkflow) -> HeldEntry:
    # The name may be any text, so only what is harmless of it is shown and can be copied.
    server = re.sub(r"[^A-Za-z0-9_]+", "-", workflow.name).strip("-")[:64] or "workflow"
    name = workflow.file or f"toolway.workflows.{workflow.name}"
    return HeldEntry(name, file, None, workflow_digest(workflow), server=server, kind="workflow", workflow=workflow)


def _inline_workflows(block: Any) -> list[CapturedWorkflow]:
    found = block.get("workflows") if isinstance(block, Mapping) else None
    return [CapturedWorkflow(body=each) for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def find_approvable(
    file: str,
    entries: Mapping[str, Any],
    block: Any,
    dotenv: Mapping[str, str],
    workflows: Iterable[CapturedWorkflow],
) -> list[HeldEntry]:
    """Return everything in a file that can be trusted: entries, settings, agents, and workflows."""

    def add(name: str, entry: Any, digest: str, kind: HeldKind) -> None:
        server = "" if kind == "server" else name
        found.append(HeldEntry(name, file, entry, digest, server, dotenv=_used_variables(entry, dotenv), kind=kind))

    found: list[HeldEntry] = []
    for name, entry in entries.items():
        if entry_accesses(entry):
            add(name, entry, entry_digest(entry, dotenv), "server")
    settings: Mapping[str, Any] = block if isinstance(block, Mapping) else {}
    gateway = settings.get("gateway")
    if isinstance(gateway, Mapping) and gateway.get("reload") == "all":
        add(RELOAD_ALL_NAME, None, json_digest({RELOAD_ALL_NAME: "all"}), "setting")
    if signer := audit_signer(block):
        add(SIGNER_NAME, signer, entry_digest({SIGNER_NAME: signer}, dotenv), "setting")
    if urls := settings.get("modelUrls"):
        add(MODEL_URLS_NAME, urls, entry_digest({MODEL_URLS_NAME: urls}, dotenv), "setting")
    for name, entry in agent_entries(block).items():
        used = _used_variables(entry, dotenv)
        add(
            f"{AGENT_PREFIX}{name}",
            entry,
            json_digest({AGENT_PREFIX: name, "entry": entry, DOTENV_NAME: used}),
            "agent",
        )
    found += [_workflow_entry(file, each) for each in workflows if not each.problem]
    return found
