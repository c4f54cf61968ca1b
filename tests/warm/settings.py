"""Settings, keys and logins of the two gateways that are compared, and the changes between two requests."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from tests.gateway.edge_lab import TOKEN
from tests.parts.identity.issuer import ISSUER, SETTINGS, Issuer
from toolway.gateway.principals import FileApiKeyStore, generate_ended_login
from toolway.gateway.tool_filter import ToolFilter
from toolway.parts.identity.provider import principal_id

TOOLSETS: Final = (
    {"both": ToolFilter(("*",))},
    {"both": ToolFilter(("a.*",)), "few": ToolFilter(("b.echo",))},
    {"few": ToolFilter(("a.add", "b.*"))},
)
ACCESS: Final[tuple[Mapping[str, tuple[str, ...]], ...]] = (
    {"eng": ("a.*", "b.*", "!b.fail"), "sales": ("b.echo",)},
    {"eng": ("a.echo",), "*": ("b.add",)},
)
HOSTS: Final = ((), ("gateway.example",))
POLICIES: Final = (
    "",  # no policy
    """
    permit (principal, action, resource);
    forbid (principal in Group::"eng", action, resource in Server::"b");
    """,
    """
    @id("local") permit (principal == User::"local", action, resource);
    permit (principal, action, resource == Tool::"a.echo");
    permit (principal, action, resource in Server::"b");
    forbid (principal, action == Action::"call", resource)
    when { context.args has text && context.args.text like "no*" };
    """,
)
NODE_TOKEN: Final = "node-of-the-cluster"
EPOCH_S: Final = 700.0  # tokens of an earlier epoch have expired
#: Keys by role: scopes, administrator, search, expiry in seconds.
KEYS: Final[Mapping[str, tuple[tuple[str, ...] | None, bool, bool, float | None]]] = {
    "all": (None, False, False, None),
    "admin": (None, True, False, None),
    "server-a": (("server/a",), False, False, None),
    "both": (("both",), False, False, None),
    "few": (("few", "server/b"), False, False, None),
    "searching": (None, False, True, None),
    "metrics": (("/metrics",), False, False, None),
    "short": (None, False, False, EPOCH_S - 50),
}
LOGIN: Final = replace(SETTINGS, tool_scopes={"b.add": ("tools:write",)})
#: Valid tokens by role, two of each person but carol: person, groups, scopes.
PEOPLE: Final[Mapping[str, tuple[str, tuple[str, ...], str]]] = {
    "alice": ("alice", ("eng",), "tools:read"),
    "alice-other": ("alice", ("sales",), "tools:read tools:write"),
    "bob": ("bob", ("sales",), "tools:read"),
    "bob-other": ("bob", ("eng", "sales"), "tools:read tools:write"),
    "carol": ("carol", (), "tools:write"),
}
REFUSED: Final = (
    *("", "tw_" + "x" * 20, "garbage", "eyJhbGciOiJub25lIn0.e30.AA", TOKEN[:-1], TOKEN + "x", TOKEN.upper()),
    *("opaque-inactive", "opaque-unclear"),
)


class Settings:
    """All that decides rights, and is not a cache: each gateway reads it, and `version` names its value."""

    def __init__(self, folder: Path, rnd: random.Random, started: float) -> None:
        self._rnd = rnd
        self.issuer = Issuer()
        self.epoch = 0
        self.started = started
        self.toolsets_index = self.access_index = self.hosts_index = self.policy_index = 0
        self.keyring = FileApiKeyStore(folder / "keys.json", TOKEN)
        self.tokens: dict[str, str] = {}  # accepted ones, by role
        self.retired: list[str] = []  # revoked, expired and ended ones
        self._key_ids: dict[str, str] = {}
        self.issuer.now = self.now
        for role in KEYS:
            self._create_key(role)
        self._log_in()

    @property
    def now(self) -> float:
        """Wall time of both gateways."""
        return self.started + self.epoch * EPOCH_S

    @property
    def version(self) -> tuple[int, ...]:
        indices = (self.toolsets_index, self.access_index, self.hosts_index, self.policy_index)
        return (self.epoch, self.keyring.change_count, *indices)

    @property
    def toolsets(self) -> Mapping[str, ToolFilter]:
        return TOOLSETS[self.toolsets_index]

    @property
    def access(self) -> Mapping[str, tuple[str, ...]]:
        return ACCESS[self.access_index]

    @property
    def hosts(self) -> tuple[str, ...]:
        return HOSTS[self.hosts_index]

    @property
    def policy(self) -> str:
        return POLICIES[self.policy_index]

    def _create_key(self, role: str) -> None:
        scopes, admin, search, expires = KEYS[role]
        end = self.now + expires if expires is not None else None
        token, key = self.keyring.create_key_sync(role, scopes, admin, self.now, search=search, expires=end)
        self.tokens[role], self._key_ids[role] = token, key.id

    def _log_in(self) -> None:
        for role, (person, groups, scope) in PEOPLE.items():
            jti = str(self._rnd.random())
            self.tokens[role] = self.issuer.token(sub=person, groups=list(groups), scope=scope, jti=jti)
            self.tokens[f"{role}-opaque"] = f"opaque-{role}-{self.epoch}"

    def introspect(self, token: str) -> Mapping[str, object]:
        """Return what the provider says about an opaque token."""
        if token == "opaque-unclear":
            return {"active": "yes"}
        role = next((role for role, each in self.tokens.items() if each == token), "").removesuffix("-opaque")
        if not role:
            return {"active": False}
        person, groups, scope = PEOPLE[role]
        claims = self.issuer.claims(sub=person, groups=list(groups), scope=scope)
        return {"active": True, **claims, "token_type": "Bearer"}

    def _retire(self, role: str) -> None:
        self.retired.append(self.tokens.pop(role))
        del self.retired[:-20]

    # -- changes ------------------------------------------------------------------------------------------------------

    def change(self, recent_roles: Sequence[str]) -> str:
        """Change one setting at random. Return its name.

        If keys or logins change, these are preferably of recent callers.
        """
        name = self._rnd.choice(
            ("toolsets", "access", "hosts", "policy", "policy", "key", "key", "login", "epoch", "epoch")
        )
        if name in ("key", "login"):
            choices = KEYS if name == "key" else [role for role in PEOPLE if role in self.tokens]
            recent = [role for role in recent_roles if role in choices]
            role = self._rnd.choice(recent or [*choices, ""])
            if role:
                (self._revoke_key if name == "key" else self._end_login)(role)
        else:
            getattr(self, f"_change_{name}")()
        return name

    def _change_toolsets(self) -> None:
        self.toolsets_index = (self.toolsets_index + self._rnd.randrange(1, len(TOOLSETS))) % len(TOOLSETS)

    def _change_access(self) -> None:
        self.access_index = 1 - self.access_index

    def _change_hosts(self) -> None:
        self.hosts_index = 1 - self.hosts_index

    def _change_policy(self) -> None:
        self.policy_index = (self.policy_index + self._rnd.randrange(1, len(POLICIES))) % len(POLICIES)

    def _revoke_key(self, role: str) -> None:
        """Revoke a key, and create another one for the same role."""
        if role in self.tokens:
            self._retire(role)
        assert self.keyring.revoke_key_sync(self._key_ids[role])
        self._create_key(role)

    def _end_login(self, role: str) -> None:
        """End the logins of a user, who stays away until the next epoch."""
        person = PEOPLE[role][0]
        for each in [each for each in self.tokens if each.split("-")[0] == person]:
            self._retire(each)
        ended = generate_ended_login(principal_id(ISSUER, person), self.now)
        self.keyring._save([*self.keyring._keys.values(), ended])

    def _change_epoch(self) -> None:
        """Let all tokens expire, and issue new ones. Nothing but the time tells the gateways."""
        people = {person for person, _, _ in PEOPLE.values()}
        for role in [role for role in self.tokens if role.split("-")[0] in people or role == "short"]:
            self._retire(role)
        self.epoch += 1
        self.issuer.now = self.now
        self._log_in()
