"""Facts about a gateway for `toolway doctor --security`, which `security.py` judges.

A part that was not collected is None, and `Facts.reasons` says why. So nothing is assumed about it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from toolway.config.schema import EnvPolicy, Sandbox
from toolway.doctor.report import Check
from toolway.part_api.start_guard import GuardedProgram

#: How the entry of a server was approved. "unrecorded": no gateway has used the file yet, the first start takes all.
Approval = Literal["entry", "project", "unrecorded", "all", "unknown"]


@dataclass(frozen=True, slots=True)
class AccessKey:
    """An API key of a gateway, accepted without the identity provider."""

    name: str
    id: str
    admin: bool = False
    expires: float | None = None  # seconds since 1970; None: it never expires


@dataclass(frozen=True, slots=True)
class IdentityFacts:
    """Who can use the gateway, and which requests were tried."""

    issuer: str = ""  # of the provider in toolway.gateway.login; "" without a login
    running_issuer: str | None = None  # that the running gateway names to clients; None: none runs, or it was not asked
    provider: tuple[Check, ...] = ()  # what the provider publishes; () if it was not asked
    accepted: tuple[str, ...] | None = ()  # requests without a valid token that were accepted; None: not tried
    tried: str = ""  # where such requests were tried
    keys: tuple[AccessKey, ...] | None = ()  # None: they could not be read
    keys_problem: str = ""
    host: str = "127.0.0.1"  # address on which the gateway listens; "" if unknown
    is_loopback: bool = True
    token_file: str = ""  # of the token of this machine; "" if there is none yet, or on another machine
    token_mode: int = 0o600
    token_from: tuple[str, ...] = ()  # networks from which the token of this machine is accepted besides this machine
    token_forwarded: bool | None = None  # the running gateway accepts it from a proxy; None: not tried
    cluster: bool = False  # nodes are accepted by the key of the cluster


@dataclass(frozen=True, slots=True)
class SandboxProbe:
    """What a program in a server's sandbox could read."""

    made_by: str = ""  # bubblewrap, Landlock …
    tried: tuple[str, ...] = ()  # what it tried to read, as readable text
    readable: tuple[str, ...] = ()  # what it could read
    problem: str = ""  # why the sandbox or the program did not start


@dataclass(frozen=True, slots=True)
class CheckedServer:
    """An enabled server of the configuration."""

    name: str
    source: str = ""  # file and line of its entry
    location: str = ""  # command line or URL, masked
    runs_program: bool = True  # False: it has a URL
    runs_for_secrets: bool = False  # its entry has a reference ${command:…}, which runs a program here
    approval: Approval = "entry"
    record_command: str = "toolway trust"  # that records the entries of its file, if none were recorded
    guarded: Mapping[str, GuardedProgram] = field(default_factory=dict)  # what start guards found, by part
    is_container: bool = False  # an engine such as docker starts it, outside its sandbox
    image: str = ""  # image of a container, if it is named without its digest
    sandbox: Sandbox = "auto"
    probe: SandboxProbe | None = None  # None: nothing was started
    env_policy: EnvPolicy = "safe"
    plain_secrets: tuple[str, ...] = ()  # keys of its entry with a secret in plain text


@dataclass(frozen=True, slots=True)
class ApprovalFacts:
    """The rules for programs that the gateway may start."""

    required_guards: frozenset[str] = frozenset()  # parts whose start guards must know what starts
    guard_settings: Mapping[str, Any] = field(default_factory=dict)  # of these parts
    reload_all: bool = False  # "reload": "all"
    waiting: tuple[str, ...] = ()  # entries that need review, and are not started
    untrusted_files: tuple[str, ...] = ()  # project files that are not used
    allowed_commands: tuple[str, ...] = ()  # that administrators may start through /admin
    signer: str = ""  # command that signs the audit log; "" if a key signs it
    signer_held: bool = False  # it needs review, and is not run


@dataclass(frozen=True, slots=True)
class Facts:
    """All facts about one gateway. A part is None if it could not be collected."""

    identity: IdentityFacts | None = None
    approval: ApprovalFacts | None = None
    servers: tuple[CheckedServer, ...] | None = None
    evidence: Mapping[str, Sequence[Check]] = field(default_factory=dict)  # by name of a part: what it found itself
    reasons: Mapping[str, str] = field(default_factory=dict)  # by name of a part: why it is None
    limits: Mapping[str, str] = field(default_factory=dict)  # by id of a statement: what of it cannot be checked here
    checked: tuple[str, ...] = ()  # for the report: what the answers are about
    not_checked: tuple[str, ...] = ()
