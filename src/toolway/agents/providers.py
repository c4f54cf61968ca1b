"""Creation of models by name, such as `openai:gpt-5`. Their clients send a request once: the run decides on retries."""

from __future__ import annotations

import os
from typing import Any, Final

from pydantic_ai.exceptions import UserError
from pydantic_ai.models import Model, infer_model
from pydantic_ai.providers import Provider, infer_provider, infer_provider_class

from toolway.agents.errors import AgentError
from toolway.agents.settings import AgentSettings
from toolway.errors import ToolwayError

#: pydantic-ai turns off the retries of an SDK for one request, but not those of boto3.
ONE_ATTEMPT: Final = {"total_max_attempts": 1, "mode": "standard"}
READ_TIMEOUT_S: Final = 300.0  # as pydantic-ai has it
CONNECT_TIMEOUT_S: Final = 60.0


def resolve_model(settings: AgentSettings) -> Model:
    """Return the model of a provider by its name, such as `openai:gpt-5`.

    Raises:
        AgentError: The name is not known, the package of the provider is missing, or there is no API key.
    """
    try:
        return infer_model(settings.model, lambda name: _create_provider(name, settings.base_url))
    except (UserError, ImportError, ValueError, TypeError, ToolwayError) as exc:  # a provider may have no base_url
        raise AgentError(
            f"the model {settings.model} cannot be used",
            detail=str(exc)[:500],
            hint="write PROVIDER:MODEL, such as openai:gpt-5, and set the API key of the provider in the environment",
            code="E-AGENT-MODEL",
        ) from exc


def _create_provider(name: str, base_url: str | None) -> Provider[Any]:
    if name == "bedrock":
        return _create_bedrock(base_url)
    if base_url is None:
        return infer_provider(name)
    return infer_provider_class(name)(base_url=base_url)  # type: ignore[call-arg] # not all take one


def _create_bedrock(base_url: str | None) -> Provider[Any]:
    """Return the Bedrock provider with a boto3 client that sends each request once.

    boto3 finds region and credentials.
    """
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError
    from pydantic_ai.providers.bedrock import BedrockProvider  # names the missing package

    config = Config(
        retries=ONE_ATTEMPT,
        read_timeout=float(os.environ.get("AWS_READ_TIMEOUT", READ_TIMEOUT_S)),
        connect_timeout=float(os.environ.get("AWS_CONNECT_TIMEOUT", CONNECT_TIMEOUT_S)),
    )
    try:
        session = boto3.Session()
        client = session.client("bedrock-runtime", endpoint_url=base_url, config=config)
        if session.get_credentials() is None and not os.environ.get("AWS_BEARER_TOKEN_BEDROCK"):
            raise UserError("there are no credentials of AWS: set AWS_PROFILE, AWS_ACCESS_KEY_ID or a bearer token")
    except BotoCoreError as exc:
        raise UserError(f"{exc}: set AWS_REGION or AWS_DEFAULT_REGION") from exc
    return BedrockProvider(bedrock_client=client)


def require_one_attempt(model: Model) -> None:
    """Raise `AgentError` if the client of a model repeats failed requests by itself.

    Such requests would not count for the budget.
    """
    config = getattr(getattr(getattr(model, "client", None), "meta", None), "config", None)
    retries = getattr(config, "retries", None)
    if isinstance(retries, dict) and retries.get("total_max_attempts") != 1:
        raise AgentError(
            f"the client of {model.model_id} sends a failed request again by itself",
            detail=f"its retries are {retries}",
            hint="give boto3 config=Config(retries={'total_max_attempts': 1}), or name the model: bedrock:MODEL",
            code="E-AGENT-MODEL",
        )
