"""Tools of a `Hub` for model providers and agent frameworks: one small module for each.

    from toolway.adapters import openai

    tools = await openai.tools(hub, "github.*")
    response = await client.chat.completions.create(model=model, messages=messages, tools=tools.chat)

Each module gives the tools in the type of its framework and takes the calls of the model. `toolset.py` is what they
share: selection, names, approval and calls. `schemas.py` makes schemas that the providers accept. `texts.py` writes
what a model reads about a result or an error. A framework is imported when its adapter is used.
"""

from __future__ import annotations

import importlib
from typing import Any

from toolway.errors import ToolwayError


def require(module: str, package: str) -> Any:
    """Import a framework's module, or raise the error that says which package to install."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as exc:
        if exc.name is None or not f"{module}.".startswith(f"{exc.name}."):
            raise  # the framework is there, but lacks something it needs
        raise ToolwayError(
            f"this adapter needs the package {package}",
            detail=f"module {exc.name} is not installed",
            hint=f"pip install {package}",
            code="E-ADAPTER-MISSING",
        ) from exc
