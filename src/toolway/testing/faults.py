"""Fault modes of the fake servers, when they trigger, and the modes of both transports.

A fault mode is one named misbehavior. It is set as `name`, `name=value` or `name=value;option=value;…`. Each mode has
default trigger points; for most of them that is the response to the tool `bad`. All modes have two options:

    on=POINTS   trigger points instead of the default, separated by commas: a tool (`echo`), a method (`tools/list`),
                `*` for every request, `start`, or `eof` (the end of stdin)
    times=N     number of times it triggers

A call of `bad` may name a mode in its argument `mode`. Its other arguments are then options too.

Modes that only one transport has are in `stdio_faults` and `http_faults`.
"""

from __future__ import annotations

from toolway.testing.wire import INVALID_PARAMS, RpcError, as_object, encode, make_response

TYPE_CHECKING = False  # importing typing would take a third of the start

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, TypeAlias

    from toolway.testing.server import FakeServer
    from toolway.testing.wire import Json

    FaultFunction: TypeAlias = Callable[..., Any]
    FaultTable: TypeAlias = dict[str, "FaultMode"]
    CorruptFunction: TypeAlias = Callable[[Json, "FaultSetting"], bytes]

BAD_TOOLS = ("bad", "bad_read")


class FaultMode:
    """One named misbehavior of a fake server: the function that causes it, its trigger points."""

    def __init__(
        self,
        name: str,
        run: FaultFunction,
        on: tuple[str, ...] = BAD_TOOLS,
        *,
        doc: str = "",
        inline: bool = False,
        early: bool = False,
        value: str = "",
        times: int = -1,
    ) -> None:
        self.name = name
        self.run = run
        self.doc = doc or run.__doc__ or ""
        self.on = on
        self.inline = inline  # blocks all other requests, instead of running next to them
        self.early = early  # runs instead of the call, not after it
        self.default_value = value
        self.times = times  # negative: no limit

    def with_name(self, name: str, on: str, doc: str, *, value: str = "", times: int = -1) -> FaultMode:
        """Return a fault mode with this mode's function, but another name and trigger point `on`.

        The trigger point is the request that causes the fault, such as `server/discover`.
        """
        return FaultMode(name, self.run, (on,), doc=doc, inline=self.inline, early=self.early, value=value, times=times)


def register_fault(
    table: FaultTable, name: str, *, on: Iterable[str] = BAD_TOOLS, inline: bool = False, early: bool = False
) -> Callable[[FaultFunction], FaultFunction]:
    """Return a decorator that adds a function to `table` as a fault mode with this name.

    The docstring of the function is the help text of the mode.
    """

    def register(run: FaultFunction) -> FaultFunction:
        table[name] = FaultMode(name, run, tuple(on), inline=inline, early=early)
        return run

    return register


class FaultSetting:
    """Fault mode as set on a server: its value, its options and the number of triggers left."""

    def __init__(self, mode: FaultMode, value: str = "", options: Json | None = None) -> None:
        self.mode = mode
        self.value = value or mode.default_value
        self.options = dict(options or {})
        on = self.options.pop("on", None)
        self.on = tuple(on.split(",")) if isinstance(on, str) else mode.on
        self.triggers_left = int(self.options.pop("times", mode.times))

    def number(self, default: float) -> float:
        """Return the value of the setting as a number, or `default` if no value is set."""
        return float(self.value) if self.value else default

    def use_trigger(self) -> bool:
        """Use up one trigger of this fault setting. Return False if none is left."""
        if self.triggers_left == 0:
            return False
        self.triggers_left -= 1
        return True


def parse_fault_setting(table: FaultTable, text: str, options: Json | None = None) -> FaultSetting:
    """Parse a fault mode text, `name=value;option=value;…`.

    Raises `ValueError` if the fault mode is not in `table`.
    """
    head, *rest = text.split(";")
    name, _, value = head.partition("=")
    if name not in table:
        raise ValueError(f"unknown mode {name!r}")
    pairs = (item.partition("=") for item in rest)
    return FaultSetting(table[name], value, {**(options or {}), **{key.strip(): value for key, _, value in pairs}})


