"""Prices of model answers: from the settings, else from the table in the package `genai-prices`."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from genai_prices import Usage, calc_price
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import Model

from toolway.agents.errors import AgentError
from toolway.agents.settings import AgentSettings


def price_of(response: ModelResponse, settings: AgentSettings) -> Decimal | None:
    """Return the price of a model's answer in USD; None if it is not known.

    An answer whose model has no known price, such as one that a proxy has named, has the price of the requested model.
    """
    asked = settings.model.partition(":")[2]
    names = (response.model_name or "", settings.model, asked)
    own = next((settings.prices[name] for name in names if name in settings.prices), None)
    if own is not None:
        tokens = (response.usage.input_tokens, response.usage.output_tokens)
        prices = (Decimal(str(price)) * count / 1_000_000 for price, count in zip(own, tokens, strict=True))
        return sum(prices, Decimal(0))
    for each in (response, replace(response, model_name=asked)):
        try:
            return each.cost().total_price
        except (LookupError, ValueError, AssertionError):
            continue
    return None


def require_price(model: Model, settings: AgentSettings) -> None:
    """Raise `AgentError` if a model's price is unknown, so a budget in USD cannot be enforced."""
    if settings.model in settings.prices or model.model_name in settings.prices:
        return
    try:
        calc_price(Usage(input_tokens=1, output_tokens=1), model.model_name, provider_id=model.system)
    except LookupError:
        raise AgentError(
            f"no price is known for {settings.model}, so a budget in USD cannot be enforced",
            hint="set prices={MODEL: (input, output)} in USD per million tokens, or set the budget in tokens",
            code="E-AGENT-PRICE",
        ) from None
