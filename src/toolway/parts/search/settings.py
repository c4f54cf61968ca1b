"""The setting `toolway.search`: what the tool search learns from calls, and a model for search by meaning.

"search": {"model": "minilm"}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any, Final

from toolway.config.field_reader import CONFIG_KEY_CODE, FieldReader, require_object
from toolway.config.schema import ConfigIssue
from toolway.config.secret_refs import SecretTemplate
from toolway.errors import ConfigError
from toolway.network.policy import host_of, is_private_host

LOCAL_MODEL: Final = "minilm"
MAX_DIMENSIONS: Final = 4096
_MODEL_PACKAGES: Final = {
    "numpy": "numpy",
    "onnxruntime": "onnxruntime",
    "toolway_search_minilm": "toolway-search-minilm",
}


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """Settings of the tool search: learning from calls, and an embedding model.

    An endpoint receives every query, and the names and descriptions of all tools. Choose one that may know them.
    """

    learn: bool = True  # learn from calls: if a search led to a tool, similar searches rank it higher
    model: str = ""  # also search by meaning: "minilm", or a model of the endpoint; default: words alone
    endpoint: str = ""  # URL of an OpenAI-compatible /embeddings service; it receives descriptions and queries
    key: str = field(default="", repr=False)  # API key of the endpoint: ${keyring:NAME}, ${file:PATH} or ${VARIABLE}
    dimensions: int | None = None  # length of the endpoint's vectors; default: the endpoint decides


def parse_settings(block: Mapping[str, Any], variables: Mapping[str, str]) -> SearchSettings:
    """Return the settings in a `toolway` block. Raises `ConfigError`."""
    return parse_search(block.get("search"), variables)


def parse_search(value: Any, variables: Mapping[str, str]) -> SearchSettings:
    """Return the tool search settings in `toolway.search`, or the defaults if it is missing.

    Raises `ConfigError` if a setting is invalid or unknown.
    """
    fields = FieldReader(require_object("toolway.search", value), variables)
    settings = SearchSettings(
        learn=fields.get_bool("learn", True),
        model=fields.get_plain_text("model"),
        endpoint=fields.get_plain_text("endpoint"),
        key=fields.get_text("key") or "",
        dimensions=fields.get_int("dimensions", 0, minimum=1) or None,
    )
    fields.reject_unknown("toolway.search", "learn, model, endpoint, key and dimensions")
    if problem := _find_problem(settings):
        raise ConfigError(f"toolway.search: {problem[0]}", hint=problem[1], code=CONFIG_KEY_CODE)
    return settings


def find_missing_model(settings: SearchSettings) -> list[ConfigIssue]:
    """Return a warning if embedding search is configured but its packages are not installed."""
    if settings.endpoint or settings.model != LOCAL_MODEL:
        return []
    from importlib.util import find_spec

    missing = [package for module, package in _MODEL_PACKAGES.items() if find_spec(module) is None]
    if not missing:
        return []
    verb = "is" if len(missing) == 1 else "are"
    return [
        ConfigIssue(
            "",
            f"toolway.search: {', '.join(missing)} {verb} not installed, so tools are found by words alone",
            f"the model {LOCAL_MODEL} needs {'it' if len(missing) == 1 else 'them'}",
            "pip install 'toolway[search]' toolway-search-minilm",
            CONFIG_KEY_CODE,
            "warning",
        )
    ]


def _find_problem(settings: SearchSettings) -> tuple[str, str] | None:
    """Return what is wrong with the search settings' model or endpoint, and a hint, or None if nothing is wrong."""
    if isinstance(settings.key, SecretTemplate) and any(each.kind == "command" for each in settings.key.references):
        return "the key cannot be the output of a command", "use ${keyring:NAME}, ${file:PATH} or ${VARIABLE}"
    if not settings.endpoint:
        if settings.key or settings.dimensions is not None:
            return "key and dimensions need an endpoint", 'add "endpoint": "https://…/v1/embeddings"'
        if settings.model not in ("", LOCAL_MODEL):
            return "the model is not on this machine", f'set "model": "{LOCAL_MODEL}", or add "endpoint"'
        return None
    if not settings.model:
        return "an endpoint needs a model", 'add "model": "…"'
    if (settings.dimensions or 1) > MAX_DIMENSIONS:
        return f"dimensions must be at most {MAX_DIMENSIONS}", ""
    scheme, host = settings.endpoint.split(":")[0], host_of(settings.endpoint)
    if host and (scheme == "https" or (scheme == "http" and (is_private_host(host) or _is_private_address(host)))):
        return None
    return "the endpoint must begin with https://", "http:// is possible only for a private address, such as 127.0.0.1"


def _is_private_address(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_private
    except ValueError:
        return False