class ActiveFaults:
    """Fault modes that are set on one fake server; finds the mode that triggers for a request."""

    def __init__(self, table: FaultTable, texts: Iterable[str] = ()) -> None:
        self.table = table
        self.settings = [parse_fault_setting(table, text) for text in texts]

    def add(self, text: str) -> None:
        self.settings.append(parse_fault_setting(self.table, text))

    def clear(self) -> None:
        self.settings.clear()

    def trigger_at(self, point: str) -> list[FaultSetting]:
        """Return all fault settings that trigger at `point`: `start`, or `eof` for the end of stdin."""
        return [setting for setting in self.settings if point in setting.on and setting.use_trigger()]

    def trigger_for(self, message: Json) -> FaultSetting | None:
        """Return the fault setting that triggers for a JSON-RPC request, or None.

        Raises `RpcError` if a call of the tool `bad` names an unknown fault mode.
        """
        params = as_object(message.get("params"))
        tool = params.get("name") if message["method"] == "tools/call" else None
        arguments = as_object(params.get("arguments"))
        if tool in BAD_TOOLS and isinstance(arguments.get("mode"), str):
            try:
                return parse_fault_setting(self.table, arguments["mode"], arguments)
            except ValueError as error:
                raise RpcError(INVALID_PARAMS, str(error)) from None
        points = {message["method"], str(tool), "*"}
        for setting in self.settings:
            if points.intersection(setting.on) and setting.use_trigger():
                return setting
        return None


def format_fault_table(table: FaultTable) -> str:
    """Return the help text of all fault modes, one line for each."""
    width = max(map(len, table))
    lines = [
        f"{fault_mode.name:{width}}  {','.join(_shown_trigger_points(fault_mode)):15}  {fault_mode.doc}"
        for fault_mode in table.values()
    ]
    return "\n".join([f"{'MODE':{width}}  {'ON':15}  DESCRIPTION", *lines])


def _shown_trigger_points(fault_mode: FaultMode) -> list[str]:
    return [point for point in fault_mode.on if point != "bad_read"]


# -- faults of the tool list, set at the start of the server -----------------------------------------------------------

LIST_FAULTS: FaultTable = {}


@register_fault(LIST_FAULTS, "malformed_tool", on=("start",))
def _malformed_tool(server: FakeServer, setting: FaultSetting) -> None:
    """Offer invalid tools: null schema, no name, name of 300 characters, number as description."""
    schema = {"type": "object"}
    server.malformed_tools = [
        {"name": "null_schema", "inputSchema": None},
        {"description": "no name", "inputSchema": schema},
        {"name": "n" * 300, "inputSchema": schema},
        {"name": "odd_description", "description": 7, "inputSchema": schema, "annotations": "none"},
    ]


@register_fault(LIST_FAULTS, "many_tools", on=("start",))
def _many_tools(server: FakeServer, setting: FaultSetting) -> None:
    """Offer VALUE more tools (default 2000)."""
    server.extra_tools += [f"many_{number:05}" for number in range(int(setting.number(2000)))]


# -- corrupt responses: functions from a response to the bytes to send -------------------------------------------------

CORRUPTIONS: FaultTable = {}

_PLACEHOLDER = "\x1a"  # encoded as \u001a, which no good response contains
_PLACEHOLDER_JSON = encode({"": _PLACEHOLDER})[4:-1]


def pad_response(message: Json, megabytes: float) -> bytes:
    """Encode a JSON-RPC response, enlarged by `megabytes` of text in an additional field."""
    return _insert_raw_field(message, b'"' + b"x" * int(megabytes * 1_000_000) + b'"')


def replace_id(message: Json, id: object) -> Json:
    return {**message, "id": id}


def _insert_raw_field(message: Json, raw: bytes) -> bytes:
    """Encode a JSON-RPC response with the bytes `raw` as the value of an extra result field."""
    result = {**as_object(message.get("result")), "spoiled": _PLACEHOLDER}
    return encode(make_response(message["id"], result)).replace(_PLACEHOLDER_JSON, raw, 1)


def _corruption(name: str, on: tuple[str, ...] = BAD_TOOLS) -> Callable[[CorruptFunction], CorruptFunction]:
    return register_fault(CORRUPTIONS, name, on=on)


