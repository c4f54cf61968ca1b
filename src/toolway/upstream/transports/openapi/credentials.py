"""What an API knows us by → what each request of an operation carries. Pure."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote

from toolway.config.spec import Credential
from toolway.openapi.operation import Operation, SecurityScheme

_COOKIE_SAFE: Final = "!#$&'()*+-./:<=>?@[]^_`{|}~"


@dataclass(frozen=True, slots=True)
class Stamp:
    """What is added to every request of an operation. Never shown."""

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    query: str = field(default="", repr=False)  # encoded
    cookie: str = field(default="", repr=False)


def stamp(
    operation: Operation, schemes: Mapping[str, SecurityScheme], credentials: Iterable[Credential]
) -> tuple[Stamp, tuple[str, ...]]:
    """The stamp, and the schemes of which one more would be needed: the document wants them, and we have none."""
    credentials = tuple(credentials)
    ours = {each.name: each for each in credentials if each.kind == "scheme"}
    chosen, missing = _chosen(operation, ours)
    chosen += [name for name in ours if name not in chosen and _stands_in(operation, schemes.get(name))]
    headers: dict[str, str] = {}
    query: list[str] = []
    cookies: list[str] = []
    always = [each for each in credentials if each.kind != "scheme"]
    placed = [(_placed(each, None), each) for each in always]
    placed += [(_placed(ours[name], schemes.get(name)), ours[name]) for name in chosen]
    for (place, name, value), _ in placed:
        if place == "query":
            query.append(f"{quote(name, safe='')}={quote(value, safe='')}")
        elif place == "cookie":
            cookies.append(f"{name}={quote(value, safe=_COOKIE_SAFE)}")
        else:
            headers[name] = value
    return Stamp(headers, "&".join(query), "; ".join(cookies)), missing if not always else ()


def _chosen(operation: Operation, ours: Mapping[str, Credential]) -> tuple[list[str], tuple[str, ...]]:
    """The first alternative of which we have all; else what we have of the first."""
    for needed in operation.security:
        if needed and all(name in ours for name in needed):
            return list(needed), ()
    if not operation.security or any(not needed for needed in operation.security):
        return [], ()
    first = operation.security[0]
    return [name for name in first if name in ours], tuple(name for name in first if name not in ours)


def _stands_in(operation: Operation, scheme: SecurityScheme | None) -> bool:
    """Some documents say nothing of security where it is needed, and have the key among the parameters instead."""
    if scheme is None or scheme.kind != "apiKey":
        return False
    wanted = (scheme.place, scheme.parameter.lower())
    return any(each.given and (each.place, each.name.lower()) == wanted for each in operation.parameters)


def _placed(credential: Credential, scheme: SecurityScheme | None) -> tuple[str, str, str]:
    """(place, name, value)"""
    if credential.kind == "apiKey":
        return credential.place, credential.name, credential.value
    if scheme is not None and scheme.kind == "apiKey":
        return scheme.place, scheme.parameter, credential.value
    if credential.kind == "basic" or (scheme is not None and scheme.scheme.lower() == "basic"):
        return "header", "Authorization", f"Basic {b64encode(credential.value.encode()).decode()}"
    if scheme is not None and scheme.kind == "http" and scheme.scheme.lower() != "bearer":
        return "header", "Authorization", f"{scheme.scheme} {credential.value}"
    return "header", "Authorization", f"Bearer {credential.value}"
