"""Workflow runs that a user started: they may do what the user may, and nothing if the user is not known."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.parts.identity.issuer import ACCESS, SETTINGS, Issuer
from toolway.gateway.principals import LOCAL_ADMIN, FileApiKeyStore, Principal
from toolway.parts.identity.provider import RUN_RIGHTS_S, IdentityProvider
from toolway.parts.workflows.run_access import GatewayRunAccess
from toolway.types import Json

ADMINS = SETTINGS.__class__(SETTINGS.issuer, SETTINGS.audience, admins=("platform",))


def access_of(folder: Path, login: IdentityProvider | None) -> GatewayRunAccess:
    keys = FileApiKeyStore(folder / "keys.json", "t" * 20)

    def may_call(principal: Principal, tool: str, arguments: Json | None = None) -> bool:
        return principal.access is None or "access:eng" in principal.access

    return GatewayRunAccess(
        keys, may_call, lambda principal, tool: True, login.find_principal if login is not None else lambda id_: None
    )


def test_run_of_a_user_never_has_admin_rights(tmp_path: Path):
    issuer = Issuer()
    login = IdentityProvider(ADMINS, ACCESS, issuer.fetch, now=lambda: issuer.now)
    asyncio.run(login.keys.refresh())
    access = access_of(tmp_path, login)
    stranger = "user:" + "0" * 32
    problem = access.find_problem(stranger, "a.echo")
    assert problem is not None and problem.code == "E-WORKFLOW-STARTER"
    assert access.roles(stranger) == () and access.caller_id(stranger) == stranger
    alice = login.authenticate(issuer.token()).principal.caller_id
    bob = login.authenticate(issuer.token(sub="bob", groups=["sales"])).principal.caller_id
    assert access.find_problem(alice, "a.echo") is None and access.find_problem(bob, "a.echo") is not None
    assert access.caller_id(alice) == alice
    issuer.now += RUN_RIGHTS_S
    assert access.find_problem(alice, "a.echo") is not None
    assert access_of(tmp_path, None).find_problem(alice, "") is not None  # after a restart
    assert access.find_problem(LOCAL_ADMIN.caller_id, "a.echo") is None


def test_user_answers_by_group_and_not_by_name(tmp_path: Path):
    issuer = Issuer()
    login = IdentityProvider(ADMINS, ACCESS, issuer.fetch, now=lambda: issuer.now)
    asyncio.run(login.keys.refresh())
    access = access_of(tmp_path, login)
    mallory = login.authenticate(issuer.token(groups=["eng", "admin"], preferred_username="admin")).principal
    assert mallory.name == "admin" and access.roles(mallory.caller_id) == ("eng",)
    root = login.authenticate(issuer.token(sub="root", groups=["platform"])).principal
    assert access.roles(root.caller_id) == ("platform", "admin")
