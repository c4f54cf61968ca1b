"""Run tests in several processes that share one collection: `python -m pytest -p tests.forks --forks 3`.

Imports and collection take most of the CPU time of a process with few tests. So one process collects, and is then
copied (`fork`). Each copy takes one file after the other, so fixtures of a module are created once. A long file
without such fixtures is divided. The first process prints the reports.

`--few FOLDER` is for tests that need more of the machine than others: two processes run them, before all others.
"""

from __future__ import annotations

import io
import os
import signal
import tempfile
import traceback
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, Final

import pytest
from _pytest.capture import CaptureManager, FDCaptureBase
from _pytest.terminal import TerminalReporter

MAX_GROUP: Final = 120  # tests of one file that stay together
FEW: Final = 2  # copies that run the tests of `--few`


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--forks", type=int, default=0, metavar="N", help="run tests in N copies of this process")
    parser.addoption("--few", action="append", default=[], metavar="FOLDER", help="run its tests in two of these only")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    count = session.config.getoption("forks")
    if not count or session.testsfailed or session.config.option.collectonly:
        return None
    _prepare(session.config)
    Forks(session).run(count)
    return True


def _prepare(config: pytest.Config) -> None:
    """Do once what each copy would do again."""
    from hypothesis import given, settings, strategies

    @settings(max_examples=1, database=None)
    @given(strategies.integers())
    def read_constants(_: int) -> None:
        """Let Hypothesis parse all modules of the project: their constants are examples."""

    read_constants()
    config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]


@dataclass(eq=False)
class Fork:
    """One copy of the process, as the first process sees it."""

    pid: int
    connection: Connection[Any, Any]
    queues: Sequence[deque[list[int]]]  # takes groups of tests from the first that has any
    given: deque[int] = field(default_factory=deque)  # indexes of tests that have not ended
    error: str = ""


class Forks:
    """The copies, and the tests that none of them has taken yet."""

    def __init__(self, session: pytest.Session) -> None:
        self._session = session
        self._items = session.items
        self._groups, self._few = deque[list[int]](), deque[list[int]]()
        folders = [session.config.rootpath / folder for folder in session.config.getoption("few")]
        for group in _groups(session.items):
            is_few = any(folder in session.items[group[0]].path.parents for folder in folders)
            (self._few if is_few else self._groups).append(group)
        self._forks: list[Fork] = []
        self._count = 0

    def run(self, count: int) -> None:
        for number in range(count):
            self._start([self._few, self._groups] if number < FEW else [self._groups])
        try:
            while self._forks:
                for connection in wait([fork.connection for fork in self._forks]):
                    self._read(next(fork for fork in self._forks if fork.connection is connection))
        finally:
            for fork in self._forks:
                os.kill(fork.pid, signal.SIGINT)
            for fork in self._forks:
                os.waitpid(fork.pid, 0)
        if left := sum(map(len, (*self._few, *self._groups))):
            raise self._session.Failed(f"{left} tests were not run")

    def _start(self, queues: Sequence[deque[list[int]]]) -> None:
        self._count += 1
        ours, theirs = Pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads of libraries that were imported
            pid = os.fork()
        if pid:
            theirs.close()
            self._forks.append(Fork(pid, ours, queues))
            return
        try:
            ours.close()
            for fork in self._forks:
                fork.connection.close()
            _Copy(self._session, theirs).run(self._count)
        except BaseException:
            theirs.send(("error", traceback.format_exc()))
        finally:
            os._exit(0)

    def _read(self, fork: Fork) -> None:
        config = self._session.config
        try:
            kind, value = fork.connection.recv()
        except (EOFError, OSError):
            self._lost(fork)
            return
        if kind == "next":
            group = next((queue.popleft() for queue in fork.queues if queue), [])
            fork.given += group
            fork.connection.send(group)
        elif kind == "end":
            fork.given.remove(value)
            item = self._items[value]
            config.hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        elif kind == "report":
            report = config.hook.pytest_report_from_serializable(config=config, data=value)
            config.hook.pytest_runtest_logreport(report=report)
        elif kind == "error":
            fork.error = value
        if self._session.shouldfail:
            raise self._session.Failed(self._session.shouldfail)

    def _lost(self, fork: Fork) -> None:
        """Note the end of a copy. If it had tests left, the first of them ended it, and another copy runs the rest."""
        self._forks.remove(fork)
        fork.connection.close()
        _, status = os.waitpid(fork.pid, 0)
        ended = f"the process of this test ended with exit code {os.waitstatus_to_exitcode(status)}\n{fork.error}"
        if fork.error:
            raise self._session.Failed(ended)
        if fork.given:
            item = self._items[fork.given.popleft()]
            report = pytest.TestReport(item.nodeid, item.location, {}, "failed", ended, "call")
            self._session.config.hook.pytest_runtest_logreport(report=report)
            if fork.given:
                fork.queues[0].appendleft(list(fork.given))
            self._start(fork.queues)
        elif status:
            raise self._session.Failed(ended)


class _Copy:
    """A copy of the process, as it sees itself: a plugin that sends each report."""

    def __init__(self, session: pytest.Session, connection: Connection[Any, Any]) -> None:
        self._session = session
        self._config = session.config
        self._connection = connection

    def run(self, number: int) -> None:
        plugins = self._config.pluginmanager
        plugins.unregister(name="terminalreporter")
        reporter = TerminalReporter(self._config, io.StringIO())  # the first process prints
        reporter._session = self._session
        plugins.register(reporter, "terminalreporter")
        plugins.register(self)
        _separate_captures(plugins.getplugin("capturemanager"))
        factory = self._config._tmp_path_factory  # type: ignore[attr-defined]
        factory._basetemp = factory.getbasetemp() / str(number)  # smaller folders: each test lists its folder
        factory._basetemp.mkdir(mode=0o700)
        try:
            self._run()
        finally:
            self._session._setupstate.teardown_exact(None)

    def _run(self) -> None:
        items = self._given()
        index = next(items, None)
        while index is not None:
            following = next(items, None)  # which fixtures end after a test depends on the next one
            item = self._session.items[index]
            after = None if following is None else self._session.items[following]
            self._config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            self._connection.send(("end", index))
            index = following

    def _given(self) -> Iterator[int]:
        while True:
            self._connection.send(("next", None))
            group = self._connection.recv()
            if not group:
                return
            yield from group

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        config = self._config
        data = config.hook.pytest_report_to_serializable(config=config, report=report)
        self._connection.send(("report", data))


def _separate_captures(manager: CaptureManager) -> None:
    """Let this process write to its own temporary files.

    The file objects stay open: a default argument may be one of them, as in the SDK's `stdio_client`.
    """
    manager.suspend_global_capture()
    captures = manager._global_capturing
    for each in (captures.out, captures.err) if captures is not None else ():
        if isinstance(each, FDCaptureBase):
            with tempfile.TemporaryFile(buffering=0) as own:
                os.dup2(own.fileno(), each.tmpfile.fileno(), inheritable=False)


def _groups(items: list[pytest.Item]) -> Iterator[list[int]]:
    """Divide tests into groups for one process each: a file, or at most MAX_GROUP tests if they share nothing."""
    group: list[int] = []
    for index, item in enumerate(items):
        if group and (item.path != items[group[0]].path or (len(group) >= MAX_GROUP and not _has_module_fixture(item))):
            yield group
            group = []
        group.append(index)
    if group:
        yield group


def _has_module_fixture(item: pytest.Item) -> bool:
    assert isinstance(item, pytest.Function)
    return any(each[-1].scope == "module" for each in item._fixtureinfo.name2fixturedefs.values())
