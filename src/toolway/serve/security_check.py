"""Collects the facts for `toolway doctor --security`: from files, sandbox tests, and a gateway.

Nothing is changed: no entry is trusted, no key or token is created, no server is started.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import shlex
import stat
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import urlsplit

import msgspec

from toolway.config.admission.command_line import program_name, runner_package
from toolway.config.approval.accesses import runs_secret_command
from toolway.config.approval.held_entries import SIGNER_NAME, ApprovalGate
from toolway.config.approval.trust_store import TrustStore, open_trust_store
from toolway.config.dotenv import DOTENV_NAME, read_dotenv_beside
from toolway.config.editing import jsonc
from toolway.config.exposure import GatewayRules, find_rules, is_loopback_host
from toolway.config.loader import (
    LoadedConfig,
    decode_config,
    find_server_map,
    find_toolway_block,
    read_config_bytes,
)
from toolway.config.locations import own_folders
from toolway.config.masking import build_masker, find_secrets_in_args
from toolway.config.schema import Server
from toolway.config.scopes import find_config_paths, load_config, load_scopes
from toolway.config.settings import GatewaySettings
from toolway.doctor.entry_checks import CheckTarget, plain_secrets
from toolway.doctor.file_checks import plan_own_files
from toolway.doctor.report import Check
from toolway.doctor.sandbox_probe import find_private_files, probe_sandbox
from toolway.doctor.security import SecurityStatement, judge
from toolway.doctor.security_facts import (
    AccessKey,
    Approval,
    ApprovalFacts,
    CheckedServer,
    Facts,
    IdentityFacts,
    SandboxProbe,
)
from toolway.errors import ConfigError, ToolwayError
from toolway.gateway.authenticator import Authenticator, RequestDenied
from toolway.gateway.credentials import RESOURCE_METADATA_PATH
from toolway.gateway.gateway import UNSIGNED_TOKEN
from toolway.gateway.principals import FileApiKeyStore
from toolway.gateway.state_dir import StateDir
from toolway.http.exchange import HttpRequest
from toolway.part_api import registry
from toolway.part_api.part import CheckedGateway
from toolway.protocol.jsonrpc import decode_json
from toolway.secrets.detection import secrets_in_url
from toolway.types import Json
from toolway.upstream.process.sandbox_choice import choose_sandbox
from toolway.upstream.process.spawner import Spawner

CLUSTER_VARIABLE: Final = "TOOLWAY_CLUSTER"
UNIX_PREFIX: Final = "unix:"  # address of a worker
REMOTE_REASON: Final = "only the gateway's machine knows this: run toolway doctor --security there"
_IMAGE_DIGEST: Final = re.compile(r"\S+@sha256:[0-9a-f]{64}")
_FORGED: Final[Mapping[str, Mapping[str, str]]] = {
    "no token": {},
    "a made-up token": {"authorization": "Bearer garbage"},
    "an unsigned token": {"authorization": f"Bearer {UNSIGNED_TOKEN}"},
}


class GatewayApi(Protocol):
    """Sends requests to a running gateway: `/admin` operations and plain HTTP."""

    url: str

    @property
    def headers(self) -> dict[str, str]: ...

    async def request_admin(self, method: str, path: str, body: Json | None = None) -> Json: ...

    async def fetch(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, bytes]: ...


# -- a gateway on another machine --------------------------------------------------------------------------------------


async def collect_remote(gateway: GatewayApi) -> Facts:
    """Return what is known about a gateway on another machine: login, API keys, and whether forged tokens work.

    Everything else can only be found in that machine's files.
    """
    keys, problem = await _keys_of_gateway(gateway)
    identity = IdentityFacts(
        issuer=await _read_issuer(gateway),
        accepted=await _try_gateway(gateway),
        tried=f"tried at {gateway.url}",
        keys=keys,
        keys_problem=problem,
        host="",
    )
    reasons = dict.fromkeys(("approval", "servers", "pins", "audit"), REMOTE_REASON)
    checked = (f"the gateway at {gateway.url}: its login, requests without a token, and its API keys",)
    not_checked = ("configuration, locks, pins, sandboxes and audit log: run toolway doctor --security on its machine",)
    return Facts(identity, reasons=reasons, checked=checked, not_checked=not_checked)


async def _read_issuer(gateway: GatewayApi) -> str:
    """Return the identity provider that a gateway announces to clients (RFC 9728), or ""."""
    status, data = await gateway.fetch("GET", RESOURCE_METADATA_PATH, {})
    try:
        document = decode_json(data) if status == 200 else {}
    except ValueError:
        document = {}
    servers = document.get("authorization_servers") if isinstance(document, dict) else None
    return str(servers[0]) if isinstance(servers, list) and servers else ""


async def _try_gateway(gateway: GatewayApi) -> tuple[str, ...]:
    """Send requests without a valid token to a gateway. Return a description of each accepted one."""
    accepted = []
    for method, path in (("POST", "/mcp"), ("GET", "/admin/servers")):
        for kind, headers in _FORGED.items():
            status, _ = await gateway.fetch(method, path, dict(headers))
            if status != 401:
                accepted.append(f"{method} {path} with {kind} got status {status}")
    return tuple(accepted)


async def _try_forwarded(gateway: GatewayApi) -> bool | None:
    """Send the local token as if through a proxy. Return True if the gateway accepts it.

    Return None if the gateway was called with another token, or does not respond.
    """
    with suppress(ToolwayError, ValueError):
        status, body = await gateway.fetch("GET", "/who", gateway.headers)
        if status == 200 and json.loads(body)["kind"] == "local":
            status, _ = await gateway.fetch("GET", "/who", {**gateway.headers, "Forwarded": "for=192.0.2.1"})
            return status != 401
    return None


async def _keys_of_gateway(gateway: GatewayApi) -> tuple[tuple[AccessKey, ...] | None, str]:
    try:
        found = (await gateway.request_admin("GET", "keys"))["keys"]
    except ToolwayError as exc:
        return None, f"{exc.message}: {exc.detail}" if exc.detail else exc.message
    keys = [AccessKey(str(key["name"]), str(key["id"]), bool(key["admin"]), key["expires"]) for key in found]
    return tuple(key for key in keys if key.expires is None or key.expires > time.time()), ""


# -- the gateway of this machine ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Setup:
    """This machine's configuration, state folder, and the gateway running with them, if any."""

    environ: Mapping[str, str]
    directory: Path
    config: Path | None
    loaded: LoadedConfig
    state: StateDir
    gateway: GatewayApi | None
    cluster: bool

    @property
    def settings(self) -> GatewaySettings:
        return self.loaded.gateway

    @property
    def host(self) -> str:
        """Return the address that the running gateway listens on, else the configured one."""
        running = self.state.read_running() if self.gateway is not None else None
        return (urlsplit(running.url).hostname or "") if running is not None else self.settings.host

    @property
    def rules(self) -> GatewayRules:
        return find_rules(self.settings, self.host, in_cluster=self.cluster)


