"""Fault modes of the fake stdio server: its stdout, its process and its child processes.

See `faults` for how fault modes are set. Processes that refuse to end do end after 300 seconds, and child processes
that are left behind after 120 seconds.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from functools import partial

from toolway.testing import faults
from toolway.testing.faults import CORRUPTIONS, LIST_FAULTS, pad_response, replace_id
from toolway.testing.wire import SUBSCRIPTION_KEY, encode, make_notification

TYPE_CHECKING = False  # importing typing would take a third of the start

if TYPE_CHECKING:
    from toolway.testing.stdio import StdioFaultContext
    from toolway.testing.wire import Json


STDIO_FAULTS: faults.FaultTable = {}
stdio_fault = partial(faults.register_fault, STDIO_FAULTS)

_GARBAGE = b"Server starting on stdio...\n\n\x1b[32mINFO\x1b[0m ready \x1b[1m(100%)\x1b[0m\n"
_CHUNK = b"x" * 65536


def _send_corrupted(corrupt: faults.FaultFunction, context: StdioFaultContext) -> None:
    context.out.write_line(corrupt(context.response, context.setting))


def _change_list(change: faults.FaultFunction, context: StdioFaultContext) -> None:
    change(context.server, context.setting)


for _fault_name, _fault_mode in CORRUPTIONS.items():
    STDIO_FAULTS[_fault_name] = faults.FaultMode(
        _fault_name, partial(_send_corrupted, _fault_mode.run), _fault_mode.on, doc=_fault_mode.doc
    )
for _fault_name, _fault_mode in LIST_FAULTS.items():
    STDIO_FAULTS[_fault_name] = faults.FaultMode(
        _fault_name, partial(_change_list, _fault_mode.run), _fault_mode.on, doc=_fault_mode.doc
    )


@stdio_fault("garbage", on=("start", *faults.BAD_TOOLS))
def _garbage(context: StdioFaultContext) -> None:
    """Send lines that are not JSON (text, blank, ANSI), at the start and before the response."""
    context.out.write(_GARBAGE)
    context.send_response()


@stdio_fault("bad_utf8")
def _bad_utf8(context: StdioFaultContext) -> None:
    """Send a line with the byte E9, then a response with it; VALUE stray or inside: only one."""
    if context.setting.value != "inside":
        context.out.write_line(b"caf\xe9")
    if context.setting.value == "stray":
        context.send_response()
    else:
        context.out.write_line(CORRUPTIONS["bad_utf8"].run(context.response, context.setting))


@stdio_fault("never")
def _never(context: StdioFaultContext) -> None:
    """Send no response to the request."""


@stdio_fault("silent", on=("*",))
def _silent(context: StdioFaultContext) -> None:
    """Send no response to any request."""


@stdio_fault("ignores_unknown", on=("server/discover", "initialize", "ping"))
def _ignores_unknown(context: StdioFaultContext) -> None:
    """Send no response to server/discover, initialize and ping, as servers do that ignore unknown methods."""


@stdio_fault("wrong_id")
def _wrong_id(context: StdioFaultContext) -> None:
    """Send the response with the id of another call in flight, else with an unknown id."""
    other_ids = [id for id in context.in_flight_ids() if id != context.response["id"]]
    context.out.write_message(replace_id(context.response, other_ids[0] if other_ids else 987654321))


@stdio_fault("unknown_id")
def _unknown_id(context: StdioFaultContext) -> None:
    """Send two responses with unknown ids, then the right one."""
    context.out.write_message(replace_id(context.response, 987654321))
    context.out.write_message(replace_id(context.response, "unknown"))
    context.send_response()


@stdio_fault("twice")
def _twice(context: StdioFaultContext) -> None:
    """Send the response of a call twice, with the same id."""
    context.send_response()
    context.send_response()


@stdio_fault("half_line")
def _half_line(context: StdioFaultContext) -> None:
    """Send half of the response line, then nothing else from this server."""
    line = encode(context.response)
    with context.out.exclusive():
        context.out.write(line[: len(line) // 2])
        context.out.mute()


@stdio_fault("line_mb")
def _line_mb(context: StdioFaultContext) -> None:
    """Send a response of VALUE megabytes (default 10) in one line."""
    context.out.write_line(pad_response(context.response, context.setting.number(10)))


@stdio_fault("endless_line")
def _endless_line(context: StdioFaultContext) -> None:
    """Send a response line without end; stall after VALUE megabytes (default 4096)."""
    with context.out.exclusive():
        context.out.write(encode(context.response)[:-7])
        for _ in range(int(context.setting.number(4096) * 16)):
            if not context.out.write(_CHUNK):
                return
        context.out.mute()


@stdio_fault("one_byte_per_second")
def _one_byte_per_second(context: StdioFaultContext) -> None:
    """Send the response byte by byte, VALUE seconds apart (default 1)."""
    line = encode(context.response) + b"\n"
    with context.out.exclusive():
        for at in range(len(line)):
            if not context.out.write(line[at : at + 1]):
                return
            time.sleep(context.setting.number(1))


@stdio_fault("list_changed_flood")
def _list_changed_flood(context: StdioFaultContext) -> None:
    """Send VALUE tools/list_changed notifications (default 100000), then the response."""
    method = "notifications/tools/list_changed"
    tags = [{"_meta": {SUBSCRIPTION_KEY: call.id}} for call in list(context.server.subscriptions)]
    notices = [make_notification(method, tag) for tag in tags] or [make_notification(method)]
    _flood(context, b"".join(encode(notice) + b"\n" for notice in notices), 100_000)
    context.send_response()


@stdio_fault("progress_flood")
def _progress_flood(context: StdioFaultContext) -> None:
    """Send VALUE progress notifications (default 10000) for an unknown token, then the response."""
    report = make_notification("notifications/progress", {"progressToken": "unknown", "progress": 1})
    _flood(context, encode(report) + b"\n", 10_000)
    context.send_response()


def _flood(context: StdioFaultContext, line: bytes, default: int) -> None:
    full, rest = divmod(int(context.setting.number(default)), 500)
    for _ in range(full):
        context.out.write(line * 500)
    context.out.write(line * rest)


@stdio_fault("unasked_requests")
def _unasked_requests(context: StdioFaultContext) -> None:
    """Send sampling, elicitation, roots requests; return the replies after VALUE s (default 1)."""
    requests: dict[str, Json] = {
        "sampling/createMessage": {"messages": [], "maxTokens": 1},
        "elicitation/create": {"message": "Your password?", "requestedSchema": {"type": "object", "properties": {}}},
        "roots/list": {},
    }
    pending = {method: context.send_request(method, params) for method, params in requests.items()}
    time.sleep(context.setting.number(1))
    replies = {method: request.response for method, request in pending.items()}
    context.add_structured_content(replies=replies)
    context.send_response()


# -- child processes that a server leaves behind -----------------------------------------------------------------------

CHILD_LIFETIME_S = 120  # seconds


def spawn_child(*, hold_stdout: bool = False) -> int:
    """Start a child process in the server's process group and return its process id.

    With `hold_stdout`, the child inherits the server's stdout and keeps it open.
    """
    if sys.platform == "win32":
        raise NotImplementedError("a fault of Linux and macOS")
    file_actions = [
        (os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 2) + (() if hold_stdout else (1,))
    ]
    return os.posix_spawnp("sleep", ["sleep", str(CHILD_LIFETIME_S)], os.environ, file_actions=file_actions)


def spawn_daemon() -> int:
    """Start an orphan process in its own session that ignores SIGTERM; return its process id."""
    import subprocess  # slow to import, and rarely needed

    script = f"trap '' TERM; sleep {CHILD_LIFETIME_S} </dev/null >/dev/null 2>&1 & echo $!"
    return int(subprocess.check_output(["/bin/sh", "-c", script], start_new_session=True))


def spawn_zombies(count: int) -> list[int]:
    """Start child processes that exit and are never waited for; return their process ids."""
    if sys.platform == "win32":
        raise NotImplementedError("a fault of Linux and macOS")
    return [os.posix_spawn("/bin/sh", ["sh", "-c", "exit 3"], os.environ) for _ in range(count)]


def spawn_orphans(count: int) -> None:
    """Start orphan processes that exit soon. The process that adopts them has to reap them."""
    import subprocess

    script = "sleep 0.2 </dev/null >/dev/null 2>&1 &"
    for _ in range(count):
        subprocess.check_call(["/bin/sh", "-c", script])


# -- the server process ------------------------------------------------------------------------------------------------

MAX_HANG_S = 300  # seconds


def _hang() -> None:
    time.sleep(MAX_HANG_S)
    os._exit(0)


@stdio_fault("exit_at_start", on=("start",))
def _exit_at_start(context: StdioFaultContext) -> None:
    """Exit at the start with the code VALUE (default 1), after an error message on stderr."""
    sys.stderr.write("fake: FAKE_TOKEN is not set\n")
    sys.stderr.flush()
    os._exit(int(context.setting.number(1)))


@stdio_fault("slow_start", on=("start",))
def _slow_start(context: StdioFaultContext) -> None:
    """Read no request for VALUE seconds (default 5) after the start."""
    time.sleep(context.setting.number(5))


@stdio_fault("crash_every", on=("start",))
def _crash_every(context: StdioFaultContext) -> None:
    """Exit with code 1, VALUE seconds (default 2) after every start."""

    def crash() -> None:
        time.sleep(context.setting.number(2))
        os._exit(1)

    threading.Thread(target=crash, daemon=True).start()


@stdio_fault("exit_mid_call", inline=True)
def _exit_mid_call(context: StdioFaultContext) -> None:
    """Exit with the code VALUE (default 1) instead of responding."""
    os._exit(int(context.setting.number(1)))


@stdio_fault("exit_held_stdout", inline=True)
def _exit_held_stdout(context: StdioFaultContext) -> None:
    """Exit instead of responding, while a child process keeps stdout open."""
    spawn_child(hold_stdout=True)
    os._exit(1)


@stdio_fault("stops_reading", inline=True)
def _stops_reading(context: StdioFaultContext) -> None:
    """Respond, then read no more requests from stdin."""
    context.send_response()
    _hang()


@stdio_fault("closes_stdin", inline=True)
def _closes_stdin(context: StdioFaultContext) -> None:
    """Respond, then close stdin without exiting."""
    context.send_response()
    os.close(0)
    _hang()


@stdio_fault("closes_stdout", inline=True)
def _closes_stdout(context: StdioFaultContext) -> None:
    """Close stdout instead of responding, without exiting."""
    context.out.close()


@stdio_fault("stderr_flood")
def _stderr_flood(context: StdioFaultContext) -> None:
    """Write VALUE megabytes (default 16) to stderr, then respond."""
    line = b"E" * 999 + b"\n"
    for _ in range(int(context.setting.number(16) * 10)):
        os.write(2, line * 100)
    context.send_response()


@stdio_fault("sigstop", inline=True)
def _sigstop(context: StdioFaultContext) -> None:
    """Stop the server process with SIGSTOP; respond once it is continued."""
    if sys.platform == "win32":
        raise NotImplementedError("a fault of Linux and macOS")
    os.kill(os.getpid(), signal.SIGSTOP)
    context.send_response()


@stdio_fault("ignore_sigterm", on=("start",))
def _ignore_sigterm(context: StdioFaultContext) -> None:
    """Ignore SIGTERM: the signal does not end the server process."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


