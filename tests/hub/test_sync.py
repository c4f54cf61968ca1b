"""`SyncHub` has the constructor and the methods of `Hub`, without `await`."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import toolway
from toolway import CallTimeout, Hub, SyncHub, ToolwayError
from toolway.events import CallFinished, Event
from toolway.testing import fake_server

RENAMED = {"aclose": "close"}  # as in httpx


def public_members(kind: type) -> dict[str, Any]:
    return {name: member for name, member in vars(kind).items() if not name.startswith("_")}


@pytest.mark.parametrize("name", ["__init__", *public_members(Hub)])
def test_every_hub_method_exists_with_same_parameters(name: str) -> None:
    ours = getattr(Hub, name)
    theirs = getattr(SyncHub, RENAMED.get(name, name))
    if isinstance(ours, property):
        assert isinstance(theirs, property)
        return
    assert not inspect.iscoroutinefunction(theirs)
    assert inspect.signature(ours).parameters == inspect.signature(theirs).parameters
    assert _result_of(ours) == _result_of(theirs)


def _result_of(function: Callable[..., Any]) -> str:
    return str(inspect.signature(function).return_annotation).replace("AsyncIterator", "Iterator")


def test_sync_hub_has_no_other_members() -> None:
    assert set(public_members(SyncHub)) == {RENAMED.get(name, name) for name in public_members(Hub)}


def test_hub_has_at_most_27_public_members() -> None:
    assert len(public_members(Hub)) <= 27


def test_events_can_be_iterated() -> None:
    with SyncHub({"fake": fake_server()}, catalog_storage=None) as hub:
        events = hub.events(CallFinished)
        assert hub.call_tool("fake.echo", {"text": "x"}).text == "x"
        event = next(events)
        assert isinstance(event, CallFinished) and event.server == "fake"


def test_sink_gets_events_until_removed() -> None:
    class Sink:
        wants_attempts = False

        def __init__(self) -> None:
            self.calls: list[CallFinished] = []

        def on_call(self, event: CallFinished) -> None:
            self.calls.append(event)

        def on_event(self, event: Event) -> None:
            pass

    sink = Sink()
    with SyncHub({"fake": fake_server()}, catalog_storage=None) as hub:
        remove = hub.add_sink(sink)
        hub.call_tool("fake.echo", {"text": "x"})
        remove()
        hub.call_tool("fake.echo", {"text": "x"})
    assert len(sink.calls) == 1


def test_progress_reaches_sync_and_async_callbacks_in_order() -> None:
    seen: list[float] = []

    async def report(progress: float, total: float | None, message: str | None) -> None:
        seen.append(progress)

    with SyncHub({"fake": fake_server()}, catalog_storage=None) as hub:
        hub.call_tool("fake.progress", {"steps": 3}, progress_callback=report)
        in_coroutine, seen = seen, []
        hub.call_tool("fake.progress", {"steps": 3}, progress_callback=lambda progress, *_: seen.append(progress))
    assert in_coroutine == seen == sorted(seen) and len(seen) >= 2


def test_call_timeout_is_a_timeout_error() -> None:
    with SyncHub({"fake": fake_server()}, catalog_storage=None) as hub:
        hub.wait_ready()
        with pytest.raises(TimeoutError) as caught:
            hub.call_tool("fake.sleep", {"seconds": 30}, timeout=0.5)
    assert isinstance(caught.value, CallTimeout) and caught.value.executed == "unknown"


def test_failed_tool_raises_unless_disabled() -> None:
    with SyncHub({"fake": fake_server()}, catalog_storage=None) as hub:
        assert hub.call_tool("fake.fail", raise_on_error=False).is_error
        with pytest.raises(toolway.ToolError) as caught:
            hub.call_tool("fake.fail")
    assert caught.value.executed == "yes" and caught.value.result.is_error


# -- every call ends --------------------------------------------------------------------------------------------------


def run_program(program: str) -> str:
    """The output of a program that uses a `SyncHub`; it must end by itself."""
    head = "import os, threading\nfrom toolway import SyncHub, ToolwayError\nfrom toolway.testing import fake_server\n"
    head += "hub = SyncHub({'fake': fake_server()}, catalog_storage=None)\n"
    done = subprocess.run([sys.executable, "-c", head + program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


def test_hub_opens_at_first_call_and_closes_at_exit() -> None:
    program = """
