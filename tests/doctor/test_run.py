"""Many at once, and what the report says as a whole."""

import time

import pytest

from tests.doctor.doctor_lab import Lab, small
from tests.timing import within
from toolway.doctor.file_checks import plan_own_files
from toolway.doctor.trial_start import run_trial_start
from toolway.testing import fake_server
from toolway.upstream.process import bubblewrap

pytestmark = pytest.mark.anyio
SECRET = "ghp_canary0123456789canary0123456789abcd"


@pytest.fixture
def lab(tmp_path):
    return Lab(tmp_path / "lab")


async def test_servers_are_checked_concurrently(lab):
    slow = {f"s{n}": {**fake_server("slow_start=2"), "cwd": str(lab.work)} for n in range(6)}
    lab.servers(**{name: {**entry, "args": [*entry["args"], "--name", name]} for name, entry in slow.items()})
    began = time.monotonic()
    seen = await lab.doctor()
    assert seen.report.state == "ok", "\n".join(seen.lines)
    assert time.monotonic() - began < within(8)  # one after the other they take 12


async def test_servers_keep_the_order_of_the_file(lab):
    lab.servers(b=fake_server("slow_start=1"), a=small())
    seen = await lab.doctor()
    assert [subject.name for subject in seen.report.subjects if subject.kind == "server"] == ["b", "a"]


async def test_internal_error_for_one_server_does_not_hide_others(lab, monkeypatch):
    async def broken(name, *rest, **more):
        if name == "bad":
            raise RuntimeError("oops")
        return await run_trial_start(name, *rest, **more)

    monkeypatch.setattr("toolway.doctor.run.run_trial_start", broken)
    lab.servers(bad=small("x"), good=small())
    seen = await lab.doctor()
    assert seen.first.startswith("✗ bad: internal error while checking this server: RuntimeError('oops')")
    assert [subject.state for subject in seen.report.subjects if subject.name == "good"] == ["ok"]


async def test_ok_servers_take_one_line_and_failures_come_first(lab):
    lab.servers(one=small(), two=small("x"), off={**small("y"), "enabled": False}, bad={"command": "no-such-program"})
    seen = await lab.doctor()
    assert seen.first.startswith("✗ bad: no-such-program is not installed")
    assert [line for line in seen.lines if line.startswith(("✓", "–"))] == [
        *(line for line in seen.lines if line.startswith(("✓ one  2025-06-18, in", "✓ two  2025-06-18, in"))),
        "– off  disabled in its entry",
    ]
    assert seen.lines.index(next(line for line in seen.lines if line.startswith("bad"))) < len(seen.lines) - 6
    assert seen.lines[-1] == "Fix 1 problem, then run: toolway doctor"


async def test_server_with_unset_variable_is_not_started(lab):
    lab.servers(acme={**small(), "env": {"X": "${NOT_SET}"}})
    seen = await lab.doctor()
    assert seen.report.state == "fail"
    assert seen.first == "✗ acme: the variable NOT_SET is not set"
    assert any("start" in line and "not tried" in line for line in seen.lines)


async def test_secrets_printed_by_servers_are_masked(lab):
    shout = "T = os.environ['T']; print(T, sys.argv, file=sys.stderr); print(T, flush=True); sys.exit(T)"
    path = lab.script("server", shout)
    args = ["--api-key", SECRET]
    lab.servers(
        shouts={"command": str(path), "args": args, "env": {"T": SECRET}},
        half={"command": str(path), "env": {"T": f"{SECRET}${{NOT_SET}}"}},
        url={"url": f"http://127.0.0.1:9/mcp?api_key={SECRET}", "headers": {"Authorization": f"Bearer {SECRET}"}},
        silent={"command": "sleep", "args": ["60", f"--token={SECRET}"], "startTimeout": "300ms"},
    )
    seen = await lab.doctor()
    assert "canary" not in "\n".join(seen.lines)
    assert "canary" not in str(seen.report.to_json())


async def test_unreadable_file_content_is_not_repeated(lab):
    for text in (f'{{"mcpServers": {{"a": {{"env": {{"T": "{SECRET}"}} "x"', f'{{"T": "{SECRET}', f"{{'T': '{SECRET}'"):
        lab.write(text)
        seen = await lab.doctor()
        assert seen.report.state == "fail"
        assert "canary" not in "\n".join(seen.lines)


async def test_untrusted_project_server_is_not_started(lab):
    mark = lab.work / "started"
    path = lab.script("server", f"open({str(mark)!r}, 'w')")
    lab.program(lab.work / "npx", f"#!/bin/sh\nexec {path}\n")
    lab.program(lab.work / "node", f"#!/bin/sh\ntouch {mark}\n")  # asked for its version
    entry = {"command": "npx", "env": {"PATH": f"{lab.work}:/usr/bin:/bin"}}
    lab.servers(lab.work / ".cursor" / "mcp.json", acme=entry)
    from toolway.doctor.client_checks import plan_client_files
    from toolway.doctor.run import run_checks

    for trusted in (False, True):
        found = plan_client_files("cursor", lab.environ, lab.work, include_untrusted=trusted)
        report = await run_checks(found.targets, lab.environ, files=found.files, check_machine=False)
        assert mark.exists() is trusted
        assert ("not started" in report.first_line) is not trusted


def test_named_file_does_not_need_trust(lab):
    path = lab.servers(lab.work / "mcp.json", acme=small())
    assert [target.untrusted for target in plan_own_files(lab.environ, lab.work, path).targets] == [False]
    assert plan_own_files(lab.environ, lab.work).targets == []


@pytest.mark.skipif(bubblewrap.find_program() is None, reason="bubblewrap is not installed")
async def test_sandboxed_server_failure_lists_hidden_paths(lab):
    lab.servers(aws={"command": "sh", "args": ["-c", "echo no credentials found >&2; exit 1"], "sandbox": "guard"})
    seen = await lab.doctor()
    text = "\n".join(seen.lines)
    assert "it ran in the sandbox guard, by its entry" in text and "~/.aws" in text
    lab.servers(aws={"command": "sh", "args": ["-c", "echo no credentials found >&2; exit 1"]})
    assert "sandbox guard" not in "\n".join((await lab.doctor()).lines)
