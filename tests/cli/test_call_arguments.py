"""`toolway call` converts text arguments by the schema before it sends them: no call fails on the way."""

import asyncio
import json
import os
import re
import subprocess
import sys
from urllib.request import Request, urlopen

import pytest
from typer.testing import CliRunner

from tests.cli.test_gateway import Gateway
from toolway.cli.app import app
from toolway.cli.commands import tools
from toolway.cli.commands.tools import convert_texts, run_call
from toolway.cli.options import TargetOptions
from toolway.cli.output import Output

CALLS = 200
PROCESSES = 3
TYPES = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "t": {"type": "string"}, "odd-name": {"type": "array"}},
}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    gateway = Gateway(tmp_path_factory.mktemp("gateway"), audit={})
    yield gateway
    gateway.close()


def get(gateway, path):
    request = Request(f"{gateway.url}{path}", headers={"Authorization": f"Bearer {gateway.token}"})
    with urlopen(request, timeout=30) as response:
        return response.read().decode()


@pytest.mark.user_trial("8")
def test_calls_with_typed_arguments_record_no_failure(gateway, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("TOOLWAY_STATE", str(gateway.state))
    monkeypatch.chdir(tmp_path)

    async def call_all():
        for number in range(CALLS):
            words = [f"a={number}", "b=0.5"]
            assert await run_call(Output(quiet=True), TargetOptions(), "fake.add", words, 60.0, False) == 0

    asyncio.run(call_all())
    for _ in range(PROCESSES):
        words = [sys.executable, "-m", "toolway.cli", "call", "fake.add", "a=1", "b=2", "--quiet"]
        done = subprocess.run(words, env={**os.environ}, capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode, done.stdout.strip()) == (0, "3"), done.stderr
    assert CliRunner().invoke(app, ["call", "fake.add", "a=1", "b=2"]).exit_code == 0
    made = CALLS + PROCESSES + 1

    overview = json.loads(get(gateway, "/admin/overview"))
    fake = next(each for each in overview["servers"] if each["server"] == "fake")
    assert (fake["minutes"]["calls"], fake["minutes"]["errors"]) == (made, 0)
    calls = json.loads(get(gateway, "/admin/calls?server=fake&limit=500"))["calls"]
    assert {(call["outcome"], call["failed"], call["code"]) for call in calls} == {("ok", False, "")}
    assert json.loads(get(gateway, "/admin/calls?status=failed"))["calls"] == []
    counted = re.findall(
        r'toolway_calls_total\{[^}]*outcome="(\w+)"[^}]*server="fake"[^}]*\} (\S+)', get(gateway, "/metrics")
    )
    assert [(outcome, float(count)) for outcome, count in counted] == [("ok", made)]
    capsys.readouterr()
    found = CliRunner().invoke(
        app,
        ["audit", "ls", "-c", str(gateway.config), "--server", "fake", "--json", "-n", "1000"],
        catch_exceptions=False,
    )
    records = [each for each in json.loads(found.stdout)["records"] if each["kind"] == "call.outcome"]
    assert len(records) == made and {each["outcome"] for each in records} == {"ok"}


@pytest.mark.user_trial("8")
def test_only_strings_that_schema_rejects_are_converted():
    assert convert_texts({"n": "5", "t": "5", "odd-name": "[1]"}, TYPES) == {"n": 5, "t": "5", "odd-name": [1]}
    assert convert_texts({"n": "five"}, TYPES) == {"n": "five"}
    assert convert_texts({"n": 5, "other": "x"}, TYPES) == {"n": 5, "other": "x"}


@pytest.mark.user_trial("8")
def test_call_without_schema_sends_text_with_a_note(gateway, monkeypatch, tmp_path):
    monkeypatch.setenv("TOOLWAY_STATE", str(gateway.state))
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["call", "broken.anything", "a=1"])
    assert result.exit_code != 0 and "sent as text" not in result.stderr  # nothing was sent
    result = CliRunner().invoke(app, ["call", "fake.nothing", "a=1"])
    assert result.exit_code == 1 and "sent as text" not in result.stderr  # its server lists no such tool

    async def find_nothing(*_):
        return None

    monkeypatch.setattr(tools, "_find_definition", find_nothing)
    result = CliRunner().invoke(app, ["call", "fake.echo", "text=5"])
    assert (result.exit_code, result.stdout) == (0, "5\n")
    assert "no schema for fake.echo yet, so sent as text: text" in result.stderr
