"""How to go on from one page of an answer to the next: the arguments that a further call needs. Pure.

An API says it in one of a few ways: a `Link` header or an address in the body, a cursor that goes into a parameter, or
that there is more, where a parameter counts pages or items. What cannot be turned into arguments of the same tool is
left to the reader of the answer. An address is never opened: only its query is read, and only if it is of the same
path.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, urljoin, urlsplit

from toolway.model import Json
from toolway.openapi.operation import Operation

_NEXT_LINK: Final = re.compile(r"<([^<>]{1,4000})>\s*(?:;[^,<>]{0,500})?;\s*rel=\"?(?:[\w ]*\b)?next\b", re.IGNORECASE)
#: Where bodies hold the address of the next page, and where they hold its cursor.
_ADDRESSES: Final = ("next", "next_page_uri", "nextPageUri", "next_url", "nextLink", "@odata.nextLink", "next_page_url")
_CURSORS: Final = (
    *("next_cursor", "nextCursor", "next_page_token", "nextPageToken", "next_marker", "nextMarker", "next_token"),
    *("nextToken", "cursor", "continuation", "continuationToken", "after", "next"),
)
_INSIDE: Final = ("meta", "response_metadata", "paging", "pagination", "page", "links", "_links", "cursors")
_CURSOR_ARGUMENTS: Final = (
    *("cursor", "page_token", "pageToken", "PageToken", "marker", "next_token", "nextToken", "after"),
    *("starting_after", "continuationToken", "continuation", "next_cursor", "nextCursor"),
)
_PAGE_ARGUMENTS: Final = ("page", "Page", "page_number", "pageNumber")
_MORE: Final = ("has_more", "hasMore", "has_next", "hasNext", "has_next_page")
_LAST: Final = ("last_id", "lastId")
_LONGEST: Final = 4000


class _Field(NamedTuple):
    argument: str
    schema: Json


def next_arguments(
    operation: Operation, arguments: Mapping[str, Any], url: str, headers: Mapping[str, str], value: Any
) -> Json | None:
    """The arguments of the next page; None where there is none, or none is known. `url` is where the request went."""
    if operation.method != "GET":
        return None
    parameters = {
        each.name: _Field(each.argument, _schema(operation, each.argument))
        for each in operation.parameters
        if each.place == "query" and not each.given
    }
    if not parameters:
        return None
    for address in _addresses(headers, value):
        found = _of_address(parameters, urljoin(url, address), url)
        if found is not None and any(arguments.get(key) != each for key, each in found.items()):
            return {**arguments, **found}
    return _of_cursor(parameters, arguments, value) or _of_count(parameters, arguments, value)


def _schema(operation: Operation, argument: str) -> Json:
    """What is said of an argument where it stands, references followed once."""
    schema = operation.tool.get("inputSchema", {})
    found = schema.get("properties", {}).get(argument, {})
    ref = found.get("$ref", "") if isinstance(found, dict) else ""
    if ref.startswith("#/$defs/"):
        found = schema.get("$defs", {}).get(ref.removeprefix("#/$defs/"), {})
    return found if isinstance(found, dict) else {}


def _addresses(headers: Mapping[str, str], value: Any) -> Iterator[str]:
    link = headers.get("link", "")
    if len(link) <= _LONGEST and (found := _NEXT_LINK.search(link)):
        yield found[1]
    for place in _places(value):
        for name in _ADDRESSES:
            address = place.get(name)
            address = address.get("href") if isinstance(address, dict) else address
            if isinstance(address, str) and ("/" in address or address.startswith("?")) and len(address) <= _LONGEST:
                yield address


def _places(value: Any) -> Iterator[Json]:
    if isinstance(value, dict):
        yield value
        for name in _INSIDE:
            if isinstance(value.get(name), dict):
                yield value[name]


def _of_address(parameters: Mapping[str, _Field], address: str, url: str) -> Json | None:
    """What the query of an address says, in arguments. Its host is not looked at: nothing is sent there."""
    try:
        ours, theirs = urlsplit(url), urlsplit(address)
        pairs = parse_qsl(theirs.query, keep_blank_values=True, max_num_fields=100)
    except ValueError:
        return None
    if theirs.path != ours.path or not pairs or any(name not in parameters for name, _ in pairs):
        return None
    if len({name for name, _ in pairs}) != len(pairs):
        return None  # a list, which stays as it is only if we knew how it was written
    return {parameters[name].argument: _fitting(parameters[name], text) for name, text in pairs}


def _of_cursor(parameters: Mapping[str, _Field], arguments: Mapping[str, Any], value: Any) -> Json | None:
    wanted = next((parameters[name] for name in _CURSOR_ARGUMENTS if name in parameters), None)
    if wanted is None:
        return None
    for place in _places(value):
        names = (*_CURSORS, *(_LAST if any(place.get(more) is True for more in _MORE) else ()))
        if any(place.get(more) is False for more in _MORE):
            return None
        for name in names:
            cursor = place.get(name)
            if isinstance(cursor, str | int) and not isinstance(cursor, bool) and cursor not in ("", 0):
                if str(cursor) == str(arguments.get(wanted.argument)) or len(str(cursor)) > _LONGEST:
                    return None
                return {**arguments, wanted.argument: _fitting(wanted, str(cursor))}
    return None


def _of_count(parameters: Mapping[str, _Field], arguments: Mapping[str, Any], value: Any) -> Json | None:
    wanted = next((parameters[name] for name in _PAGE_ARGUMENTS if name in parameters), None)
    more = any(place.get(name) is True for place in _places(value) for name in _MORE)
    if wanted is None or not more:
        return None
    page = arguments.get(wanted.argument, wanted.schema.get("default", 1))
    return {**arguments, wanted.argument: page + 1} if isinstance(page, int) and not isinstance(page, bool) else None


def _fitting(parameter: _Field, text: str) -> Any:
    """The text as a value of the parameter's type."""
    kind = parameter.schema.get("type")
    kinds = kind if isinstance(kind, list) else [kind]
    if "integer" in kinds and re.fullmatch(r"-?[0-9]{1,18}", text):
        return int(text)
    if "boolean" in kinds and text in ("true", "false"):
        return text == "true"
    return text
