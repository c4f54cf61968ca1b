"""Agent runs with models of Amazon Bedrock: the real boto3, against a provider that speaks Converse and its streams."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pydantic_ai", reason="pydantic-ai-slim is not installed")
pytest.importorskip("boto3", reason="pydantic-ai-slim[bedrock] is not installed")

import boto3

from tests.workflows.effect_server import read_effects
from tests.workflows.kill_runner import SERVER_FILE
from toolway import Hub, Server
from toolway.agents import Agent, AgentError, Budget
from toolway.agents.model_access import ModelAccess
from toolway.agents.providers import resolve_model
from toolway.agents.settings import AgentSettings
from toolway.testing import FakeLLM, LLMFault, TokenUsage, ToolUse, Turn
from toolway.workflows import WorkflowError

NOVA = "bedrock:us.amazon.nova-pro-v1:0"
CLAUDE = "bedrock:us.anthropic.claude-sonnet-4-5-20250929-v1:0"  # whose answers pydantic-ai always streams
READ = [ToolUse("s__read", {"id": "a"})]
LONG = "A text that is long enough to be cut."


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_BEARER_TOKEN_BEDROCK", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "absent"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAFAKE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "none")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "4")  # has no effect: the run decides what is sent again
    monkeypatch.setattr("toolway.agents.journalled_model.MAX_WAIT_S", 0.01)


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Hub]:
    server = Server(command=sys.executable, args=(str(SERVER_FILE), str(tmp_path / "effects")))
    async with Hub({"s": server}) as hub:
        yield hub


async def run(hub: Hub, llm: FakeLLM, model: Any = NOVA, **options: Any) -> Any:
    url = llm.bedrock_url if isinstance(model, str) else None
    async with Agent(model, hub, **{"approve": "none", "base_url": url, **options}) as agent:
        return await agent.run("Pay it")


@pytest.mark.anyio
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("model", [NOVA, CLAUDE], ids=["nova", "claude"])
async def test_bedrock_model_calls_tools(hub: Hub, tmp_path: Path, model: str, stream: bool) -> None:
    turns: list[Turn | str] = [
        Turn("First I read.", [*READ, ToolUse("s__list")], usage=TokenUsage(5000, 700, 3000, 800)),
        Turn(calls=[ToolUse("s__pay", {"id": "p1"}), ToolUse("s__fail")], usage=(1000, 100)),
        Turn("All done.", usage=(1000, 10)),
    ]
    with FakeLLM(turns) as llm:
        result = await run(hub, llm, model, stream=stream, budget=Budget(usd=5.0))
    assert result.output == "All done."
    assert [call["tool"] for call in result.tool_calls] == ["s.read", "s.list", "s.pay", "s.fail"]
    assert [each["id"] for each in read_effects(tmp_path / "effects")] == ["p1"]
    assert [len(each.results) for each in llm.requests] == [0, 2, 2]
    assert {(each.format, each.model) for each in llm.requests} == {("bedrock", model.removeprefix("bedrock:"))}
    assert {each.streams for each in llm.requests} == {stream or model is CLAUDE}
    assert "AWS4-HMAC-SHA256 Credential=AKIAFAKE/" in llm.requests[0].headers["authorization"]
    # The input tokens of a usage block are those next to the cache.
    blocks = llm.usages
    cached = [each["cacheReadInputTokens"] for each in blocks]
    inputs = sum(each["inputTokens"] + each["cacheWriteInputTokens"] for each in blocks) + sum(cached)
    outputs = sum(each["outputTokens"] for each in blocks)
    used = result.usage
    assert (used["requests"], used["input_tokens"], used["output_tokens"]) == (3, inputs, outputs) == (3, 7000, 810)
    assert used["cached_tokens"] == sum(cached) == 3000
    if model is NOVA:  # USD for a million tokens by the public list: 0.8, from the cache 0.2, written as read; 3.2
        expected = (Decimal("0.8") * 4000 + Decimal("0.2") * 3000 + Decimal("3.2") * 810) / 1_000_000
        assert used["usd"] == pytest.approx(float(expected))
    else:
        assert used["usd"] > 0


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("fault", "stream", "end", "requests"),
    [
        (LLMFault("429", 2, retry_after=0.01), False, "done", 4),
        (LLMFault("429", 2, retry_after=0.01), True, "done", 4),
        (LLMFault("503"), False, "done", 3),
        (LLMFault("500", 99), False, "E-AGENT-MODEL", 5),
        (LLMFault("cut"), False, "done", 3),
        (LLMFault("cut"), True, "done", 3),
        (LLMFault("broken_json"), False, "done", 3),
        (LLMFault("broken_json"), True, "done", 3),
        (LLMFault("endless", 99), False, "E-AGENT-MODEL", 1),
        (LLMFault("endless", 99), True, "E-AGENT-MODEL", 1),
    ],
    ids=lambda each: each.kind if isinstance(each, LLMFault) else str(each),
)
async def test_bedrock_faults_are_retried_or_fail(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, fault: LLMFault, stream: bool, end: str, requests: int
) -> None:
    monkeypatch.setattr("toolway.agents.answer_limit.MAX_WIRE_BYTES", 1024 * 1024)
    with FakeLLM([Turn(LONG, READ, fault=fault), "Done."]) as llm:
        try:
            found = "done" if (await run(hub, llm, stream=stream)).output == "Done." else "another output"
        except WorkflowError as exc:
            found = exc.code
        assert (found, len(llm.requests)) == (end, requests)  # boto3 sends nothing again by itself


def test_credentials_come_from_boto3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(AgentError) as raised:
        resolve_model(AgentSettings(model=NOVA))
    assert "no AWS credentials" in raised.value.detail
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", "the-token")
    model: Any = resolve_model(
        AgentSettings(model=NOVA, base_url="https://bedrock.example"), ModelAccess(("https://bedrock.example",))
    )
    sent: list[Any] = []

    def stop(request: Any, **_: Any) -> None:
        sent.append(request)
        raise InterruptedError

    model.client.meta.events.register("before-send.bedrock-runtime", stop)
    with pytest.raises(InterruptedError):
        model.client.converse(modelId="m", messages=[])
    assert sent[0].url == "https://bedrock.example/model/m/converse"
    assert sent[0].headers["Authorization"] == b"Bearer the-token"


@pytest.mark.anyio
async def test_region_is_required(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    with FakeLLM(["Hello."]) as llm, pytest.raises(AgentError) as raised:
        await run(hub, llm)
    assert "set AWS_REGION" in raised.value.detail


@pytest.mark.anyio
async def test_client_with_own_retries_is_rejected(hub: Hub) -> None:
    from botocore.config import Config
    from pydantic_ai.models.bedrock import BedrockConverseModel
    from pydantic_ai.providers.bedrock import BedrockProvider

    with FakeLLM(["Hello."]) as llm:
        for retries, is_refused in (({"total_max_attempts": 3}, True), ({"total_max_attempts": 1}, False)):
            config = Config(retries=retries)
            client = boto3.client("bedrock-runtime", endpoint_url=llm.bedrock_url, config=config)
            model = BedrockConverseModel("amazon.nova-pro-v1:0", provider=BedrockProvider(bedrock_client=client))
            if is_refused:
                with pytest.raises(AgentError, match="retries failed requests"):
                    await run(hub, llm, model)
            else:
                assert (await run(hub, llm, model)).output == "Hello."
        assert len(llm.requests) == 1
