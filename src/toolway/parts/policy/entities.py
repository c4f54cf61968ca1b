"""Turns callers and items into Cedar entities that have only what the policies read. No I/O.

An item is a tool, prompt, or resource. A name or attribute that no policy reads is replaced with a placeholder. So
users in the same groups, and tools that no policy tells apart, share one cached decision.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from toolway.catalog.catalog import Item, Tool
from toolway.gateway.principals import LOCAL_ADMIN, Principal
from toolway.parts.policy.analysis import PolicySetUse
from toolway.parts.policy.argument_types import ArgumentTypes, argument_types
from toolway.types import Json

KEY_PREFIX: Final = "key:"  # names of API keys in policies: User::"key:NAME"
USER_ESCAPE: Final = "user:"  # before a user's subject that could be taken for a key or the local user
LOCAL_NAME: Final = "local"  # the local token, and the client of `toolway serve --stdio`
ACTIONS: Final = {"Tool": "call", "Prompt": "get", "Resource": "read"}
HINTS: Final = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")


class Caller(NamedTuple):
    """What policies may read about an authenticated caller."""

    id: str  # User::"…"
    kind: str = "user"  # user, key or local
    admin: bool = False
    groups: frozenset[str] = frozenset()  # of the identity provider
    client: str = ""  # id of the client program, as the identity provider says; "" if unknown
    mfa: bool = False


class Subject(NamedTuple):
    """A caller, reduced to what the policies read about it."""

    id: str
    kind: str
    admin: bool
    groups: tuple[str, ...]
    client: str
    mfa: bool


class ItemFacts(NamedTuple):
    """An item, reduced to what the policies read about it."""

    type: str  # Tool, Prompt or Resource
    id: str
    server: str
    attributes: tuple[tuple[str, str | bool], ...]
    arguments: ArgumentTypes = ()


def caller_of(principal: Principal) -> Caller:
    """Return what policies may read about a principal. Users are identified by their subject."""
    if principal.is_user:
        subject = principal.subject or principal.id
        is_ambiguous = subject == LOCAL_NAME or subject.startswith((KEY_PREFIX, USER_ESCAPE))
        name = f"{USER_ESCAPE}{subject}" if is_ambiguous else subject
        return Caller(name, "user", principal.admin, frozenset(principal.groups), principal.client, principal.mfa)
    if principal.id == LOCAL_ADMIN.id:
        return Caller(LOCAL_NAME, "local", principal.admin)
    return Caller(f"{KEY_PREFIX}{principal.name}", "key", principal.admin)


def parse_caller(user: str, groups: Iterable[str] = (), client: str = "", *, mfa: bool = False) -> Caller:
    """Return what policies may read about the user `user`, whose name is written as in a policy.

    The command line uses this.
    """
    kind = "local" if user == LOCAL_NAME else "key" if user.startswith(KEY_PREFIX) else "user"
    return Caller(user, kind, kind == "local", frozenset(groups), client, mfa)


class Reducer:
    """Reduces callers and items to what the policies read, so the ones that look equal share a cached decision."""

    def __init__(self, use: PolicySetUse, arguments: frozenset[str]) -> None:
        self._use = use
        self._arguments = arguments
        self._placeholders = {
            type_: _unused_name(use.ids(type_)) for type_ in ("User", "Server", "Tool", "Prompt", "Resource")
        }

    def subject(self, caller: Caller) -> Subject:
        facts = self._use.facts
        keeps_id = "principal.id" in facts
        return Subject(
            caller.id if keeps_id else self._name("User", caller.id),
            caller.kind if "principal.kind" in facts else "",
            caller.admin and "principal.admin" in facts,
            tuple(sorted(caller.groups & self._use.ids("Group"))),
            caller.client if "context.client" in facts else "",
            caller.mfa and "context.mfa" in facts,
        )

    def item(self, type_: str, item: Item) -> ItemFacts:
        facts = self._use.facts
        attributes: list[tuple[str, str | bool]] = []
        names = ("name", "uri") if type_ == "Resource" else ("name",)
        attributes += [(name, item.name) for name in names if f"resource.{name}" in facts]
        if "resource.id" in facts:
            attributes.append(("id", f"{item.server}.{item.name}"))
        if "resource.server" in facts:
            attributes.append(("server", item.server))
        if type_ == "Tool":
            hints = read_hints(item)
            attributes += [(hint, hints[hint]) for hint in HINTS if f"resource.{hint}" in facts]
        types = argument_types(item.input_schema, self._arguments) if isinstance(item, Tool) else ()
        return ItemFacts(
            type_,
            self._name(type_, f"{item.server}.{item.name}"),
            self._name("Server", item.server),
            tuple(attributes),
            types,
        )

    def _name(self, type_: str, name: str) -> str:
        return name if name in self._use.ids(type_) else self._placeholders[type_]


def read_hints(item: Item) -> dict[str, bool]:
    """Return a tool's hints about its effects.

    A missing hint has the specification's default, which is the worst case.
    """
    found = item.raw.get("annotations")
    given: Json = found if isinstance(found, dict) else {}
    read_only = given.get("readOnlyHint") is True
    return {
        "readOnlyHint": read_only,
        "destructiveHint": not read_only and given.get("destructiveHint") is not False,
        "idempotentHint": given.get("idempotentHint") is True,
        "openWorldHint": given.get("openWorldHint") is not False,
    }


def to_entities(subject: Subject, item: ItemFacts, facts: frozenset[str]) -> list[Json]:
    """Return the caller and the item as entities in Cedar's JSON form, with the attributes that the policies read."""
    user: Json = {"id": subject.id, "kind": subject.kind, "admin": subject.admin}
    user = {name: value for name, value in user.items() if f"principal.{name}" in facts}
    return [
        {
            "uid": {"type": "User", "id": subject.id},
            "attrs": user,
            "parents": [{"type": "Group", "id": each} for each in subject.groups],
        },
        {
            "uid": {"type": item.type, "id": item.id},
            "attrs": dict(item.attributes),
            "parents": [{"type": "Server", "id": item.server}],
        },
    ]


def build_schema(arguments: Json | None = None) -> Json:
    """Return a gateway's Cedar schema.

    `arguments` is the type of `context.args`, or None without arguments.
    """
    text, boolean = {"type": "String"}, {"type": "Boolean"}
    context: Json = {"client": text, "hour": {"type": "Long"}, "mfa": boolean}
    call_context = context if arguments is None else {**context, "args": arguments}
    shapes: dict[str, Json] = {
        "Tool": {"id": text, "name": text, "server": text, **dict.fromkeys(HINTS, boolean)},
        "Prompt": {"id": text, "name": text, "server": text},
        "Resource": {"id": text, "name": text, "uri": text, "server": text},
    }
    items: Json = {
        type_: {"memberOfTypes": ["Server"], "shape": {"type": "Record", "attributes": shape}}
        for type_, shape in shapes.items()
    }
    user: Json = {"type": "Record", "attributes": {"id": text, "kind": text, "admin": boolean}}
    return {
        "": {
            "entityTypes": {
                "Group": {},
                "Server": {},
                "User": {"memberOfTypes": ["Group"], "shape": user},
                **items,
            },
            "actions": {
                action: {
                    "appliesTo": {
                        "principalTypes": ["User"],
                        "resourceTypes": [type_],
                        "context": {
                            "type": "Record",
                            "attributes": call_context if action == "call" else context,
                        },
                    }
                }
                for type_, action in ACTIONS.items()
            },
        }
    }


def _unused_name(names: frozenset[str]) -> str:
    name = "?"
    while name in names:
        name += "?"
    return name
