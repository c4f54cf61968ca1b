"""What can go wrong with a server as a process. Those who hold on to life for no reason give it up after a while."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

from toolway.testing.fakes import children
from toolway.testing.fakes.pipe_modes import MODES, mode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from toolway.testing.fakes.stdio import Hit

HOLD = 300  # seconds

__all__ = ["MODES"]


def _hold() -> None:
    time.sleep(HOLD)
    os._exit(0)


@mode("exit_at_start", on=("start",))
def _exit_at_start(hit: Hit) -> None:
    """Ends at once with the code VALUE (1), and a last word on stderr."""
    sys.stderr.write("fake: FAKE_TOKEN is not set\n")
    sys.stderr.flush()
    os._exit(int(hit.setting.number(1)))


@mode("slow_start", on=("start",))
def _slow_start(hit: Hit) -> None:
    """Reads nothing for VALUE seconds (5)."""
    time.sleep(hit.setting.number(5))


@mode("crash_every", on=("start",))
def _crash_every(hit: Hit) -> None:
    """Ends with code 1 after VALUE seconds (2)."""

    def crash() -> None:
        time.sleep(hit.setting.number(2))
        os._exit(1)

    threading.Thread(target=crash, daemon=True).start()


@mode("exit_mid_call", inline=True)
def _exit_mid_call(hit: Hit) -> None:
    """Ends with the code VALUE (1) instead of answering."""
    os._exit(int(hit.setting.number(1)))


@mode("exit_held_stdout", inline=True)
def _exit_held_stdout(hit: Hit) -> None:
    """Ends instead of answering, while a child keeps its stdout open."""
    children.start_plain(hold_stdout=True)
    os._exit(1)


@mode("stops_reading", inline=True)
def _stops_reading(hit: Hit) -> None:
    """Answers, then reads no more."""
    hit.answer()
    _hold()


@mode("closes_stdin", inline=True)
def _closes_stdin(hit: Hit) -> None:
    """Answers, then closes its stdin and lives on."""
    hit.answer()
    os.close(0)
    _hold()


@mode("closes_stdout", inline=True)
def _closes_stdout(hit: Hit) -> None:
    """Closes its stdout instead of answering, and lives on."""
    hit.out.close()


@mode("stderr_flood")
def _stderr_flood(hit: Hit) -> None:
    """VALUE megabytes (16) to stderr, then the answer."""
    line = b"E" * 999 + b"\n"
    for _ in range(int(hit.setting.number(16) * 10)):
        os.write(2, line * 100)
    hit.answer()


@mode("sigstop", inline=True)
def _sigstop(hit: Hit) -> None:
    """Stops itself with SIGSTOP; answers once it is continued."""
    os.kill(os.getpid(), signal.SIGSTOP)
    hit.answer()


@mode("ignore_sigterm", on=("start",))
def _ignore_sigterm(hit: Hit) -> None:
    """Ignores SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


@mode("ignore_eof", on=("eof",))
def _ignore_eof(hit: Hit) -> None:
    """Lives on when its stdin ends."""
    _hold()


@mode("leaves_child", on=("start",))
def _leaves_child(hit: Hit) -> None:
    """Ends cleanly with its stdin, and leaves a child in its process group (the tool `pid` names it)."""
    hit.server.children.append(children.start_plain())


@mode("leaves_setsid", on=("start",))
def _leaves_setsid(hit: Hit) -> None:
    """Ends cleanly with its stdin, and leaves a daemon in a session of its own that ignores SIGTERM."""
    hit.server.children.append(children.start_daemon())


@mode("zombies")
def _zombies(hit: Hit) -> None:
    """Starts VALUE children (5) that it never waits for, and as many that whoever adopts them must reap."""
    count = int(hit.setting.number(5))
    zombies = children.start_zombies(count)
    children.start_orphans(count)
    hit.tell(zombies=zombies)
    hit.answer()


for _mode in (
    MODES["exit_mid_call"].renamed("die_on_probe", "server/discover", "Ends when it is asked for server/discover."),
    MODES["never"].renamed("silent_probe", "server/discover", "No answer to server/discover."),
):
    MODES[_mode.name] = _mode
