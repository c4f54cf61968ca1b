"""Creation of models by name, such as `openai:gpt-5`.

Their clients send a request once, because the run decides on retries, and connect to checked addresses only.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from pydantic_ai.exceptions import UserError
from pydantic_ai.models import Model, infer_model
from pydantic_ai.providers import Provider, infer_provider_class
from pydantic_ai.providers.gateway import gateway_provider

from toolway.agents.errors import AgentError
from toolway.agents.model_access import ADDRESS_CODE, ModelAccess, create_http_client
from toolway.agents.settings import AgentSettings
from toolway.errors import ToolwayError
from toolway.network.policy import NetworkPolicy

_GATEWAY_PREFIX: Final = "gateway/"  # of the names of providers behind the gateway of Pydantic


def resolve_model(settings: AgentSettings, access: ModelAccess = ModelAccess()) -> Model:  # noqa: B008 # frozen
    """Return the model of a provider by its name, such as `openai:gpt-5`.

    Raises:
        AgentError: The name is not known, the provider's package is missing, no API key is set, or the settings
            name an address that must not get it.
    """
    try:
        return infer_model(settings.model, lambda name: _create_provider(name, settings, access))
    except (UserError, ImportError, ValueError, TypeError, ToolwayError) as exc:  # a provider may have no base_url
        if isinstance(exc, AgentError) and exc.code == ADDRESS_CODE:
            raise
        raise AgentError(
            f"the model {settings.model} cannot be used",
            detail=str(exc)[:500],
            hint="use PROVIDER:MODEL, such as openai:gpt-5, and set the provider's API key in the environment",
            code="E-AGENT-MODEL",
        ) from exc


def _create_provider(name: str, settings: AgentSettings, access: ModelAccess) -> Provider[Any]:
    if name == "bedrock":
        from toolway.agents.bedrock import create_bedrock  # needs boto3

        return create_bedrock(settings, access)
    build = _find_builder(name)
    policy = access.policy_for(settings, partial(_own_url, build))
    # As the provider would do with its own client, so it is closed and replaced with the event loop.
    create = partial(create_http_client, policy)
    client = create()
    options = {} if settings.base_url is None else {"base_url": settings.base_url}
    provider = build(http_client=client, **options)
    provider._own_http_client, provider._http_client_factory = client, create
    return provider


def _find_builder(name: str) -> Callable[..., Provider[Any]]:
    """Return the class or function that creates a provider with a given HTTP client.

    Raises `AgentError` for a provider with its own client, which would connect past the address check.
    """
    if name.startswith(_GATEWAY_PREFIX):
        upstream = name.removeprefix(_GATEWAY_PREFIX)
        if upstream != "bedrock":
            return partial(gateway_provider, upstream)
    else:
        found = infer_provider_class(name)
        if "http_client" in inspect.signature(found.__init__).parameters:
            return found
    raise AgentError(
        f"the provider {name} cannot be used",
        detail="its client opens connections itself, bypassing the address check",
        hint="use a provider with an OpenAI-compatible endpoint: openai-chat:MODEL and its URL in toolway.modelUrls",
        code=ADDRESS_CODE,
    )


def _own_url(build: Callable[..., Provider[Any]]) -> str:
    """Return the provider's own address, possibly set in the environment, or ""."""
    try:
        return build(http_client=create_http_client(NetworkPolicy())).base_url
    except (UserError, ImportError, ValueError, TypeError):
        return ""


def require_one_attempt(model: Model) -> None:
    """Raise `AgentError` if a model's client retries failed requests by itself.

    Such requests would not count against the budget.
    """
    config = getattr(getattr(getattr(model, "client", None), "meta", None), "config", None)
    retries = getattr(config, "retries", None)
    if isinstance(retries, dict) and retries.get("total_max_attempts") != 1:
        raise AgentError(
            f"the client of {model.model_id} retries failed requests by itself",
            detail=f"its retries are {retries}",
            hint="set boto3 config=Config(retries={'total_max_attempts': 1}), or use the model's name: bedrock:MODEL",
            code="E-AGENT-MODEL",
        )