async def check_machine(
    environ: Mapping[str, str], directory: Path, config: Path | None, gateway: GatewayApi | None
) -> tuple[Facts, tuple[SecurityStatement, ...]]:
    """Return the facts about this machine's gateway, and the security statements that they prove or refute.

    `config` is the file to check; None for the user, project and local files. `gateway` is None if none is running.
    Secrets are masked. Raises `ConfigError` without a usable configuration.
    """
    state = StateDir.default(environ)
    loaded = load_config(environ, directory, config)
    cluster = bool(environ.get(CLUSTER_VARIABLE)) or await _is_node(gateway)
    facts = await _collect(_Setup(environ, directory, config, loaded, state, gateway, cluster))
    mask = build_masker(loaded.servers.values(), loaded.servers.keys())
    return facts, tuple(each.apply_mask(mask) for each in judge(facts))


async def _collect(setup: _Setup) -> Facts:
    cluster = setup.cluster
    files = _OwnFiles(setup)
    servers = await _collect_servers(setup, files)
    settings = setup.settings
    if settings.audit is not None:
        audit = replace(settings.audit, signer_held=files.holds_signer)
        settings = msgspec.structs.replace(settings, audit=audit)
    checked = CheckedGateway(
        settings,
        setup.state.folder,
        setup.environ,
        cluster,
        setup.gateway is not None,
        setup.rules,
        {each.name: each.server for each in files.targets if each.server is not None},
    )
    limits = {}
    if cluster:
        other = "other nodes were not checked, and the configuration in use is in the database of the cluster"
        limits = dict.fromkeys(("content", "definitions", "isolation"), other)
    return Facts(
        await _collect_identity(setup),
        files.approval_facts(),
        servers,
        evidence=await asyncio.to_thread(_ask_parts, checked),
        limits=limits,
        checked=_describe_checked(setup),
        not_checked=_describe_unchecked(setup),
    )


