"""Where an API is, and how one proves who one is there."""

from __future__ import annotations

import re
from typing import Any, Final

from toolway.model import Json
from toolway.openapi import swagger, words
from toolway.openapi.operation import Base, Requirement, SecurityScheme
from toolway.openapi.pointers import Pointers, Unresolved

_VARIABLE: Final = re.compile(r"\{([^{}]{1,200})\}")
_MOST: Final = 100


def bases(raw: Any) -> tuple[Base, ...]:
    """The servers of a list; one whose variables have no value is left out."""
    found = []
    for each in raw[:_MOST] if isinstance(raw, list) else ():
        url = each.get("url") if isinstance(each, dict) else None
        if not isinstance(url, str):
            continue
        filled = _filled(url, each.get("variables"))
        if not _VARIABLE.search(filled):
            found.append(Base(filled, words.cleaned(each.get("description"), words.FIELD)))
    return tuple(found)


def _filled(url: str, variables: Any) -> str:
    values = {name: _value(said) for name, said in variables.items()} if isinstance(variables, dict) else {}
    return _VARIABLE.sub(lambda match: values.get(match[1]) or match[0], url)


def _value(said: Any) -> str:
    if not isinstance(said, dict):
        return ""
    default, choices = said.get("default"), said.get("enum")
    return str(default if default is not None else choices[0] if isinstance(choices, list) and choices else "")


def schemes(tree: Json, dialect: str, pointers: Pointers) -> dict[str, SecurityScheme]:
    components = tree.get("components")
    raw = tree.get("securityDefinitions") if dialect == "2.0" else None
    if isinstance(components, dict) and dialect != "2.0":
        raw = components.get("securitySchemes")
    found = {}
    for name, each in raw.items() if isinstance(raw, dict) else ():
        try:
            entry = pointers.object(each)
        except Unresolved:
            continue
        found[name] = _scheme(name, swagger.scheme(entry) if dialect == "2.0" else entry)
    return found


def _scheme(name: str, raw: Json) -> SecurityScheme:
    flows = raw.get("flows")
    return SecurityScheme(
        name=name,
        kind=_text(raw, "type"),
        place=_text(raw, "in"),
        parameter=_text(raw, "name"),
        scheme=_text(raw, "scheme").lower(),
        flows=flows if isinstance(flows, dict) else {},
        openid_url=_text(raw, "openIdConnectUrl"),
        description=words.cleaned(raw.get("description"), words.FIELD),
    )


def requirements(raw: Any) -> tuple[Requirement, ...]:
    """Alternatives; each names schemes that are needed together."""
    listed = [each for each in raw if isinstance(each, dict)] if isinstance(raw, list) else []
    return tuple({name: tuple(swagger.texts(scopes)) for name, scopes in each.items()} for each in listed)


def _text(raw: Json, word: str) -> str:
    value = raw.get(word)
    return value if isinstance(value, str) else ""
