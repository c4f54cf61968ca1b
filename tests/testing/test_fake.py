"""The fake stdio server when it behaves well, in both eras."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.testing.pipe import ERAS, META, PREFIX, SOON, Json, fake, text

# The well-behaved server, in both eras


@pytest.mark.parametrize("era", ERAS)
def test_tools_respond_and_echo_their_nonce(era: str) -> None:
    with fake(era=era) as client:
        assert client.call("echo", text="hé", nonce="n")["structuredContent"] == {"text": "hé", "nonce": "n"}
        assert text(client.call("add", a=1, b=2)) == "3"
        assert client.call("fail")["isError"] is True
        assert len(text(client.call("big", n=100_000))) == 100_000
        assert client.call("pid")["structuredContent"]["pid"] == client.process.pid
        assert "PATH" in json.loads(text(client.call("env")))
        assert client.ask("tools/call", {"name": "nothing"})["error"]["code"] == -32602
        assert client.ask("tools/call", {"name": "add"})["error"]["code"] == -32602
        assert client.ask("no/such")["error"]["code"] == -32601
        assert client.call("stats")["structuredContent"]["calls"]["echo"] == 1


@pytest.mark.parametrize("era", ERAS)
def test_sleep_blocks_no_other_call_and_can_be_cancelled(era: str) -> None:
    with fake(era=era) as client:
        slow = client.send_call("sleep", seconds=0.2, nonce="slow")
        assert text(client.call("echo", text="first")) == "first"
        late = client.message()
        assert (late["id"], late["result"]["structuredContent"]["nonce"]) == (slow, "slow")
        stopped = client.send_call("sleep", seconds=30)
        client.write({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": stopped}})
        assert client.quiet()
        assert client.call("stats")["structuredContent"]["cancelled"] == [stopped]


@pytest.mark.parametrize("era", ERAS)
def test_progress_uses_the_token_of_the_request(era: str) -> None:
    with fake(era=era) as client:
        client.send_call("progress", {"progressToken": "p"}, n=2)
        reports = [client.message()["params"] for _ in range(2)]
        assert [(report["progressToken"], report["progress"]) for report in reports] == [("p", 1), ("p", 2)]
        assert text(client.message()["result"]) == "2 steps"


@pytest.mark.parametrize("era", ERAS)
def test_definitions_and_results_have_unknown_fields(era: str) -> None:
    with fake(era=era) as client:
        tool = client.ask("tools/list")["result"]["tools"][0]
        assert tool["annotations"]["category"] == "fake"
        assert tool["x-vendor"]["deep"] == [None, {"nothing": None}]
        result = client.call("unknown_fields")
        assert result["futureField"] == [None, 1.5]
        assert result["content"][1]["type"] == "video"
        assert result["content"][0]["x-vendor"]["nothing"] is None


@pytest.mark.parametrize("era", ERAS)
def test_prompts_resources_templates_and_completions(era: str) -> None:
    with fake(era=era) as client:
        assert client.ask("prompts/list")["result"]["prompts"][0]["name"] == "greet"
        prompt = client.ask("prompts/get", {"name": "greet", "arguments": {"name": "Ada"}})["result"]
        assert "Ada" in prompt["messages"][0]["content"]["text"]
        assert len(client.ask("resources/list")["result"]["resources"]) == 2
        template = client.ask("resources/templates/list")["result"]["resourceTemplates"][0]
        assert template["uriTemplate"] == "fake://item/{id}"
        assert client.ask("resources/read", {"uri": "fake://item/7"})["result"]["contents"][0]["text"] == "item 7"
        missing = -32602 if era == "modern" else -32002
        assert client.ask("resources/read", {"uri": "fake://none"})["error"]["code"] == missing
        ref = {"ref": {"type": "ref/prompt", "name": "greet"}, "argument": {"name": "name", "value": "a"}}
        assert client.ask("completion/complete", ref)["result"]["completion"]["values"] == ["ada", "alan"]


@pytest.mark.parametrize("era", ERAS)
def test_tools_are_paged(era: str) -> None:
    with fake(era=era, tools=30, page=10) as client:
        names: list[str] = []
        page: Json = {"nextCursor": "0"}
        while "nextCursor" in page:
            page = client.ask("tools/list", {"cursor": page["nextCursor"]})["result"]
            names += [tool["name"] for tool in page["tools"]]
            assert len(page["tools"]) <= 10
        assert len(names) == len(set(names)) > 30
        assert text(client.call("tool_0030", text="plain")) == "plain"


@pytest.mark.parametrize("era", ERAS)
def test_counter_writes_one_durable_line_per_call(era: str, tmp_path: Path) -> None:
    file = tmp_path / "effects"
    with fake(era=era, effects=str(file)) as client:
        client.call("counter", call="c1", nonce="n1")
        assert client.call("counter", call="c2", nonce="n2")["structuredContent"]["count"] == 2
        client.send_call("bad", mode="exit_mid_call", effect=True, call="c3", nonce="n3")
        assert client.line() == b""
    assert file.read_text() == "c1\tn1\nc2\tn2\nc3\tn3\n"


@pytest.mark.parametrize("era", ERAS)
def test_crash_exits_with_its_code(era: str) -> None:
    with fake(era=era) as client:
        client.send_call("crash", code=7)
        assert client.process.wait(SOON) == 7


def test_server_exits_when_input_ends() -> None:
    with fake() as client:
        client.call("echo")
        client.end_input()
        assert client.process.wait(SOON) == 0


def test_invalid_messages_do_not_stop_the_server() -> None:
    with fake() as client:
        odd: list[Json] = [{"method": 7, "id": 1}, {"method": "ping", "id": [1]}, {"id": "nobody", "result": {}}]
        for message in odd:
            client.write(message)
        assert [client.message()["error"]["code"] for _ in range(2)] == [-32600, -32600]
        wrong: list[Json] = [{"name": ["echo"]}, {"name": "sleep", "arguments": {"seconds": "x"}}, {"name": "big"}]
        for params in wrong:
            assert client.ask("tools/call", params)["error"]["code"] == -32602
        assert client.ask("resources/read", {"uri": {}})["error"]["code"] == -32602
        assert client.ask("completion/complete", {"argument": {"name": [], "value": 1}})["error"]["code"] == -32602


def test_cancelled_call_stops_waiting_for_its_answer() -> None:
    with fake(era="legacy") as client:
        call = client.send_call("elicit")
        assert client.message()["method"] == "elicitation/create"
        client.write({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": call}})
        assert client.quiet()
        assert client.call("stats")["structuredContent"]["cancelled"] == [call]


def test_server_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "toolway.testing.stdio_main"]
    probe = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {"_meta": META}})
    out = subprocess.run(command, input=probe + "\n", capture_output=True, text=True, check=True, timeout=20).stdout
    assert json.loads(out)["result"]["supportedVersions"] == ["2026-07-28"]
    listing = subprocess.run([*command, "--list-modes"], capture_output=True, text=True, check=True, timeout=20).stdout
    assert "exit_held_stdout" in listing
    wrong = subprocess.run([*command, "--mode", "nope"], capture_output=True, text=True, check=False, timeout=20)
    assert (wrong.returncode, "unknown mode 'nope'" in wrong.stderr) == (2, True)


# The modern era


def test_modern_results_have_required_fields() -> None:
    with fake(ttl=5000) as client:
        result = client.ask("server/discover")["result"]
        assert (result["resultType"], result["ttlMs"], result["cacheScope"]) == ("complete", 5000, "private")
        assert result["_meta"][PREFIX + "serverInfo"]["name"] == "fake"
        assert client.call("echo")["resultType"] == "complete"
        assert "ttlMs" not in client.call("echo")


def test_modern_requests_need_client_meta() -> None:
    with fake() as client:
        client.write({"jsonrpc": "2.0", "id": "a", "method": "tools/list", "params": {}})
        assert client.message()["error"]["code"] == -32602
        refused = client.ask("tools/list", {"_meta": {PREFIX + "protocolVersion": "2030-01-01"}})["error"]
        assert (refused["code"], refused["data"]["supported"]) == (-32022, ["2026-07-28"])
        assert client.ask("ping")["error"]["code"] == -32601
        assert client.ask("initialize", {"protocolVersion": "2025-11-25"})["error"]["code"] == -32022


def test_modern_tools_ask_by_results_and_keep_no_state() -> None:
    with fake() as client:
        params: Json = {"name": "elicit", "arguments": {"rounds": 2, "nonce": "n"}}
        first = client.ask("tools/call", params)["result"]
        assert first["resultType"] == "input_required"
        assert first["inputRequests"]["ask-1"]["method"] == "elicitation/create"
        answer = {"action": "accept", "content": {"name": "Ada"}}
        retry = {**params, "inputResponses": {"ask-1": answer}, "requestState": first["requestState"]}
        second = client.ask("tools/call", retry)["result"]
        assert list(second["inputRequests"]) == ["ask-2"]
        final = {**params, "inputResponses": {"ask-2": answer}, "requestState": second["requestState"]}
        result = client.ask("tools/call", final)["result"]
        assert result["structuredContent"] == {"answers": [answer, answer], "nonce": "n"}
        altered = {**final, "requestState": "x" + final["requestState"]}
        for wrong in (altered, {**final, "arguments": {"rounds": 3}}, {**params, "inputResponses": {}}):
            assert client.ask("tools/call", wrong)["error"]["code"] == -32602
        asked_again = client.ask("tools/call", {**params, "requestState": first["requestState"]})["result"]
        assert list(asked_again["inputRequests"]) == ["ask-1"]


def test_modern_tools_need_client_capability_to_ask() -> None:
    with fake() as client:
        meta: Json = {PREFIX + "clientCapabilities": {}}
        refused = client.ask("tools/call", {"name": "sample", "arguments": {}, "_meta": meta})["error"]
        assert (refused["code"], refused["data"]) == (-32021, {"requiredCapabilities": {"sampling": {}}})


def test_listens_are_acknowledged_tagged_and_cancelable() -> None:
    with fake() as client:
        listen = client.send("subscriptions/listen", {"notifications": {"toolsListChanged": True, "other": True}})
        acknowledged = client.message()
        tag = {PREFIX + "subscriptionId": listen}
        assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
        assert acknowledged["params"] == {"notifications": {"toolsListChanged": True}, "_meta": tag}
        client.send_call("change_tools")
        changed = client.message()
        assert (changed["method"], changed["params"]["_meta"]) == ("notifications/tools/list_changed", tag)
        assert text(client.message()["result"]) == "extra_1"
        client.write({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": listen}})
        time.sleep(0.1)
        assert text(client.call("change_tools")) == "extra_2"
        assert client.quiet()


# The handshake era


@pytest.mark.parametrize(
    ("offered", "agreed"), [("2024-11-05", "2024-11-05"), ("2025-06-18", "2025-06-18"), ("1999-01-01", "2025-11-25")]
)
def test_handshake_agrees_on_a_version(offered: str, agreed: str) -> None:
    with fake(era="legacy", met=False) as client:
        assert client.shake_hands(offered)["protocolVersion"] == agreed
        assert "resultType" not in client.call("echo")


def test_only_ping_is_answered_before_the_handshake() -> None:
    with fake(era="legacy", met=False) as client:
        assert client.ask("ping")["result"] == {}
        assert client.ask("server/discover")["error"]["code"] == -32601
        client.send("tools/list")
        assert client.quiet()
        client.shake_hands()
        assert client.ask("tools/list")["result"]["tools"]


@pytest.mark.parametrize(
    ("tool", "method"),
    [("elicit", "elicitation/create"), ("sample", "sampling/createMessage"), ("roots", "roots/list")],
)
def test_legacy_tools_ask_during_a_call(tool: str, method: str) -> None:
    with fake(era="legacy") as client:
        call = client.send_call(tool)
        question = client.message()
        assert question["method"] == method
        assert text(client.call("echo", text="during the call")) == "during the call"
        client.write({"jsonrpc": "2.0", "id": question["id"], "result": {"answer": 42}})
        answer = client.message()
        assert (answer["id"], json.loads(text(answer["result"]))) == (call, {"answer": 42})


def test_legacy_clients_are_notified_of_changed_tools() -> None:
    with fake(era="legacy") as client:
        client.send_call("change_tools")
        assert client.message()["method"] == "notifications/tools/list_changed"
        client.message()
        assert client.ask("tools/list")["result"]["tools"][-1]["name"] == "extra_1"


def test_one_server_speaks_both_eras_at_once() -> None:
    with fake(era="both") as client:
        assert client.ask("server/discover")["result"]
        client.shake_hands()
        assert "resultType" not in client.call("echo")
        client.modern = True
        assert client.call("echo")["resultType"] == "complete"


def test_probes_can_be_ignored_or_kill_the_server() -> None:
    with fake(era="both", silent_probe=True) as client:
        client.send("server/discover")
        assert client.quiet()
        assert client.shake_hands()
    with fake(era="both", die_on_probe=True) as client:
        client.send("server/discover")
        assert client.process.wait(SOON) == 1


# The server without a handshake


def test_bare_server_has_two_methods_and_answers_every_line() -> None:
    with fake(era="bare") as client:
        for method in ("server/discover", "initialize", "ping", "prompts/list"):
            assert client.ask(method)["error"] == {"code": -32601, "message": f"Method not found: {method}"}
        client.write({"jsonrpc": "2.0", "method": "notifications/initialized"})
        assert client.message() == {
            "jsonrpc": "2.0",
            "id": None,
            "error": {"code": -32601, "message": "Method not found: notifications/initialized"},
        }
        assert client.process.stdin is not None
        client.process.stdin.write(b"no json\n")
        client.process.stdin.flush()
        assert (client.message()["id"], client.lines.qsize()) == (None, 0)
        assert {"name", "description", "inputSchema"} <= client.ask("tools/list")["result"]["tools"][0].keys()
        assert client.call("add", a=1, b=2, nonce="n") == {"text": "3", "sum": 3, "nonce": "n"}
        assert client.ask("tools/call", {"name": "fail"})["error"] == {
            "code": -32603,
            "message": "Internal error: failed as asked",
        }


def test_bare_server_can_ignore_unknown_methods() -> None:
    with fake("ignores_unknown", era="bare") as client:
        client.send("server/discover")
        client.send("initialize")
        assert client.ask("tools/list")["result"]["tools"]
        assert client.quiet()
