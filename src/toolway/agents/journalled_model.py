"""Journalled model: each answer of a model is a step of the run, so that a replay does not ask the model again.

A request that a crash interrupted is sent once more, never a third time, and both count for the budget. A provider that
is overloaded is asked again after a wait, which is a step too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any, Final

import msgspec
from pydantic_ai.exceptions import (
    ModelAPIError,
    ModelConnectionError,
    ModelOverloadedError,
    ModelRateLimitError,
    ModelServerError,
    ModelTimeoutError,
    ModelUnavailableError,
    UnexpectedModelBehavior,
)
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ToolCallPart,
)
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings

from toolway.agents.errors import AgentError, BudgetUsed
from toolway.agents.prices import price_of
from toolway.agents.settings import AgentSettings
from toolway.agents.transcript import read_arguments, read_model_name
from toolway.types import Effect, Json
from toolway.workflows.definition import Retry
from toolway.workflows.python_workflow import RunContext, StepFailed

MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024
MAX_TRIES: Final = 5  # of one answer, if the provider is overloaded
REQUEST_TIMEOUT_S: Final = 600.0
MAX_WAIT_S: Final = 120.0  # before the provider is asked again, whatever it says
_TEMPORARY: Final = (
    ModelRateLimitError,
    ModelUnavailableError,
    ModelOverloadedError,
    ModelServerError,
    ModelConnectionError,
    ModelTimeoutError,
)


class JournalledModel(WrapperModel):
    """A model whose answers are steps of a run.

    Args:
        wrapped: The model of the provider.
        run: The run, in whose journal the answers are stored.
        settings: Budget and prices.
        on_text: Called with each part of a text while it arrives. None: answers are not streamed.
    """

    def __init__(
        self, wrapped: Model, run: RunContext, settings: AgentSettings, on_text: Callable[[str], None] | None = None
    ) -> None:
        super().__init__(wrapped)
        self._run = run
        self._agent = settings
        self._on_text = on_text
        self._began = run.now() if settings.budget.seconds is not None else 0.0
        self._ids: set[str] = set()
        self.on_answer: Callable[[str, str, list[Json]], None] | None = None  # step, text, tool calls
        self.calls: dict[str, str] = {}  # name of the step of a tool call, by the id of the call
        self.responses: list[ModelResponse] = []
        self.requests = 0  # also those that were lost
        self.input_tokens = 0
        self.output_tokens = 0
        self.cost: Decimal | None = Decimal(0)

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """Return the answer from the journal, or ask the model and store it.

        Raises:
            BudgetUsed: The budget does not allow another request.
            AgentError: The provider does not answer, or refuses the request.
        """
        self._check_budget()
        number = len(self.responses) + 1

        async def ask() -> Json:
            try:
                response = await self._ask(messages, model_settings, model_request_parameters)
            except ModelAPIError as exc:
                return _error_to_json(exc)
            except UnexpectedModelBehavior as exc:
                return {"error": {"message": str(exc)[:1000], "temporary": False}}
            cost = price_of(response, self._agent)
            return _check_size(ModelMessagesTypeAdapter.dump_python([response], mode="json")[0], cost)

        answer = await self._step(f"model/{number}", ask)
        response = self._read(number, answer)
        self.responses.append(response)
        if self.on_answer is not None:
            text = "".join(part.content for part in response.parts if isinstance(part, TextPart))
            self.on_answer(f"model/{number}", text, self._calls_of(response))
        return response

    def _calls_of(self, response: ModelResponse) -> list[Json]:
        return [
            {
                "step": self.calls[part.tool_call_id],
                "tool": read_model_name(part.tool_name),
                "arguments": read_arguments(part.args),
            }
            for part in response.parts
            if isinstance(part, ToolCallPart)
        ]

    async def _step(self, name: str, ask: Callable[[], Any]) -> Json:
        for attempt in range(1, MAX_TRIES + 1):
            path = name if attempt == 1 else f"{name}~{attempt}"
            try:
                answer: Json = await self._run.do(
                    ask,
                    name=path,
                    effect=Effect.UNSAFE,  # its intent is stored: a second request after a crash is counted
                    timeout=REQUEST_TIMEOUT_S,
                    retry=Retry(tries=2, wait=0.0),
                    on_unknown="retry",
                )
            except StepFailed as exc:
                raise AgentError(
                    "the model did not answer", detail=exc.message, hint="toolway agent show RUN", code="E-AGENT-MODEL"
                ) from exc
            self.requests += self._run.attempts(path)
            if "error" not in answer:
                return answer
            error: Json = answer["error"]
            if not error["temporary"] or attempt == MAX_TRIES:
                raise AgentError(
                    f"the provider of {self.model_name} gave no answer",
                    detail=error["message"],
                    hint="check the name of the model, the API key and the limits of your account",
                    code="E-AGENT-MODEL",
                )
            await self._run.wait(min(MAX_WAIT_S, error.get("retry_after") or 2.0**attempt), name=f"{path}/wait")
            self._check_budget()
        raise AssertionError("the last attempt returns or raises")

    async def _ask(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        parameters: ModelRequestParameters,
    ) -> ModelResponse:
        if self._on_text is None:
            return await self.wrapped.request(messages, model_settings, parameters)
        async with self.wrapped.request_stream(messages, model_settings, parameters) as stream:
            async for event in stream:
                if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
                    self._on_text(event.part.content)
                elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
                    self._on_text(event.delta.content_delta)
            return stream.get()

    def _read(self, number: int, answer: Json) -> ModelResponse:
        """Return a stored answer, and count its usage. Ids of calls become unique in the run."""
        response = ModelMessagesTypeAdapter.validate_python([answer["response"]])[0]
        assert isinstance(response, ModelResponse)
        parts = list(response.parts)
        calls = 0
        for place, part in enumerate(parts):
            if isinstance(part, ToolCallPart):
                calls += 1
                if not part.tool_call_id or part.tool_call_id in self._ids:
                    part = parts[place] = replace(part, tool_call_id=f"call_{number}_{calls}")
                self._ids.add(part.tool_call_id)
                self.calls[part.tool_call_id] = f"tool/{number}.{calls}"
        self.input_tokens += response.usage.input_tokens
        self.output_tokens += response.usage.output_tokens
        cost = price_of(response, self._agent)
        self.cost = None if cost is None or self.cost is None else self.cost + cost
        return replace(response, parts=parts)

    def _check_budget(self) -> None:
        """Raise `BudgetUsed` if the run may not send another request to the model.

        A request that was lost in a crash counts as much as the average answer.
        """
        budget = self._agent.budget
        lost = max(0, self.requests - len(self.responses))
        factor = 1 + lost / max(1, len(self.responses))
        spent: list[tuple[str, float, float | None]] = [
            ("requests", self.requests, budget.requests),
            ("tokens", (self.input_tokens + self.output_tokens) * factor, budget.tokens),
            ("seconds", self._run.now() - self._began if budget.seconds is not None else 0.0, budget.seconds),
            ("usd", float(self.cost or 0) * factor, budget.usd),
        ]
        for unit, amount, limit in spent:
            if limit is not None and amount >= limit:
                raise BudgetUsed(
                    f"the run has used up its budget of {limit:g} {unit}",
                    detail=f"used: {amount:.4g} {unit} in {self.requests} requests",
                    hint=f"start it with a larger budget, for example --budget {limit * 2:g}{unit}",
                )


def _error_to_json(exc: ModelAPIError) -> Json:
    return {
        "error": {
            "message": str(exc)[:1000],
            "temporary": isinstance(exc, _TEMPORARY),
            "retry_after": exc.retry_after,
        }
    }


def _check_size(response: Json, cost: Decimal | None) -> Json:
    """Return an answer of a model with its price, in the form for the journal; an error if it is too large."""
    size = len(msgspec.json.encode(response))
    if size > MAX_ANSWER_BYTES:
        text = f"the answer has {size} bytes, more than {MAX_ANSWER_BYTES}: limit it with max_tokens"
        return {"error": {"message": text, "temporary": False}}
    return {"response": response, "usd": None if cost is None else float(cost)}
