"""The addresses at which a model is asked: who gets the API key, and that every connection is checked."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pydantic_ai", reason="pydantic-ai-slim is not installed")

from toolway import Hub, NetworkPolicy
from toolway.agents import Agent, AgentError
from toolway.agents.model_access import ModelAccess
from toolway.agents.providers import resolve_model
from toolway.agents.settings import AgentSettings
from toolway.network.listed_urls import is_listed
from toolway.testing.fake_llm import FakeLLM


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GOOGLE_API_KEY", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "canary-key")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "absent"))
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)


@pytest.mark.parametrize(
    ("url", "listed"),
    [
        ("https://llm.example/v1", True),
        ("https://llm.example/v1/", True),
        ("https://LLM.example:443/v1/chat", True),
        ("https://llm.example/v10", False),
        ("https://llm.example/", False),
        ("https://llm.example/v1/../other", False),
        ("https://llm.example/v1/%2e%2e/other", False),
        ("https://llm.example/v1/..%2fother", False),
        ("http://llm.example/v1", False),
        ("https://llm.example:8443/v1", False),
        ("https://llm.example.evil/v1", False),
        ("https://llm.example@evil.example/v1", False),
        ("https://evil.example\\@llm.example/v1", False),
        ("https://llm.example/v1?to=evil", False),
        ("https://llm.example/v1#x", False),
        ("https://llm.еxample/v1", False),  # a Cyrillic letter
        ("//llm.example/v1", False),
        ("", False),
    ],
)
@pytest.mark.attack("A2-F2")
def test_url_is_listed(url: str, listed: bool) -> None:
    assert is_listed(url, ["https://llm.example/v1"]) is listed


@pytest.mark.attack("A2-F2")
@pytest.mark.parametrize(
    "model", ["openai:x", "openai-chat:x", "anthropic:x", "google:x", "bedrock:us.amazon.nova-pro-v1:0"]
)
def test_unlisted_model_url_is_rejected(model: str) -> None:
    if model.startswith("bedrock"):
        pytest.importorskip("boto3", reason="pydantic-ai-slim[bedrock] is not installed")
    with pytest.raises(AgentError) as raised:
        resolve_model(
            AgentSettings(model=model, base_url="https://evil.example/v1"), ModelAccess(("https://ok.example",))
        )
    assert raised.value.code == "E-AGENT-ADDRESS"
    assert '"modelUrls": ["https://evil.example/v1"]' in raised.value.hint


def test_provider_default_url_needs_no_listing(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = AgentSettings(model="openai-chat:x", base_url="https://api.openai.com/v1")
    assert "api.openai.com" in str(resolve_model(settings).base_url)
    monkeypatch.setenv("OPENAI_BASE_URL", "https://llm.example/v1")  # next to the key: the operator's word
    settings = AgentSettings(model="openai-chat:x", base_url="https://llm.example/v1")
    assert "llm.example" in str(resolve_model(settings).base_url)


@pytest.mark.attack("A2-F2")
def test_provider_without_checked_client_is_rejected() -> None:
    """Its own client would not be checked, so a provider without `http_client` is refused."""
    with pytest.raises(AgentError) as raised:
        resolve_model(AgentSettings(model="gateway/bedrock:x"))
    assert raised.value.code == "E-AGENT-ADDRESS"


@pytest.mark.anyio
@pytest.mark.attack("A2-F2")
@pytest.mark.parametrize(
    ("model", "path"),
    [
        ("openai-chat:gpt-4o", "openai_url"),
        ("anthropic:claude-sonnet-5", "anthropic_url"),
        ("google:gemini-2.5-pro", "gemini_url"),
        ("bedrock:us.amazon.nova-pro-v1:0", "bedrock_url"),
    ],
)
@pytest.mark.parametrize("allowed", [False, True])
async def test_model_url_resolving_to_private_address_is_denied(model: str, path: str, allowed: bool) -> None:
    """The name is listed, so its owner gets a key; where it leads today is checked at each connection."""
    if model.startswith("bedrock"):
        pytest.importorskip("boto3", reason="pydantic-ai-slim[bedrock] is not installed")
    asked: list[str] = []

    def lookup(host: str) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"]

    policy = NetworkPolicy(("llm.example",) if allowed else (), lookup=lookup)
    with FakeLLM(["Hello."]) as llm:
        url = getattr(llm, path).replace("127.0.0.1", "llm.example").replace("localhost", "llm.example")
        assert "llm.example" in url
        async with Hub({}, network_policy=policy) as hub, Agent(model, hub, tools=[], base_url=url) as agent:
            if allowed:
                assert (await agent.run("Hi")).output == "Hello."
                assert asked[0] == "llm.example"
                return
            error = (await (await agent.start("Hi")).wait()).error or {}
        assert llm.requests == []
    assert "llm.example resolves to 127.0.0.1" in error["detail"]
    assert '"addresses": {"allow": ["llm.example"]}' in error["hint"]