def _ask_parts(gateway: CheckedGateway) -> dict[str, Sequence[Check]]:
    found = {part.name: part.check_security(gateway) for part in registry.in_use()}
    return {name: checks for name, checks in found.items() if checks}


async def _is_node(gateway: GatewayApi | None) -> bool:
    """Return True if the running gateway is a cluster node.

    Workers of one machine are not counted as a cluster, because they use the files of this machine.
    """
    if gateway is not None:
        with suppress(ToolwayError):  # of a gateway without a cluster
            nodes = (await gateway.request_admin("GET", "nodes"))["nodes"]
            return not all(str(node["address"]).startswith(UNIX_PREFIX) for node in nodes)
    return False


def _describe_checked(setup: _Setup) -> tuple[str, ...]:
    if setup.gateway is not None:
        running = f"the running gateway at {setup.gateway.url}"
    else:
        running = "no gateway runs here: this checks its next start, with these files"
    return (f"configuration: {setup.loaded.file}", f"state folder: {setup.state.folder}", running)


def _describe_unchecked(setup: _Setup) -> tuple[str, ...]:
    options = () if setup.gateway is not None else ("options of toolway serve, such as --host and --stdio",)
    nodes = ("other nodes of the cluster, and its database",) if setup.cluster else ()
    return (
        *options,
        *nodes,
        "the content of programs that are not packages of npx or uvx, and what a program starts itself",
        "servers at a URL: what runs there",
        "all records of the audit log: toolway audit verify",
    )


# -- 1: identity -------------------------------------------------------------------------------------------------------


async def _collect_identity(setup: _Setup) -> IdentityFacts:
    problem = ""
    keys: tuple[AccessKey, ...] | None = None
    store: FileApiKeyStore | None = None
    try:
        store = FileApiKeyStore(setup.state.keys_file, secrets.token_hex())
        if not setup.cluster:
            living = (key for key in store.list_keys() if key.is_valid())
            keys = tuple(AccessKey(key.name, key.id, key.admin, key.expires) for key in living)
    except ConfigError as exc:
        problem = f"{exc.message}: {exc.detail}"
    if setup.cluster and setup.gateway is not None:
        keys, problem = await _keys_of_gateway(setup.gateway)
    elif setup.cluster:
        problem = "a cluster keeps them in its database: run this where a node runs"
    accepted, tried = await _try_requests(setup, store)
    forwarded = await _try_forwarded(setup.gateway) if setup.gateway is not None else None
    reports = [each for part in registry.in_use() for each in await part.check_credentials(setup.loaded)]
    issuer = reports[0].location if reports else ""
    token = setup.state.folder / "token"
    has_token = token.is_file()
    return IdentityFacts(
        issuer=issuer,
        running_issuer=await _issuer_of_gateway(setup) if issuer else None,
        provider=tuple(check for each in reports for check in each.checks),
        accepted=accepted,
        tried=tried,
        keys=keys,
        keys_problem=problem,
        host=setup.host,
        is_loopback=is_loopback_host(setup.host),
        token_file=os.fspath(token) if has_token else "",
        token_mode=stat.S_IMODE(token.stat().st_mode) if has_token else 0o600,
        token_from=setup.settings.local_token_from,
        token_forwarded=forwarded,
        cluster=setup.cluster,
    )