@_corruption("bom")
def _bom(message: Json, setting: FaultSetting) -> bytes:
    """Send a byte order mark before the response."""
    return b"\xef\xbb\xbf" + encode(message)


@_corruption("nul")
def _nul(message: Json, setting: FaultSetting) -> bytes:
    """Send a NUL byte inside the response."""
    return _insert_raw_field(message, b'"\x00"')


@_corruption("bad_utf8")
def _bad_utf8(message: Json, setting: FaultSetting) -> bytes:
    """Send the byte E9, which is invalid UTF-8, inside the response."""
    return _insert_raw_field(message, b'"caf\xe9"')


@_corruption("deep")
def _deep(message: Json, setting: FaultSetting) -> bytes:
    """Send a response with arrays nested VALUE levels deep (default 1000)."""
    levels = int(setting.number(1000))
    return _insert_raw_field(message, b"[" * levels + b"]" * levels)


@_corruption("duplicate_keys")
def _duplicate_keys(message: Json, setting: FaultSetting) -> bytes:
    """Send a response with an object that has the same key twice."""
    return _insert_raw_field(message, b'1,"spoiled":2')


@_corruption("nan")
def _nan(message: Json, setting: FaultSetting) -> bytes:
    """Send a response with the number NaN, which JSON does not allow."""
    return _insert_raw_field(message, b"NaN")


@_corruption("huge_number")
def _huge_number(message: Json, setting: FaultSetting) -> bytes:
    """Send a response with the number 1e400, which exceeds a double."""
    return _insert_raw_field(message, b"1e400")


@_corruption("huge_keys")
def _huge_keys(message: Json, setting: FaultSetting) -> bytes:
    """Send a response with an object of VALUE keys (default 20000)."""
    keys = (f'"k{number}":0' for number in range(int(setting.number(20_000))))
    return _insert_raw_field(message, ("{" + ",".join(keys) + "}").encode())


@_corruption("truncated")
def _truncated(message: Json, setting: FaultSetting) -> bytes:
    """Truncate the response after its id; VALUE `noid`: before its id."""
    if setting.value == "noid":
        message = {key: message[key] for key in message if key != "id"} | {"id": message["id"]}
        whole = encode(message)
        return whole[: whole.rindex(b'"id"')]
    return encode(message)[:-7]


@_corruption("foreign_id_type")
def _foreign_id_type(message: Json, setting: FaultSetting) -> bytes:
    """Send the response with its id as the other JSON type: 7 for "7", "7" for 7."""
    id = message["id"]
    other = str(id) if isinstance(id, int) else int(id) if id.isdecimal() else [id]
    return encode(replace_id(message, other))


@_corruption("no_newline_prefix")
def _no_newline_prefix(message: Json, setting: FaultSetting) -> bytes:
    """Send text before the response, on the same line."""
    return b"Loading the model... done. " + encode(message)


@_corruption("result_not_object")
def _result_not_object(message: Json, setting: FaultSetting) -> bytes:
    """Send a list as the result, or null or a string if VALUE is `null` or `text`."""
    result = {"null": None, "text": "done"}.get(setting.value, ["done"])
    return encode({"jsonrpc": "2.0", "id": message["id"], "result": result})


@_corruption("both_result_and_error")
def _both_result_and_error(message: Json, setting: FaultSetting) -> bytes:
    """Send a result and an error in one response."""
    return encode(
        {**make_response(message["id"], {"content": []}), "error": {"code": -32603, "message": "and an error"}}
    )


@_corruption("unknown_result_type")
def _unknown_result_type(message: Json, setting: FaultSetting) -> bytes:
    """Send a resultType that no specification defines."""
    return encode(make_response(message["id"], {**as_object(message.get("result")), "resultType": "telepathy"}))


@_corruption("repeated_cursor", on=("tools/list",))
def _repeated_cursor(message: Json, setting: FaultSetting) -> bytes:
    """End every page of tools/list with the same cursor."""
    if "error" in message:  # the server without the fault rejects this cursor
        message = make_response(message["id"], {"tools": []})
    return encode(make_response(message["id"], {**message["result"], "nextCursor": "again"}))
