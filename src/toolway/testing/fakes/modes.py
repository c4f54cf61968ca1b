"""What a mode is, and when it strikes.

A mode is one named misbehaviour. It is set as `name`, `name=value` or `name=value;option=value;…`, and strikes by
itself at the places it is made for, most of them at the answer to the tool `bad`. Two options are common to all:

    on=PLACES   where it strikes instead, separated by commas: a tool (`echo`), a method (`tools/list`), `*` for every
                request, `start`, or `eof` (the end of stdin)
    times=N     how often it strikes before it is spent

One call of `bad` may name its own mode in its argument `mode`; its other arguments are then options too.
"""

from __future__ import annotations

from toolway.testing.fakes.wire import INVALID_PARAMS, RpcError, object_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, TypeAlias

    from toolway.testing.fakes.wire import Json

    Run: TypeAlias = Callable[..., Any]
    Table: TypeAlias = dict[str, "Mode"]

BAD = ("bad", "bad_read")


class Mode:
    """One misbehaviour: its name, when it strikes unless told otherwise, and the function that does it."""

    def __init__(
        self,
        name: str,
        run: Run,
        on: tuple[str, ...] = BAD,
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
        self.inline = inline  # in the way of everything else, not beside it
        self.early = early  # instead of the work, not after it
        self.value = value  # where none is set
        self.times = times  # negative: for ever

    def renamed(self, name: str, on: str, doc: str, *, value: str = "", times: int = -1) -> Mode:
        """The same at another place, under a name of its own."""
        return Mode(name, self.run, (on,), doc=doc, inline=self.inline, early=self.early, value=value, times=times)


def mode(
    table: Table, name: str, *, on: Iterable[str] = BAD, inline: bool = False, early: bool = False
) -> Callable[[Run], Run]:
    """Enter a function into a table of modes. Its docstring is what users read."""

    def register(run: Run) -> Run:
        table[name] = Mode(name, run, tuple(on), inline=inline, early=early)
        return run

    return register


class Setting:
    """A mode as it was set."""

    def __init__(self, mode: Mode, value: str = "", options: Json | None = None) -> None:
        self.mode = mode
        self.value = value or mode.value
        self.options = dict(options or {})
        on = self.options.pop("on", None)
        self.on = tuple(on.split(",")) if isinstance(on, str) else mode.on
        self.left = int(self.options.pop("times", mode.times))

    def number(self, default: float) -> float:
        """The value as a number."""
        return float(self.value) if self.value else default

    def spend(self) -> bool:
        """Whether it may strike once more."""
        if self.left == 0:
            return False
        self.left -= 1
        return True


def parse(table: Table, text: str, options: Json | None = None) -> Setting:
    """Read `name=value;option=value;…`. Raises `ValueError` for a mode that is not in the table."""
    head, *rest = text.split(";")
    name, _, value = head.partition("=")
    if name not in table:
        raise ValueError(f"no mode {name!r}")
    pairs = (item.partition("=") for item in rest)
    return Setting(table[name], value, {**(options or {}), **{key.strip(): value for key, _, value in pairs}})


class Modes:
    """The modes of one server."""

    def __init__(self, table: Table, texts: Iterable[str] = ()) -> None:
        self.table = table
        self.settings = [parse(table, text) for text in texts]

    def set(self, text: str) -> None:
        self.settings.append(parse(self.table, text))

    def clear(self) -> None:
        self.settings.clear()

    def at(self, place: str) -> list[Setting]:
        """All that strike at `start` or `eof`."""
        return [setting for setting in self.settings if place in setting.on and setting.spend()]

    def struck(self, message: Json) -> Setting | None:
        """The mode that strikes a request, if any. Raises `RpcError` where a call of `bad` names an unknown one."""
        params = object_of(message.get("params"))
        tool = params.get("name") if message["method"] == "tools/call" else None
        arguments = object_of(params.get("arguments"))
        if tool in BAD and isinstance(arguments.get("mode"), str):
            try:
                return parse(self.table, arguments["mode"], arguments)
            except ValueError as error:
                raise RpcError(INVALID_PARAMS, str(error)) from None
        places = {message["method"], str(tool), "*"}
        for setting in self.settings:
            if places.intersection(setting.on) and setting.spend():
                return setting
        return None


def table_text(table: Table) -> str:
    """All modes for people, one line each."""
    width = max(map(len, table))
    lines = [f"{item.name:{width}}  {','.join(_places(item)):15}  {item.doc}" for item in table.values()]
    return "\n".join([f"{'MODE':{width}}  {'ON':15}  WHAT IT DOES", *lines])


def _places(item: Mode) -> list[str]:
    return [place for place in item.on if place != "bad_read"]