@stdio_fault("ignore_eof", on=("eof",))
def _ignore_eof(context: StdioFaultContext) -> None:
    """Keep the server process running after stdin ends."""
    _hang()


@stdio_fault("leaves_child", on=("start",))
def _leaves_child(context: StdioFaultContext) -> None:
    """Exit cleanly when stdin ends, but leave a child in the process group (see the tool `pid`)."""
    context.server.child_pids.append(spawn_child())


@stdio_fault("leaves_setsid", on=("start",))
def _leaves_setsid(context: StdioFaultContext) -> None:
    """Exit cleanly when stdin ends, but leave a daemon in its own session that ignores SIGTERM."""
    context.server.child_pids.append(spawn_daemon())


@stdio_fault("zombies")
def _zombies(context: StdioFaultContext) -> None:
    """Start VALUE children (default 5) that are never waited for, and VALUE orphans to reap."""
    count = int(context.setting.number(5))
    zombies = spawn_zombies(count)
    spawn_orphans(count)
    context.add_structured_content(zombies=zombies)
    context.send_response()


for _fault_mode in (
    STDIO_FAULTS["exit_mid_call"].with_name(
        "die_on_probe", "server/discover", "Exit instead of responding to server/discover."
    ),
    STDIO_FAULTS["never"].with_name("silent_probe", "server/discover", "Send no response to server/discover."),
):
    STDIO_FAULTS[_fault_mode.name] = _fault_mode