async def _issuer_of_gateway(setup: _Setup) -> str | None:
    """Return the provider that the running gateway announces, or None if no gateway is running."""
    if setup.gateway is None:
        return None
    with suppress(ToolwayError):  # it does not respond: the check of requests without a token says so
        return await _read_issuer(setup.gateway)
    return None


async def _try_requests(setup: _Setup, store: FileApiKeyStore | None) -> tuple[tuple[str, ...] | None, str]:
    """Test whether requests without a valid token are rejected. Return accepted ones, and how we tested.

    They are sent to the running gateway. If there is none, they are tested with the authenticator that the next start
    would use. None instead of the accepted ones if the test is impossible; the text then says why.
    """
    if setup.gateway is not None:
        try:
            return await _try_gateway(setup.gateway), f"tried at {setup.gateway.url}"
        except ToolwayError as exc:
            return None, exc.message
    accepted = []
    if store is None:
        return None, "the API keys could not be read"
    authenticator = Authenticator(store, setup.settings.hosts, setup.settings.origins)
    try:
        for part in registry.in_use():
            verifier = part.create_verifier(setup.loaded)
            if verifier is not None:
                authenticator.credentials.verify_by(verifier)
    except ConfigError as exc:
        return None, exc.message
    for kind, headers in _FORGED.items():
        try:
            authenticator.authenticate_token(HttpRequest("POST", "/mcp", "", headers, frozenset(), b"", ""))
            accepted.append(kind)
        except RequestDenied:
            continue
    return tuple(accepted), "tried with the authenticator of the next start"


# -- 2: approved by content --------------------------------------------------------------------------------------------


class _OwnFiles:
    """The config files, their enabled servers, and which entries are trusted."""

    def __init__(self, setup: _Setup) -> None:
        self._setup = setup
        plan = plan_own_files(setup.environ, setup.directory, setup.config)
        usable = [each for each in plan.targets if each.server is not None and not each.overridden_by]
        self._store = _open_store(setup.environ)
        self._gate = ApprovalGate(self._store)
        self._project_files: frozenset[str] = frozenset()
        self.untrusted: tuple[str, ...] = ()
        if setup.config is None:
            paths = find_config_paths(setup.environ, setup.directory)
            self._project_files = frozenset(map(os.fspath, paths.project))
            merged = load_scopes(setup.environ, setup.directory)
            self.untrusted = tuple(os.fspath(each.path) for each in merged.untrusted)
        self._held: dict[str, frozenset[str]] = {}  # names of entries by file
        self.targets: list[CheckTarget] = []
        self.waiting: list[str] = []
        for target in usable:
            assert target.server is not None
            if not target.server.enabled:
                continue
            if self.approval_of(target) != "unrecorded" and target.raw_name in self._held_in(target.file):
                self.waiting.append(target.name)
            else:
                self.targets.append(target)

    def approval_of(self, target: CheckTarget) -> Approval:
        """Return how a server's entry was trusted: `entry`, `project`, `all`, `unrecorded` or `unknown`.

        `entry`: the entry itself was approved. `project`: as a part of a project file. `all`: the setting `reload`
        accepts every entry. `unrecorded`: no approvals are recorded yet. `unknown`: the records cannot be read.
        """
        if target.file in self._project_files:
            return "project"
        if self._store is None:
            return "unknown"
        if not self._is_recorded(target.file):
            return "unrecorded"
        return "all" if self._setup.settings.reload == "all" else "entry"

    def _is_recorded(self, file: str) -> bool:
        """Return True if trust is recorded for a file; if not, the next start accepts all its entries."""
        assert self._store is not None
        if self._setup.config is None:
            return self._store.has_entries
        return self._store.approved_entries(file) is not None

    def _held_in(self, file: str) -> frozenset[str]:
        """Return the names of a file's entries and settings that are not trusted."""
        if file in self._project_files or self._store is None:
            return frozenset()
        if file not in self._held:
            document = jsonc.parse_jsonc(decode_config(read_config_bytes(file), file), file)
            entries, block = find_server_map(document, file)[1], find_toolway_block(document)
            found = self._gate.find_held(file, entries, block, read_dotenv_beside(file))
            self._held[file] = frozenset(each.name for each in found)
        return self._held[file]

    @property
    def holds_signer(self) -> bool:
        """True if the command that signs the audit log is not trusted, so it must not run."""
        audit = self._setup.settings.audit
        if audit is None or not audit.signer:
            return False
        files = {self._setup.loaded.file, *(target.file for target in self.targets)} - self._project_files
        return self._store is None or any(SIGNER_NAME in self._held_in(file) for file in files)

    def approval_facts(self) -> ApprovalFacts:
        settings = self._setup.settings
        return ApprovalFacts(
            required_guards=self._setup.rules.required_guards,
            guard_settings=settings.parts,
            reload_all=settings.reload == "all",
            waiting=tuple(self.waiting),
            untrusted_files=self.untrusted,
            allowed_commands=settings.allowed_commands,
            signer=settings.audit.signer if settings.audit is not None else "",
            signer_held=self.holds_signer,
        )


