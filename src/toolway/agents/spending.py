"""An agent run's spending, including its child runs, compared with its budget. No I/O.

Tokens and prices come from the provider's usage numbers. Two kinds of requests have none: one whose answer was lost
in a crash, and one whose answer has no usage numbers. They count against the budget by estimate, and are reported apart
(`uncounted_tokens`, `uncounted_usd`).
"""

from __future__ import annotations

from decimal import Decimal

from pydantic_ai.messages import ModelResponse

from toolway.agents.errors import BUDGET_HINT, BudgetUsed
from toolway.agents.prices import price_of
from toolway.agents.settings import AgentSettings, Budget
from toolway.types import Json


class Spending:
    """Sum of the requests, tokens and money that one agent run has used, compared with its budget."""

    def __init__(self, settings: AgentSettings) -> None:
        self._settings = settings
        self.requests = 0  # also those that were lost
        self.input_tokens = 0  # including the cache
        self.output_tokens = 0  # including reasoning
        self.cached_tokens = 0
        self.reasoning_tokens = 0
        self.cost: Decimal | None = Decimal(0)  # None: the price of an answer is not known
        self._uncounted_tokens = 0
        self._uncounted_cost = Decimal(0)

    def add_answer(self, response: ModelResponse, lost: int, estimate: ModelResponse) -> None:
        """Add the usage of one answer, and the same again for each of the `lost` requests, whose answers a crash lost.

        An answer without usage numbers, or with some that cannot be right, counts like `estimate`.
        """
        usage = response.usage
        is_measured = not usage.unmeasured_requests and usage.total_tokens > 0  # no request has no tokens
        if is_measured:
            self.input_tokens += usage.input_tokens
            self.output_tokens += usage.output_tokens
            self.cached_tokens += usage.cache_read_tokens
            self.reasoning_tokens += usage.output_reasoning_tokens
        price = price_of(response, self._settings) if is_measured else None
        self.cost = None if price is None or self.cost is None else self.cost + price
        uncounted = lost if is_measured else lost + 1
        if uncounted:
            like = response if is_measured else estimate
            self._uncounted_tokens += uncounted * like.usage.total_tokens
            self._uncounted_cost += uncounted * (price_of(like, self._settings) or 0)

    def add_child(self, usage: Json) -> None:
        """Add the usage that a child run has reported to the usage of this run."""
        self.requests += usage.get("requests") or 0
        self.input_tokens += usage.get("input_tokens") or 0
        self.output_tokens += usage.get("output_tokens") or 0
        self.cached_tokens += usage.get("cached_tokens") or 0
        self.reasoning_tokens += usage.get("reasoning_tokens") or 0
        price = usage.get("usd")
        self.cost = None if price is None or self.cost is None else self.cost + Decimal(str(price))
        self._uncounted_tokens += usage.get("uncounted_tokens") or 0
        self._uncounted_cost += Decimal(str(usage.get("uncounted_usd") or 0))

    def add_reservation(self, budget: Budget) -> None:
        """Count a child run's whole budget as used, because it did not report its usage."""
        self.requests += budget.requests or 0
        self._uncounted_tokens += budget.tokens or 0
        self._uncounted_cost += Decimal(str(budget.usd or 0))

    def left(self, calls: int, seconds: float | None) -> Budget:
        """Return what is left of the budget, if the run has made `calls` tool calls and worked for `seconds`."""
        used = Budget(
            usd=float(self._all_cost), tokens=self._all_tokens, calls=calls, requests=self.requests, seconds=seconds
        )
        return self._settings.budget.minus(used)

    def find_exceeded(
        self, lost: int = 0, estimate: ModelResponse | None = None, seconds: float | None = None
    ) -> BudgetUsed | None:
        """Return the error `BudgetUsed` if a limit of the budget is reached; else None.

        `lost` is the number of requests for the next answer that a crash lost. Each of them counts like `estimate`.
        `seconds` is the time that the run has worked.
        """
        budget = self._settings.budget
        tokens, cost = 0, Decimal(0)
        if estimate is not None:
            tokens, cost = estimate.usage.total_tokens, price_of(estimate, self._settings) or Decimal(0)
        spent: list[tuple[str, float, float | None]] = [
            ("requests", self.requests + lost, budget.requests),
            ("tokens", self._all_tokens + lost * tokens, budget.tokens),
            ("usd", float(self._all_cost + lost * cost), budget.usd),
            ("seconds", seconds or 0.0, budget.seconds if seconds is not None else None),
        ]
        for unit, amount, limit in spent:
            if limit is not None and amount >= limit:
                return BudgetUsed(
                    f"the run has used up its budget of {limit:g} {unit}",
                    detail=f"used: {amount:.4g} {unit} in {self.requests + lost} requests",
                    hint=BUDGET_HINT,
                )
        return None

    def to_json(self) -> Json:
        """Return the usage of the run as JSON, in the form that the result of a run contains."""
        found: Json = {
            "requests": self.requests,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "cached_tokens": self.cached_tokens,
            "reasoning_tokens": self.reasoning_tokens,
            "usd": None if self.cost is None else float(self.cost),
        }
        if self._uncounted_tokens or self._uncounted_cost:
            found |= {"uncounted_tokens": self._uncounted_tokens, "uncounted_usd": float(self._uncounted_cost)}
        return found

    @property
    def _all_tokens(self) -> int:
        return self.input_tokens + self.output_tokens + self._uncounted_tokens

    @property
    def _all_cost(self) -> Decimal:
        return (self.cost or Decimal(0)) + self._uncounted_cost
