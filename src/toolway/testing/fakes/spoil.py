"""Good responses made bad: functions of a response that give the bytes to send. They serve both transports."""

from __future__ import annotations

from toolway.testing.fakes import modes
from toolway.testing.fakes.wire import encode, object_of, response

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from toolway.testing.fakes.modes import Setting
    from toolway.testing.fakes.wire import Json

    Spoil: TypeAlias = Callable[[Json, Setting], bytes]

SPOILS: modes.Table = {}

_HOLE = "\x1a"  # encoded as \u001a, which no honest text has
_HOLE_JSON = encode({"": _HOLE})[4:-1]


def padded(message: Json, megabytes: float) -> bytes:
    """The response with so many megabytes of text."""
    return _filled(message, b'"' + b"x" * int(megabytes * 1_000_000) + b'"')


def with_id(message: Json, id: object) -> Json:
    return {**message, "id": id}


def _filled(message: Json, raw: bytes) -> bytes:
    """The response with these bytes as the value of one more field of its result."""
    result = {**object_of(message.get("result")), "spoiled": _HOLE}
    return encode(response(message["id"], result)).replace(_HOLE_JSON, raw, 1)


def _spoil(name: str, on: tuple[str, ...] = modes.BAD) -> Callable[[Spoil], Spoil]:
    return modes.mode(SPOILS, name, on=on)


@_spoil("bom")
def _bom(message: Json, setting: Setting) -> bytes:
    """A byte order mark before the response."""
    return b"\xef\xbb\xbf" + encode(message)


@_spoil("nul")
def _nul(message: Json, setting: Setting) -> bytes:
    """A NUL byte inside the response."""
    return _filled(message, b'"\x00"')


@_spoil("bad_utf8")
def _bad_utf8(message: Json, setting: Setting) -> bytes:
    """The byte E9, which is no UTF-8, inside the response."""
    return _filled(message, b'"caf\xe9"')


@_spoil("deep")
def _deep(message: Json, setting: Setting) -> bytes:
    """A response nested VALUE levels deep (1000)."""
    levels = int(setting.number(1000))
    return _filled(message, b"[" * levels + b"]" * levels)


@_spoil("duplicate_keys")
def _duplicate_keys(message: Json, setting: Setting) -> bytes:
    """A response with the same key twice."""
    return _filled(message, b'1,"spoiled":2')


@_spoil("nan")
def _nan(message: Json, setting: Setting) -> bytes:
    """A response with the number NaN."""
    return _filled(message, b"NaN")


@_spoil("huge_number")
def _huge_number(message: Json, setting: Setting) -> bytes:
    """A response with the number 1e400."""
    return _filled(message, b"1e400")


@_spoil("huge_keys")
def _huge_keys(message: Json, setting: Setting) -> bytes:
    """A response with an object of VALUE keys (20000)."""
    keys = (f'"k{number}":0' for number in range(int(setting.number(20_000))))
    return _filled(message, ("{" + ",".join(keys) + "}").encode())


@_spoil("truncated")
def _truncated(message: Json, setting: Setting) -> bytes:
    """The response cut short, its id still readable; VALUE `noid`: cut before the id."""
    if setting.value == "noid":
        message = {key: message[key] for key in message if key != "id"} | {"id": message["id"]}
        whole = encode(message)
        return whole[: whole.rindex(b'"id"')]
    return encode(message)[:-7]


@_spoil("foreign_id_type")
def _foreign_id_type(message: Json, setting: Setting) -> bytes:
    """The id as the other JSON type: 7 for "7", "7" for 7."""
    id = message["id"]
    other = str(id) if isinstance(id, int) else int(id) if id.isdecimal() else [id]
    return encode(with_id(message, other))


@_spoil("no_newline_prefix")
def _no_newline_prefix(message: Json, setting: Setting) -> bytes:
    """Text before the response, on the same line."""
    return b"Loading the model... done. " + encode(message)


@_spoil("result_not_object")
def _result_not_object(message: Json, setting: Setting) -> bytes:
    """A list for a result; VALUE `null` or `text`: that instead."""
    result = {"null": None, "text": "done"}.get(setting.value, ["done"])
    return encode({"jsonrpc": "2.0", "id": message["id"], "result": result})


@_spoil("both_result_and_error")
def _both_result_and_error(message: Json, setting: Setting) -> bytes:
    """A result and an error in one response."""
    return encode({**response(message["id"], {"content": []}), "error": {"code": -32603, "message": "and an error"}})


@_spoil("unknown_result_type")
def _unknown_result_type(message: Json, setting: Setting) -> bytes:
    """A resultType that no specification knows."""
    return encode(response(message["id"], {**object_of(message.get("result")), "resultType": "telepathy"}))


@_spoil("repeated_cursor", on=("tools/list",))
def _repeated_cursor(message: Json, setting: Setting) -> bytes:
    """tools/list that always ends with the same cursor."""
    if "error" in message:  # the cursor means nothing to the honest server
        message = response(message["id"], {"tools": []})
    return encode(response(message["id"], {**message["result"], "nextCursor": "again"}))
