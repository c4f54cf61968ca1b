"""An operation and arguments → a request, in which every value stays in its place.

Arguments come from a model, which may repeat what an attacker wrote. Whatever they contain, the path has the segments
of the template, the query its parameters, the head its headers; what cannot be written that way is refused, and nothing
is sent.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from toolway.openapi import places, styles, writing
from toolway.openapi.operation import Body, Operation, Parameter
from toolway.openapi.problems import BadArguments

_SPLIT: Final = re.compile(r"\{([^{}/]{1,200})\}")
_LOOKS: Final = frozenset({"GET", "HEAD"})
_LITERAL: Final = "/:@!$&'()*+,;=%~"  # `%`: templates may be encoded already


@dataclass(frozen=True, slots=True)
class Encoded:
    """A request without its host: all that depends on the arguments."""

    target: str  # path and query, ASCII, ready for the request line
    headers: tuple[tuple[str, str], ...]  # header parameters, and `Cookie` where there are any; no Content-Type
    body: bytes | None
    content_type: str  # empty where there is no body


def encode(operation: Operation, arguments: Mapping[str, Any], base_path: str = "") -> Encoded:
    """The request for these arguments. `base_path` is the path of the server's URL, as it is sent. Raises
    `BadArguments`."""
    _check_names(operation, arguments)
    _check_keys(operation, arguments)
    path: dict[str, str] = {}
    query: styles.Pairs = []
    cookies: styles.Pairs = []
    headers: list[tuple[str, str]] = []
    for parameter in operation.parameters:
        value = arguments.get(parameter.argument)
        if value is None or parameter.given:
            continue
        if parameter.place == "path":
            path[parameter.name] = _in_path(parameter, value, operation)
        elif parameter.place == "query":
            query.extend(_in_query(parameter, value))
        elif parameter.place == "header":
            headers.append((parameter.name, _in_header(parameter, value)))
        else:
            cookies.extend(_in_cookie(parameter, value))
    if cookies:
        headers.append(("Cookie", "; ".join(f"{name}={text}" for name, text in cookies)))
    body, content_type = _body(operation.body, arguments)
    return Encoded(_target(operation.path, base_path.rstrip("/"), path, query), tuple(headers), body, content_type)


def _check_names(operation: Operation, arguments: Mapping[str, Any]) -> None:
    body = operation.body
    own = [parameter for parameter in operation.parameters if not parameter.given]
    known = {parameter.argument for parameter in own}
    missing = [each.argument for each in own if each.required and arguments.get(each.argument) is None]
    if body is not None:
        known |= {body.argument, body.type_argument} - {""}
        if body.required and body.argument not in arguments:
            missing.append(body.argument)
    if missing:
        raise BadArguments(f"missing: {', '.join(missing)}")
    unknown = [name for name in arguments if name not in known]
    if unknown:
        there = f"there are {', '.join(sorted(known))}" if known else "it takes none"
        raise BadArguments(f"unknown: {', '.join(sorted(unknown))[:200]}; {there}"[:1000])


def _check_keys(operation: Operation, arguments: Mapping[str, Any]) -> None:
    """The fields of an object may be parameters of a query themselves, but not those of somebody else."""
    taken = {*operation.reserved, *(each.name for each in operation.parameters if each.place == "query")}
    for parameter in operation.parameters:
        value = arguments.get(parameter.argument)
        spread = parameter.place == "query" and parameter.style == "form" and parameter.explode
        if spread and isinstance(value, dict) and not parameter.content_type and not taken.isdisjoint(value):
            names = ", ".join(sorted(taken.intersection(value)))
            raise BadArguments(f"{parameter.argument!r} may not contain {names}, which are parameters themselves")


def _own(parameter: Parameter, value: Any) -> Any:
    """The value itself, or its text where the parameter has a format of its own."""
    return styles.json_of(value) if parameter.content_type and not _is_text(parameter, value) else value


def _is_text(parameter: Parameter, value: Any) -> bool:
    return isinstance(value, str) and "json" not in parameter.content_type


def _in_path(parameter: Parameter, value: Any, operation: Operation) -> str:
    value = _own(parameter, value)
    if parameter.style == "label":
        text = styles.label(value, parameter.explode, places.in_path)
    elif parameter.style == "matrix":
        text = styles.matrix(parameter.name, value, parameter.explode, places.in_path)
    else:
        text = styles.simple(value, parameter.explode, places.in_path)
    # The path of another operation would be left: all of them instead of one. To look there does no harm, and some
    # APIs want it so, for the top of a tree.
    if not text and not (operation.method in _LOOKS and operation.path.endswith(f"/{{{parameter.name}}}")):
        raise BadArguments(f"{parameter.argument!r} is part of the path, so it may not be empty")
    return text


def _in_query(parameter: Parameter, value: Any) -> styles.Pairs:
    quoted = partial(places.in_query, reserved=parameter.allow_reserved)
    return styles.pairs(
        parameter.name, _own(parameter, value), parameter.style, parameter.explode, places.in_query, quoted
    )


def _in_header(parameter: Parameter, value: Any) -> str:
    quoted = partial(places.in_header, argument=parameter.argument)
    return styles.simple(_own(parameter, value), parameter.explode, quoted)


def _in_cookie(parameter: Parameter, value: Any) -> styles.Pairs:
    # The names of cookies are the document's, and tokens, so an object is one cookie in any case.
    explode = parameter.explode and not isinstance(value, dict)
    return styles.pairs(parameter.name, _own(parameter, value), "form", explode, str, places.in_cookie)


def _body(body: Body | None, arguments: Mapping[str, Any]) -> tuple[bytes | None, str]:
    if body is None or body.argument not in arguments:
        return None, ""
    content = body.contents[0]
    wanted = arguments.get(body.type_argument) if body.type_argument else None
    if wanted is not None:
        found = next((each for each in body.contents if each.media_type == wanted), None)
        if found is None:
            names = ", ".join(each.media_type for each in body.contents)
            raise BadArguments(f"{body.type_argument!r} is one of {names}")
        content = found
    return writing.write(arguments[body.argument], content)


def _target(template: str, base_path: str, path: Mapping[str, str], query: styles.Pairs) -> str:
    pieces, fixed = _pieces(template)
    # Names and texts stand in turns.
    whole = "".join(path[piece] if number % 2 else piece for number, piece in enumerate(pieces))
    if places.leads_away(whole):
        raise BadArguments("a value in the path may not be . or .. or contain them between slashes")
    target = base_path + whole
    texts = [fixed] * bool(fixed) + [f"{name}={text}" for name, text in query]
    return f"{target}?{'&'.join(texts)}" if texts else target


@functools.lru_cache(4096)
def _pieces(template: str) -> tuple[tuple[str, ...], str]:
    """A path as literal texts and names in turns, and the query that some documents write behind it."""
    path, _, query = template.partition("#")[0].partition("?")
    pieces = _SPLIT.split(path)
    literal = [piece if number % 2 else quote(piece, safe=_LITERAL) for number, piece in enumerate(pieces)]
    return tuple(literal), quote(query, safe=_LITERAL + "?")
