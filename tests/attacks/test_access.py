"""Attacks by a client with a token: on the rights of another user or of the machine, and on hidden names."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.admin.test_dashboard import halves
from tests.gateway.edge_lab import edge, message_of, modern
from tests.parts.approvals.lab import asking, call
from tests.parts.policy.test_gateway import ruled
from toolway.catalog.catalog import Item, Tool
from toolway.config.exposure import find_rules
from toolway.config.loader import load_file
from toolway.config.settings import parse_gateway
from toolway.errors import ConfigError
from toolway.gateway.local_token import FORWARDING_HEADERS
from toolway.gateway.principals import FileApiKeyStore, Principal
from toolway.gateway.rate_limit import Rate
from toolway.gateway.state_dir import StateDir
from toolway.parts.policy.engine import InvalidPolicies, PolicyEngine, Verdict
from toolway.parts.policy.entities import Caller
from toolway.parts.workflows.admin import RunsAdmin
from toolway.serve.process import GatewayProcess
from toolway.workflows.engine import WorkflowError, may_answer
from toolway.workflows.engine.checks import check_user

pytestmark = pytest.mark.anyio
Json = dict[str, Any]

LOGIN = {"issuer": "https://login.example", "audience": "https://tools.example/mcp"}
#: Settings of a gateway on loopback that others reach.
PUBLIC: list[Json] = [
    {"hosts": ["tools.example"]},
    {"hosts": ["localhost", "192.0.2.7"]},
    {"url": "https://tools.example/toolway"},
    {"login": LOGIN},
    {"host": "0.0.0.0"},
    {"host": "::"},
]
PRIVATE: list[Json] = [{}, {"hosts": ["localhost", "127.0.0.1", "[::1]"]}, {"url": "http://localhost:8765"}]


# -- the token of the machine, through a proxy -------------------------------------------------------------------------


@pytest.mark.attack("A2-W1")
@pytest.mark.parametrize("hosts", [[], ["tools.example"]])
async def test_machine_token_through_a_proxy_is_rejected(tmp_path: Path, hosts: list[str]) -> None:
    body, head = modern("tools/list", {})
    async with edge(tmp_path, hosts=hosts) as found:
        key = found.key()
        cookie, page = halves(await found.ask("POST", "/dashboard/session"))
        session = {"Cookie": cookie, "X-Toolway-Page": page}
        ways = [{name: "203.0.113.9"} for name in sorted(FORWARDING_HEADERS)] + [{"Host": name} for name in hosts]
        for _ in range(2):  # the second time, the heads are known
            assert (await found.ask("POST", "/mcp", body, head)).status == 200
            assert (await found.ask("GET", "/admin/overview", fields=session, token=None)).status == 200
            for way in ways:
                assert (await found.ask("POST", "/mcp", body, head | way)).status == 401, way
                assert (await found.ask("GET", "/admin/servers", fields=way)).status == 401, way
                assert (await found.ask("POST", "/dashboard/session", fields=way)).status == 401, way
                assert (await found.ask("GET", "/admin/overview", fields=session | way, token=None)).status == 401, way
                assert (await found.ask("POST", "/mcp", body, head | way, token=key)).status == 200, way


@pytest.mark.attack("A2-W1")
@pytest.mark.parametrize("block", PUBLIC, ids=str)
def test_public_gateway_has_strict_defaults(block: Json, tmp_path: Path) -> None:
    settings = parse_gateway({"gateway": block}, {})
    rules = find_rules(settings)
    assert (rules.pin_mode, rules.required_guards, rules.default_sandbox) == (
        "hold",
        frozenset({"lock"}),
        "guard-if-possible",
    )
    assert any(str(value) in rules.public_reason or key in rules.public_reason for key, value in block.items())
    chosen = {"pins": "warn", "lock": "optional", "sandbox": "auto"}
    rules = find_rules(parse_gateway({"gateway": block | chosen}, {}))
    assert (rules.pin_mode, rules.required_guards, rules.default_sandbox) == ("warn", frozenset(), "auto")


@pytest.mark.parametrize("block", PRIVATE, ids=str)
def test_private_gateway_has_lenient_defaults(block: Json) -> None:
    settings = parse_gateway({"gateway": block}, {})
    rules = find_rules(settings)
    assert (rules.pin_mode, rules.required_guards, rules.default_sandbox) == ("warn", frozenset(), "auto")
    assert not rules.public_reason
    assert find_rules(settings, "192.0.2.7").public_reason == "it listens on 192.0.2.7"
    assert find_rules(settings, in_cluster=True).pin_mode == "hold"


@pytest.mark.attack("A2-W1")
@pytest.mark.parametrize("block", PUBLIC[:3], ids=str)
async def test_public_gateway_without_authentication_does_not_start(block: Json, tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {}, "toolway": {"gateway": block}}))
    process = GatewayProcess(load_file(file), StateDir(tmp_path / "state"), auth=False)
    assert process.hub.spawner.required_guards and process.hub.spawner.default_sandbox == "guard-if-possible"
    assert process.public_reason
    with pytest.raises(ConfigError, match="without authentication can serve only this machine"):
        await process.run("127.0.0.1", 0, None, lambda url: None, 0.0)


# -- keys --------------------------------------------------------------------------------------------------------------


@pytest.mark.attack("A2-W5")
async def test_key_made_without_a_rate_gets_the_default_rate(tmp_path: Path) -> None:
    async with edge(tmp_path) as found:
        made = [
            message_of(await found.ask("POST", "/admin/keys", {"name": "a", **more})) for more in ({}, {"rate": None})
        ]
        assert [each["rate"] for each in made] == ["100/s", "100/s"]
        principal = found.keyring.authenticate(made[0]["token"])
        assert principal is not None and principal.rate == Rate.parse("100/s")
        free = message_of(await found.ask("POST", "/admin/keys", {"name": "a", "rate": "none"}))
        assert free["rate"] is None


# -- a second key of the same person -----------------------------------------------------------------------------------


class Makers:
    """Keys of a gateway that asks for approvals, made over HTTP with one another."""

    def __init__(self, lab: Any, http: Any) -> None:
        self.lab, self.http = lab, http

    async def make(self, token: str) -> str:
        reply = await self.http.post(
            f"{self.lab.base}/admin/keys",
            json={"name": "key", "admin": True},
            headers={"authorization": f"Bearer {token}"},
        )
        assert reply.status_code == 200, reply.text
        return str(reply.json()["token"])

    async def approve(self, token: str, id_: str) -> int:
        return int(
            (
                await self.http.post(
                    f"{self.lab.base}/admin/approvals/{id_}",
                    json={"yes": True},
                    headers={"authorization": f"Bearer {token}"},
                )
            ).status_code
        )


@pytest.mark.attack("A2-W7")
async def test_own_call_cannot_be_approved_with_a_second_key(tmp_path: Path) -> None:
    keyring = FileApiKeyStore(tmp_path / "keys.json", "tw_owner")
    boss, _ = keyring.create_key_sync("boss", None, True, 0.0)
    peer, _ = keyring.create_key_sync("peer", None, True, 0.0)
    async with asking(tmp_path, {"bank.echo": "admin"}, keyring=keyring) as lab, lab.raw("server/bank", boss) as raw:
        makers = Makers(lab, raw.http)
        second = await makers.make(boss)
        third = await makers.make(second)
        sister = await makers.make(boss)
        own = (boss, second, third, sister)
        for number, caller in enumerate(own):
            async with lab.raw("server/bank", caller) as asked:
                reply = await call(asked, "modern", "echo", {"text": f"pay {number}"})
            id_ = reply.error["data"]["approvalId"]
            for approver in own:
                assert await makers.approve(approver, id_) == 422, "one person"
            assert await makers.approve((peer, "tw_owner")[number % 2], id_) == 200, "another one, and the owner"
        assert lab.executed() == 0


@pytest.mark.attack("A2-W7")
async def test_own_run_cannot_be_answered_with_a_second_key(tmp_path: Path) -> None:
    keyring = FileApiKeyStore(tmp_path / "keys.json", "tw_owner")
    _, boss = keyring.create_key_sync("boss", None, True, 0.0)
    _, peer = keyring.create_key_sync("peer", None, True, 0.0)
    _, second = keyring.create_key_sync("second", None, True, 0.0, made_by=keyring.user_of(f"key:{boss.id}"))
    _, third = keyring.create_key_sync("third", None, True, 0.0, made_by=keyring.user_of(f"key:{second.id}"))
    _, own = keyring.create_key_sync("own", None, True, 0.0, made_by=keyring.user_of("user:alice"))
    again = FileApiKeyStore(tmp_path / "keys.json", "tw_owner")  # what is stored
    people = [
        [f"key:{each.id}" for each in (boss, second, third)],
        [f"key:{peer.id}"],
        ["user:alice", f"key:{own.id}"],
        [""],
    ]
    for store in (keyring, again):
        for starters in people:
            for starter in starters:
                question = {"path": "ok", "who": [], "not_by": starter}
                for answerers in people:
                    for answerer in answerers:
                        allowed = may_answer(question, answerer, (), store.user_of)
                        assert allowed == (answerers is not starters), (starter, answerer)


@pytest.mark.attack("A2-W8")
async def test_display_name_does_not_grant_the_right_to_answer() -> None:
    asked: list[tuple[str, ...]] = []

    class Engine:
        async def answer(self, id: str, path: str, body: Json, *, by: str, roles: tuple[str, ...]) -> None:
            check_user({"path": path, "who": ["carol", "user:1"]}, by, roles, lambda caller: caller)
            asked.append(roles)

    runs = RunsAdmin(Engine, dict, str)  # type: ignore[arg-type]

    async def approve(principal: Principal) -> None:
        await runs.approve("run", {"yes": True, "step": "ok"}, principal)

    mallory = Principal("user:2", "carol", "user:2", admin=True, groups=("admin", "eng"))
    with pytest.raises((WorkflowError, ConfigError), match="may not answer"):
        await approve(mallory)
    assert not Principal("user:3", "admin", "user:3", groups=("admin",)).roles
    assert not Principal("k", "admin", "key:k").roles, "the name of a key makes nobody an administrator"
    await approve(Principal("user:1", "carol", "user:1", admin=True))
    await approve(Principal("k", "carol", "key:k", admin=True))
    assert asked == [("admin",), ("carol", "admin")]


# -- a server that the policy hides ------------------------------------------------------------------------------------

ALL = "permit (principal, action, resource);"
#: Policies by which a key can use nothing of the server b.
HIDING = [
    'forbid (principal, action, resource) when { resource.server == "b" };',
    'forbid (principal, action, resource) when { "b" == resource.server };',
    'forbid (principal, action, resource) unless { resource.server != "b" };',
    'forbid (principal, action, resource) when { resource in Server::"b" };',
    'forbid (principal, action, resource) when { resource in [Server::"x", Server::"b"] };',
    'forbid (principal, action, resource) when { ["b", "c"].contains(resource.server) };',
    'forbid (principal, action, resource) when { resource.server like "b*" };',
    'forbid (principal, action, resource) when { resource.server == "b" && principal.kind != "local" };',
    'forbid (principal, action, resource) when { resource.server == "b" || resource.name == "x" };',
    'forbid (principal, action, resource) when { if resource.server == "b" then true else resource.name == "x" };',
    'forbid (principal, action, resource in Server::"b") unless { principal.kind == "local" };',
    'forbid (principal, action in [Action::"call", Action::"get", Action::"read"], resource in Server::"b");',
    """
    forbid (principal, action, resource is Tool) when { resource.server == "b" };
    forbid (principal, action, resource is Prompt in Server::"b");
    forbid (principal, action == Action::"read", resource) when { resource.server == "b" };
    """,
]


@pytest.mark.attack("A2-W9")
async def test_server_hidden_by_a_condition_looks_unknown(tmp_path: Path) -> None:
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18"}}
    only_a = 'permit (principal, action, resource) when { resource.server == "a" };'

    def search(**arguments: str) -> tuple[Any, Any]:
        return modern("tools/call", {"name": "search_tools", "arguments": arguments})

    async with ruled(tmp_path, ALL) as (found, issuer, holder):
        tokens = (found.key(), issuer.token())

        async def ask_about(name: str, token: str) -> list[tuple[int, bytes]]:
            replies = [
                await found.ask("POST", f"/mcp/server/{name}", hello, token=token),
                await found.ask("GET", f"/mcp/server/{name}", token=token),
                await found.ask("DELETE", f"/mcp/server/{name}", token=token),
                await found.ask("POST", "/mcp/search", *search(query="echo", server=name), token=token),
            ]
            return [(each.status, each.body) for each in replies]

        for token in tokens:
            assert [status for status, _ in await ask_about("b", token)] == [200, 405, 405, 200]
        for policy in (only_a, *(f"{ALL} {each}" for each in HIDING)):
            holder.use(found, policy)
            for token in tokens:
                hidden = await ask_about("b", token)
                assert [status for status, _ in hidden[:3]] == [404] * 3, policy
                assert hidden == await ask_about("none", token), policy
                told = (await found.ask("POST", "/mcp/search", *search(query="echo"), token=token)).body
                assert b"a__echo" in told and b"b__" not in told and b'"totalServers":1' in told, policy
                assert await found.tools(path="/mcp/server/a", token=token)


@pytest.mark.attack("A2-W9")
def test_server_is_hidden_only_if_all_its_items_are_denied() -> None:
    rng = random.Random(7)
    conditions = [
        *('resource.server == "b"', 'resource.server != "a"', 'resource.server like "*"', "principal.admin"),
        *('resource.name == "pay"', 'resource in Server::"a"', 'resource == Tool::"b.pay"', "context.mfa"),
        *('principal in Group::"eng"', '["a", "c"].contains(resource.server)', "resource is Tool", "true", "false"),
        *('context.client == "x"', 'principal.kind == "key"', 'principal == User::"u"', "resource.readOnlyHint"),
    ]
    heads = ("principal", 'principal in Group::"eng"', 'principal == User::"u"')
    actions = ("action", 'action == Action::"call"', 'action in [Action::"get", Action::"read"]')
    places = (
        "resource",
        'resource in Server::"b"',
        'resource == Tool::"b.pay"',
        "resource is Tool",
        'resource is Prompt in Server::"a"',
    )

    def expression(depth: int = 0) -> str:
        if depth == 3 or rng.random() < 0.4:
            return rng.choice(conditions)
        left, right = expression(depth + 1), expression(depth + 1)
        forms = (f"({left} && {right})", f"({left} || {right})", f"!({left})", f"(if {left} then {right} else {left})")
        return rng.choice(forms)

    def policy() -> str:
        scope = f"{rng.choice(heads)}, {rng.choice(actions)}, {rng.choice(places)}"
        ending = rng.choice(("", f" when {{ {expression()} }}", f" unless {{ {expression()} }}"))
        return f"{rng.choice(('permit', 'permit', 'forbid'))} ({scope}){ending};"

    callers = (
        Caller("u", groups=frozenset({"eng"})),
        Caller("v", mfa=True, client="x"),
        Caller("key:k", "key", admin=True),
    )
    hidden = 0
    for _ in range(400):
        text = " ".join(policy() for _ in range(rng.randrange(1, 5)))
        try:
            engine = PolicyEngine(text)
        except InvalidPolicies:
            continue  # an expression whose types do not fit
        for caller in callers:
            subject = engine.subject_of(caller)
            for server in ("a", "b", "c"):
                shown = [
                    engine.first_step(subject, 12, engine.reduce.item(kind, item), "").verdict is not Verdict.DENY
                    for kind, item in items_of(server)
                ]
                included = engine.may_include(subject, server)
                assert included or not any(shown), (text, caller, server)
                hidden += not included
    assert hidden > 100


def items_of(server: str) -> list[tuple[str, Item]]:
    pay: Json = {"name": "pay", "inputSchema": {}}
    get: Json = {"name": "get", "inputSchema": {}, "annotations": {"readOnlyHint": True}}
    return [
        *(("Tool", Tool(server, each["name"], each)) for each in (pay, get)),
        *((kind, Item(server, name, {"name": name})) for kind in ("Prompt", "Resource") for name in ("pay", "other")),
    ]
