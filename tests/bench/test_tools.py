"""The compiled load generator and upstream server: correct results count, wrong ones are detected."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bench import machine, wire
from bench.install import build_tools
from bench.measure import LOAD, UPSTREAM
from bench.single_request import list_pages, send_request, tool_names

ABOUT_50 = range(50, 50 + 4)  # responses that arrive together with the last one count too

pytestmark = pytest.mark.skipif(shutil.which(os.environ.get("CC", "cc")) is None, reason="no C compiler is installed")


@pytest.fixture(scope="module", autouse=True)
def _tools():
    build_tools()


@pytest.fixture
def server(tmp_path):
    """`server("--era", "modern")` starts an upstream server on two ports and returns the first."""
    with contextlib.ExitStack() as stack:

        def start(*options):
            port = machine.free_port(2)
            command = [str(UPSTREAM), "http", str(port), "--ports", "2", *options]
            one = stack.enter_context(machine.run_process(command, tmp_path / "log"))
            assert machine.wait_for_port(port, one, 5)
            return port

        yield start


def run_load(folder, port, *requests, era="modern", work="echo", options=("--calls", "50")):
    words = [str(LOAD), "--port", str(port), "--connections", "4", "--warm", "0", "--expect", wire.expected(work)]
    kinds = [("--hello", one) for one in wire.hellos(wire.Endpoint(port), era)] + [("--call", one) for one in requests]
    for number, (kind, request) in enumerate(kinds):
        (folder / f"request-{number}").write_bytes(request)
        words += [kind, str(folder / f"request-{number}")]
    done = subprocess.run([*words, *options], capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.parametrize("work", ["echo", "big"])
def test_correct_results_of_both_eras_are_counted(server, tmp_path, era, work):
    port = server()
    figures = run_load(tmp_path, port, wire.call(wire.Endpoint(port), era, work, work == "big"), era=era, work=work)
    assert (figures["calls"] in ABOUT_50, figures["errors"], figures["first_error"]) == (True, 0, "")
    assert figures["body"] > (100_000 if work == "big" else 200)
    assert 0 < figures["p50"] <= figures["p99"] <= figures["max"] * 1.05


def test_result_without_sent_text_is_an_error(server, tmp_path):
    port = server()
    figures = run_load(tmp_path, port, wire.call(wire.Endpoint(port), "modern", "big", big=True), work="echo")
    assert (figures["calls"], figures["errors"] in ABOUT_50) == (0, True)


def test_error_response_is_counted_and_its_text_kept(server, tmp_path):
    port = server("--era", "legacy")
    figures = run_load(tmp_path, port, wire.call(wire.Endpoint(port), "modern", "echo"))
    assert (figures["calls"], figures["errors"] in ABOUT_50) == (0, True)
    assert "Method not found" in figures["first_error"]


def test_connections_take_the_calls_in_turn(server, tmp_path):
    port = server()
    endpoint = wire.Endpoint(port)
    calls = [wire.call(endpoint, "modern", "echo"), wire.call(endpoint, "modern", "big", big=True)]
    figures = run_load(tmp_path, port, *calls, options=("--seconds", "0.3"))
    assert figures["calls"] > 0
    assert figures["errors"] > 0  # results of the second call do not contain the text of the first


def test_run_waits_for_minimum_number_of_results(server, tmp_path):
    port = server()
    call = wire.call(wire.Endpoint(port), "modern", "echo")
    few = run_load(tmp_path, port, call, options=("--seconds", "0.01", "--least", "2000"))
    assert few["calls"] >= 2000
    many = run_load(tmp_path, port, call, options=("--seconds", "0.01", "--least", "1000000000", "--longest", "0.2"))
    assert 0.2 <= many["seconds"] < 2


def test_list_has_requested_number_of_tools_at_every_port(server):
    port = server("--tools", "7")
    for each_port in (port, port + 1):
        listed = list_pages(wire.Endpoint(each_port))
        assert len(tool_names(listed)) == 7
        assert listed[0].size > 7 * 100


def test_error_response_is_not_a_result(server):
    port = server()
    with pytest.raises(ValueError, match="Method not found"):
        send_request(wire.Endpoint(port), "nonsense", {})


def test_concurrent_calls_of_one_process_are_counted_and_checked(server):
    port = server()
    for client in ("hub", "sdk", "http1", "httpx2", "bare"):
        words = [sys.executable, "-m", "bench.client_load", client, f"http://127.0.0.1:{port}/mcp"]
        options = ["--in-flight", "4", "--warm", "0.05", "--seconds", "0.1"]
        done = subprocess.run([*words, *options], capture_output=True, text=True, timeout=60, check=True)
        figures = json.loads(done.stdout)
        assert (figures["errors"], figures["calls"] > 0, figures["cpu_us"] > 0) == (0, True, True)


def test_usage_of_a_process_tree_excludes_upstream_servers(tmp_path):
    command = [sys.executable, "-c", "import subprocess; subprocess.run(['sleep', '60'])"]
    with machine.run_process(command, tmp_path / "log") as process:
        while len(machine.process_tree(process.pid)) < 2:
            pass
        sleep = shutil.which("sleep")
        assert sleep is not None
        both, one = (
            machine.measure_usage(process.pid, UPSTREAM),
            machine.measure_usage(process.pid, Path(sleep).resolve()),
        )
    assert (both.processes, one.processes) == (2, 1)
    assert both.rss > one.rss > 1_000_000
    assert machine.process_tree(process.pid) == [process.pid]  # all have ended


def test_free_ports_are_consecutive():
    first = machine.free_port(50)
    assert 1024 < first < 65536 - 50
