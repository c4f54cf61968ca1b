"""What can go wrong on a server's stdout. See modes.py for how modes are set, and process_modes.py for the rest."""

from __future__ import annotations

import time
from functools import partial

from toolway.testing.fakes import modes
from toolway.testing.fakes.lists import LISTS
from toolway.testing.fakes.spoil import SPOILS, padded, with_id
from toolway.testing.fakes.wire import SUBSCRIPTION_KEY, encode, notification

TYPE_CHECKING = False
if TYPE_CHECKING:
    from toolway.testing.fakes.stdio import Hit
    from toolway.testing.fakes.wire import Json

MODES: modes.Table = {}
mode = partial(modes.mode, MODES)

_GARBAGE = b"Server starting on stdio...\n\n\x1b[32mINFO\x1b[0m ready \x1b[1m(100%)\x1b[0m\n"
_CHUNK = b"x" * 65536


def _spoiled(spoil: modes.Run, hit: Hit) -> None:
    hit.out.line(spoil(hit.reply, hit.setting))


def _listed(make: modes.Run, hit: Hit) -> None:
    make(hit.server, hit.setting)


for _name, _mode in SPOILS.items():
    MODES[_name] = modes.Mode(_name, partial(_spoiled, _mode.run), _mode.on, doc=_mode.doc)
for _name, _mode in LISTS.items():
    MODES[_name] = modes.Mode(_name, partial(_listed, _mode.run), _mode.on, doc=_mode.doc)


@mode("garbage", on=("start", *modes.BAD))
def _garbage(hit: Hit) -> None:
    """Text, blank and ANSI lines, at the start and before the answer."""
    hit.out.raw(_GARBAGE)
    hit.answer()


@mode("bad_utf8")
def _bad_utf8(hit: Hit) -> None:
    """A stray line with the byte E9, then an answer with it; VALUE `stray` or `inside`: only one of them."""
    if hit.setting.value != "inside":
        hit.out.line(b"caf\xe9")
    if hit.setting.value == "stray":
        hit.answer()
    else:
        hit.out.line(SPOILS["bad_utf8"].run(hit.reply, hit.setting))


@mode("never")
def _never(hit: Hit) -> None:
    """No answer."""


@mode("silent", on=("*",))
def _silent(hit: Hit) -> None:
    """No answer to anything."""


@mode("wrong_id")
def _wrong_id(hit: Hit) -> None:
    """The answer carries the id of another call in flight, or where there is none, one nobody asked with."""
    others = [id for id in hit.in_flight() if id != hit.reply["id"]]
    hit.out.message(with_id(hit.reply, others[0] if others else 987654321))


@mode("unknown_id")
def _unknown_id(hit: Hit) -> None:
    """Two answers with ids nobody asked with, then the right one."""
    hit.out.message(with_id(hit.reply, 987654321))
    hit.out.message(with_id(hit.reply, "nobody"))
    hit.answer()


@mode("twice")
def _twice(hit: Hit) -> None:
    """The answer twice."""
    hit.answer()
    hit.answer()


@mode("half_line")
def _half_line(hit: Hit) -> None:
    """Half of the answer, and then nothing more from this server."""
    line = encode(hit.reply)
    with hit.out.held():
        hit.out.raw(line[: len(line) // 2])
        hit.out.mute()


@mode("line_mb")
def _line_mb(hit: Hit) -> None:
    """An answer of VALUE megabytes (10) in one line."""
    hit.out.line(padded(hit.reply, hit.setting.number(10)))


@mode("endless_line")
def _endless_line(hit: Hit) -> None:
    """An answer whose line does not end (after VALUE megabytes, 4096, it stalls)."""
    with hit.out.held():
        hit.out.raw(encode(hit.reply)[:-7])
        for _ in range(int(hit.setting.number(4096) * 16)):
            if not hit.out.raw(_CHUNK):
                return
        hit.out.mute()


@mode("one_byte_per_second")
def _one_byte_per_second(hit: Hit) -> None:
    """The answer byte by byte, VALUE seconds apart (1)."""
    line = encode(hit.reply) + b"\n"
    with hit.out.held():
        for at in range(len(line)):
            if not hit.out.raw(line[at : at + 1]):
                return
            time.sleep(hit.setting.number(1))


@mode("list_changed_flood")
def _list_changed_flood(hit: Hit) -> None:
    """VALUE notices that the tools changed (100000), then the answer."""
    method = "notifications/tools/list_changed"
    tags = [{"_meta": {SUBSCRIPTION_KEY: call.id}} for call in list(hit.server.listens)]
    notices = [notification(method, tag) for tag in tags] or [notification(method)]
    _flood(hit, b"".join(encode(notice) + b"\n" for notice in notices), 100_000)
    hit.answer()


@mode("progress_flood")
def _progress_flood(hit: Hit) -> None:
    """VALUE reports of progress for a token nobody gave (10000), then the answer."""
    report = notification("notifications/progress", {"progressToken": "nobody", "progress": 1})
    _flood(hit, encode(report) + b"\n", 10_000)
    hit.answer()


def _flood(hit: Hit, line: bytes, default: int) -> None:
    full, rest = divmod(int(hit.setting.number(default)), 500)
    for _ in range(full):
        hit.out.raw(line * 500)
    hit.out.raw(line * rest)


@mode("unasked_requests")
def _unasked_requests(hit: Hit) -> None:
    """Requests for sampling, elicitation and roots unasked; answers with what came back in VALUE seconds (1)."""
    questions: dict[str, Json] = {
        "sampling/createMessage": {"messages": [], "maxTokens": 1},
        "elicitation/create": {"message": "Your password?", "requestedSchema": {"type": "object", "properties": {}}},
        "roots/list": {},
    }
    asked = {method: hit.ask(method, params) for method, params in questions.items()}
    time.sleep(hit.setting.number(1))
    replies = {method: slot.reply for method, slot in asked.items()}
    hit.tell(replies=replies)
    hit.answer()