def _open_store(environ: Mapping[str, str]) -> TrustStore | None:
    try:
        return open_trust_store(environ)
    except ConfigError:
        return None


async def _collect_servers(setup: _Setup, files: _OwnFiles) -> tuple[CheckedServer, ...]:
    dotenv = {os.path.join(os.path.dirname(each.file), DOTENV_NAME) for each in files.targets}
    private = await asyncio.to_thread(find_private_files, setup.environ, sorted(dotenv))
    spawner = Spawner(own_folders=own_folders(setup.environ))
    try:
        return tuple([await _collect_server(setup, files, target, private, spawner) for target in files.targets])
    finally:
        await spawner.close()


async def _collect_server(
    setup: _Setup,
    files: _OwnFiles,
    target: CheckTarget,
    private: Mapping[str, str],
    spawner: Spawner,
) -> CheckedServer:
    server = target.server
    assert server is not None
    found = CheckedServer(
        target.name,
        f"{target.file}:{target.line}" if target.line else target.file,
        target.endpoint,
        runs_program=server.command is not None,
        runs_for_secrets=runs_secret_command(target.raw_entry),
        approval=files.approval_of(target),
        record_command=f"toolway serve --config {shlex.quote(target.file)}" if setup.config else "toolway trust",
        sandbox=await asyncio.to_thread(choose_sandbox, server.sandbox, setup.rules.default_sandbox),
        env_policy=server.env_policy,
        plain_secrets=_plain_secrets(target),
    )
    if server.command is None:
        return found
    words = [server.command, *map(str, server.args)]
    found, argv = await asyncio.to_thread(_examine_program, found, server, words, setup.environ)
    if found.sandbox in ("guard", "strict"):
        confined = replace(server, sandbox=found.sandbox)
        probe: SandboxProbe | None = await probe_sandbox(confined, argv, private, setup.environ, spawner)
        found = replace(found, probe=probe)
    return found


def _examine_program(
    found: CheckedServer, server: Server, words: list[str], environ: Mapping[str, str]
) -> tuple[CheckedServer, list[str]]:
    """Return the facts about a server including its container image and what start guards know, and what to run.

    A guard may read all files of the program, and start a copy that it has compared.
    """
    if program_name(words[0]) in ("docker", "podman") and words[1:2] == ["run"]:
        is_fixed = any(_IMAGE_DIGEST.fullmatch(word) for word in words)
        image = "" if is_fixed else runner_package(words) or "of the container"
        return replace(found, is_container=True, image=image), words
    examined = {name: checks.examine(server, words, environ) for name, checks in registry.guard_checks().items()}
    guarded = {name: each for name, each in examined.items() if each.program}
    return replace(found, guarded=guarded), next((each.argv for each in guarded.values()), words)


def _plain_secrets(target: CheckTarget) -> tuple[str, ...]:
    """Return an entry's keys with plain-text secrets: in variables, headers, arguments and the URL."""
    found = [*plain_secrets(target)]
    raw_args = target.raw_entry.get("args")
    texts = [each for each in raw_args if isinstance(each, str)] if isinstance(raw_args, list) else []
    if any(find_secrets_in_args(texts)):
        found.append("args")
    if secrets_in_url(str(target.raw_entry.get("url") or "")):
        found.append("url")
    return tuple(found)