print(hub.call_tool("fake.echo", {"text": "x"}, timeout=20).text)
print(hub.call_tool("fake.pid").text)
"""
    text, pid = run_program(program).split()
    assert text == "x"
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)


def test_call_at_program_exit_ends_with_an_error() -> None:
    program = """
import atexit
def late():
    try:
        hub.call_tool("fake.echo", {"text": "x"}, timeout=5)
    except ToolwayError as error:
        print("late:", error.message)
class Owner:
    def __del__(self):
        late()
atexit._clear(); atexit.register(late)
import toolway.hub.sync as sync
atexit.register(sync._close_open_hubs)  # last registered, so first called, as in a program that imports us later
owner = Owner()
print(hub.status()["fake"].server)
"""
    assert run_program(program).splitlines() == ["fake", "late: the hub is closed", "late: the hub is closed"]


def test_thread_can_call_after_main_thread_ends() -> None:
    program = """
def work():
    threading.main_thread().join()
    print(hub.call_tool("fake.echo", {"text": "from a thread"}, timeout=20).text)
hub.wait_ready(timeout=20)
threading.Thread(target=work).start()
"""
    assert run_program(program) == "from a thread\n"


def test_forked_child_cannot_use_open_hub_but_can_open_another() -> None:
    program = """
other = SyncHub({'fake': fake_server()}, catalog_storage=None)
hub.wait_ready(timeout=20)
pid = os.fork()
if pid == 0:
    try:
        hub.call_tool("fake.echo", {"text": "x"}, timeout=5)
    except RuntimeError as error:
        print("child:", str(error).partition(":")[0])
    hub.close()
    print("child:", other.call_tool("fake.echo", {"text": "own"}, timeout=20).text, flush=True)
    other.close()
    os._exit(0)
os.waitpid(pid, 0)
print("parent:", hub.call_tool("fake.echo", {"text": "x"}, timeout=20).text)
"""
    lines = ["child: another process opened this hub", "child: own", "parent: x"]
    assert run_program(program).splitlines() == lines


def test_fork_waits_until_event_loop_holds_no_lock(tmp_path: Path) -> None:
    (tmp_path / "slow_module.py").write_text("import time\nbegun.set()\ntime.sleep(0.1)\n")
    program = f"""
import builtins, sys
sys.path.append({str(tmp_path)!r})
builtins.begun = threading.Event()
def load():
    import slow_module
hub.wait_ready(timeout=20)
threading.Thread(target=hub._in_loop, args=(load,)).start()
begun.wait()
pid = os.fork()
if pid == 0:
    load()
    print("child: loaded", flush=True)
    os._exit(0)
os.waitpid(pid, 0)
print("parent:", hub.call_tool("fake.echo", {{"text": "x"}}, timeout=20).text)
"""
    assert run_program(program).splitlines() == ["child: loaded", "parent: x"]


def test_fork_in_callback_does_not_deadlock() -> None:
    program = """
def fork():
    if os.fork() == 0:
        os._exit(7)
    return os.wait()[1] >> 8
print(hub._in_loop(fork))
"""
    assert run_program(program) == "7\n"


def test_closed_hub_rejects_calls() -> None:
    hub = SyncHub({"fake": fake_server()}, catalog_storage=None)
    hub.close()
    hub.close()
    with pytest.raises(ToolwayError, match="the hub is closed"):
        hub.call_tool("fake.echo", {"text": "x"})
    with pytest.raises(ToolwayError, match="the hub is closed"), hub:
        pass


def test_closing_hub_ends_calls_in_other_threads() -> None:
    hub = SyncHub({"fake": fake_server()}, catalog_storage=None)
    hub.wait_ready(timeout=20)
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            hub.call_tool("fake.sleep", {"seconds": 60})
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    while hub.status()["fake"].in_flight == 0:
        pass
    hub.close()
    thread.join(20)
    assert not thread.is_alive() and len(raised) == 1


def test_callback_that_calls_the_hub_gets_an_error() -> None:
    raised: list[Exception] = []

    def report(progress: float, *_: object) -> None:
        for use in (lambda: hub.call_tool("fake.echo", {"text": "x"}), hub.close):
            try:
                use()
            except RuntimeError as error:
                raised.append(error)

    with SyncHub({"fake": fake_server()}, catalog_storage=None) as hub:
        hub.call_tool("fake.progress", {"steps": 2}, progress_callback=report)
    assert raised and all("a callback cannot" in str(error) for error in raised)
