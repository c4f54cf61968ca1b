"""Run the official conformance suite and print the results of each revision's required scenarios.

python conformance/run.py --alone              the fixture itself, over HTTP
python conformance/run.py --gateway            the gateway with the fixture as its server: HTTP and stdio, both eras
python conformance/run.py --search             the same through a toolset with tool search, which lists only meta-tools
python conformance/run.py --client             a hub as the client of the suite's servers
python conformance/run.py --url URL            any other server, without a token: the suite cannot send headers
      [--installed .conformance] [--revision 2026-07-28] [--only NAME] [--jobs N] [--out DIR] [--json]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
REVISIONS = ("2026-07-28", "2025-11-25")
ERAS = ("modern", "legacy")
START_SECONDS = 120.0
SCENARIO_SECONDS = 60
SUITE_SECONDS = 900.0

Entry = dict[str, Any]  # entry of a config file
Front = Callable[[Entry], AbstractContextManager[str]]  # starts something in front of a server; yields the URL to test


class StartError(Exception):
    pass


@dataclass(frozen=True, slots=True)
class Target:
    """Test target: a server or a client.

    `suite_command` is "server" or "client"; `start` yields the URL of the server or the command of the client.
    """

    name: str
    suite_command: str
    start: Callable[[], AbstractContextManager[str]]


@dataclass(slots=True)
class Outcome:
    target: str
    revision: str
    passed: int = 0
    total: int = 0
    seconds: float = 0.0
    failed: dict[str, list[str]] = field(default_factory=dict)  # failed required scenarios with their messages
    warned: dict[str, list[str]] = field(default_factory=dict)  # the same for warnings
    error: str = ""

    @property
    def full(self) -> bool:
        return not self.error and self.passed == self.total > 0


def main() -> int:
    options = _options()
    suite = Suite(options.installed.resolve())
    if not suite.is_installed:
        print(
            f"no suite in {options.installed}: run conformance/install.py --into {options.installed}", file=sys.stderr
        )
        return 2
    targets = [each for each in _targets(options) if options.only in each.name]
    outcomes = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = (options.out or Path(scratch)).resolve()
        runs = [(target, revision) for target in targets for revision in options.revision or REVISIONS]
        # A run waits most of the time, so several take little longer than one.
        with ThreadPoolExecutor(options.jobs) as pool:
            for outcome in pool.map(lambda run: suite.run(run[0], run[1], folder / run[0].name / run[1]), runs):
                outcomes.append(outcome)
                if not options.json:
                    _print(outcome, heading=len(outcomes) == 1)
        for place, (target, revision) in enumerate(runs):  # the suite gives some answers one second
            if not outcomes[place].full:
                outcomes[place] = suite.run(target, revision, folder / f"{target.name}-again" / revision)
                if not options.json:
                    print("repeated alone:")
                    _print(outcomes[place], heading=False)
    if options.json:
        print(json.dumps([asdict(each) | {"full": each.full} for each in outcomes], indent=1))
    return 0 if outcomes and all(each.full for each in outcomes) else 1


def _options() -> argparse.Namespace:
    text = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=text)
    target_group = parser.add_mutually_exclusive_group(required=True)
    target_group.add_argument("--alone", action="store_true")
    target_group.add_argument("--gateway", action="store_true")
    target_group.add_argument("--search", action="store_true")
    target_group.add_argument("--client", action="store_true")
    target_group.add_argument("--url")
    parser.add_argument("--installed", type=Path, default=Path(".conformance"), metavar="DIR")
    parser.add_argument("--revision", action="append", choices=REVISIONS)
    parser.add_argument("--only", default="", metavar="NAME", help="only targets whose name contains this")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="runs side by side (2)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="keep the output files of the suite")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def _print(outcome: Outcome, *, heading: bool) -> None:
    if heading:
        print(f"{'target':28} {'revision':11} {'required':>9} {'seconds':>8}  failed")
    failed = outcome.error or ", ".join(outcome.failed) or "-"
    score = f"{outcome.passed}/{outcome.total}"
    print(f"{outcome.target:28} {outcome.revision:11} {score:>9} {outcome.seconds:8.1f}  {failed}", flush=True)


# -- targets ----------------------------------------------------------------------------------------------------------


def _targets(options: argparse.Namespace) -> list[Target]:
    if options.url:
        return [Target("url", "server", lambda: contextlib.nullcontext(options.url))]
    if options.client:
        command = shlex.join([sys.executable, str(HERE / "client.py")])
        return [Target("hub-as-client", "client", lambda: contextlib.nullcontext(command))]
    if options.alone:
        return [Target("fixture", "server", fixture)]
    if options.search:
        return [_target_in_front_of("search", search_gateway, kind, era) for kind in ("http", "stdio") for era in ERAS]
    return [_target_in_front_of("gateway", gateway, kind, era) for kind in ("http", "stdio") for era in ERAS]


def _target_in_front_of(name: str, front: Front, kind: str, era: str) -> Target:
    """Return a target in front of a fixture that supports one era, over HTTP or stdio."""
    start = partial(_in_front_of_http if kind == "http" else _in_front_of_stdio, front, era)
    return Target(f"{name}-{kind}-{era}", "server", start)


@contextlib.contextmanager
def _in_front_of_http(front: Front, era: str) -> Iterator[str]:
    with fixture(era) as upstream, front({"url": upstream, "era": era}) as url:
        yield url


@contextlib.contextmanager
def _in_front_of_stdio(front: Front, era: str) -> Iterator[str]:
    args = [str(HERE / "fixture"), "--stdio", "--era", era]
    with front({"command": sys.executable, "args": args, "era": era}) as url:
        yield url


@contextlib.contextmanager
def fixture(era: str = "both") -> Iterator[str]:
    port = _free_port()
    with _running([sys.executable, str(HERE / "fixture"), "--http", str(port), "--era", era], port):
        yield f"http://127.0.0.1:{port}/mcp"


@contextlib.contextmanager
def gateway(entry: Entry) -> Iterator[str]:
    """Run `toolway serve` with one server and yield the URL of that server."""
    with _serving(entry) as (url, _):
        yield f"{url}/mcp/server/fixture"


@contextlib.contextmanager
def search_gateway(entry: Entry) -> Iterator[str]:
    """Run `toolway serve` with one server and yield the URL of a toolset of it with tool search.

    The suite calls tools and prompts by their own names, so the toolset renames all of them to these.
    """
    with _serving(entry) as (url, file):
        own = {name for kind in ("tools", "prompts") for name in _list_names(f"{url}/mcp/server/fixture", kind)}
        toolset = {
            "tools": ["fixture.*"],
            "rename": {f"fixture.{name}": name for name in own},
            "resources": ["fixture"],
            "search": True,
        }
        file.write_text(
            json.dumps({"mcpServers": {"fixture": entry}, "toolway": {"toolsets": {"found": toolset}}}),
            encoding="utf-8",
        )
        _ask(f"{url}/admin/reload")
        yield f"{url}/mcp/found"


def _list_names(url: str, kind: str) -> list[str]:
    """Return the names of all tools or prompts. While the server starts, on a busy machine, the lists are empty."""
    until = time.monotonic() + START_SECONDS
    while not (found := _ask(url, f"{kind}/list")["result"][kind]):
        if time.monotonic() > until:
            raise StartError(f"the fixture lists no {kind}")
        time.sleep(0.2)
    return [each["name"] for each in found]


def _ask(url: str, method: str = "") -> Any:
    """POST a JSON-RPC request without a handshake, or an empty object without a method; return the reply."""
    body = {"jsonrpc": "2.0", "id": 1, "method": method} if method else {}
    headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=START_SECONDS) as response:
        return json.loads(response.read())


@contextlib.contextmanager
def _serving(entry: Entry) -> Iterator[tuple[str, Path]]:
    """Run `toolway serve` with one server; yield its address and its config file."""
    port = _free_port()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "mcp.json"
        file.write_text(json.dumps({"mcpServers": {"fixture": entry}}), encoding="utf-8")
        words = ["serve", "--config", str(file), "--port", str(port), "--no-auth"]
        with _running([sys.executable, "-m", "toolway.cli", *words], port):
            yield f"http://127.0.0.1:{port}", file


@contextlib.contextmanager
def _running(command: list[str], port: int) -> Iterator[None]:
    """Run a process and yield when its port is open. Raises `StartError` with its last line of output."""
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            if not _wait_for_port(process, port):
                output.seek(0)
                lines = [line for line in output.read().splitlines() if re.search(r"\w", line)]
                raise StartError(f"not started: {lines[-1].strip() if lines else 'no output'}")
            yield
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_for_port(process: subprocess.Popen[bytes], port: int) -> bool:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        time.sleep(0.05)
    return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# -- the suite --------------------------------------------------------------------------------------------------------


class Suite:
    """The installed suite: its required scenarios and its results for a target."""

    def __init__(self, installed: Path) -> None:
        modules = installed / "node_modules"
        self._node = modules / ".bin" / "node"
        self._program = modules / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
        self._listed: dict[str, str] = {}  # by revision

    @property
    def is_installed(self) -> bool:
        return self._node.exists() and self._program.exists()

    def required(self, suite_command: str, revision: str) -> list[str]:
        if revision not in self._listed:
            self._listed[revision] = self._call("list", "--requirements", revision)
        pattern = rf"^{suite_command.capitalize()} scenarios.*\n((?:  - .+\n)+)"
        section = re.search(pattern, self._listed[revision], re.MULTILINE)
        return re.findall(r"- (\S+)", section[1]) if section else []

    def run(self, target: Target, revision: str, out: Path) -> Outcome:
        outcome = Outcome(target.name, revision)
        required = self.required(target.suite_command, revision)
        outcome.total = len(required)
        shutil.rmtree(out, ignore_errors=True)  # remove results of an earlier run
        started = time.monotonic()
        try:
            with target.start() as subject:
                self._test(target.suite_command, subject, revision, out, required)
        except (StartError, subprocess.TimeoutExpired) as error:
            outcome.error = str(error)
            return outcome
        outcome.seconds = time.monotonic() - started
        for scenario in required:
            checks = _checks(out, target.suite_command, scenario)
            failed = _messages(checks, "FAILURE") if checks else ["not run"]
            if failed:
                outcome.failed[scenario] = failed
            if warned := _messages(checks, "WARNING"):
                outcome.warned[scenario] = warned
        outcome.passed = outcome.total - len(outcome.failed)
        return outcome

    def _test(self, suite_command: str, subject: str, revision: str, out: Path, required: list[str]) -> None:
        common = ("--timeout", str(SCENARIO_SECONDS * 1000), "-o", str(out))
        if suite_command == "server":
            self._call("server", "--url", subject, "--requirements", revision, *common)
            return
        # The suite would start all client scenarios at once, one process each, which overloads a small machine.
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            given = ("client", "--command", subject, "--spec-version", revision, *common, "--scenario")
            list(pool.map(lambda scenario: self._call(*given, scenario), required))

    def _call(self, *arguments: str) -> str:
        # Local connections must not use a proxy.
        environ = {**os.environ, "NO_PROXY": "127.0.0.1,localhost"}
        done = subprocess.run(
            [str(self._node), str(self._program), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
            env=environ,
            timeout=SUITE_SECONDS,
            check=False,
        )
        return done.stdout


def _checks(out: Path, suite_command: str, scenario: str) -> list[dict[str, Any]]:
    """Return the checks of the newest run of a scenario; its folder name contains scenario and time."""
    parent, _, name = scenario.rpartition("/")
    prefix = "server-" if suite_command == "server" else ""
    found = sorted((out / parent).glob(f"{prefix}{name}-[0-9][0-9][0-9][0-9]-*/checks.json"))
    checks: list[dict[str, Any]] = json.loads(found[-1].read_text(encoding="utf-8")) if found else []
    return checks


def _messages(checks: list[dict[str, Any]], status: str) -> list[str]:
    return [f"{check['id']}: {check.get('errorMessage', '')}" for check in checks if check["status"] == status]


if __name__ == "__main__":
    sys.exit(main())
