"""Entries of a Docker MCP catalog: an image instead of a command, a remote instead of a URL.

An image is a server that `docker run` starts. What is said in the catalog stands in the arguments, and is found there
again; secrets are named, never written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from toolway.config.clients.dialect import Impossible, Value
from toolway.config.syntaxes import OURS, Ref, parse

RUN: Final = ("run", "-i", "--rm", "--init")


def lift_image(value: Value, left: Value) -> None:
    """The `image` or the `remote` of a catalog → a command or a URL."""
    remote = left.get("remote")
    if isinstance(remote, Mapping) and isinstance(remote.get("url"), str):
        value["url"] = remote["url"]
        if isinstance(remote.get("headers"), Mapping):
            value["headers"] = dict(remote["headers"])
        if remote.get("transport_type") == "sse":
            value["type"] = "sse"
        _leave(left, "remote", {k: v for k, v in remote.items() if k not in ("url", "headers", "transport_type")})
        return
    image = left.pop("image", None)
    if not isinstance(image, str):
        return
    # In a catalog `command` holds the arguments of the image.
    words = [word for word in (value.pop("command", None),) if word is not None] + value.pop("args", [])
    env = {each["name"]: each.get("value", "") for each in _named(left, "env", value)}
    env |= {each["env"]: f"${{secret:{each['name']}}}" for each in _named(left, "secrets", value)}
    volumes = [word for volume in left.pop("volumes", []) for word in ("-v", volume)]
    value["command"] = "docker"
    value["args"] = [*RUN, *volumes, *(word for name in env for word in ("-e", name)), image, *words]
    if env:
        value["env"] = env


def lower_image(value: Value, written: Value) -> list[tuple[str, str]]:
    """A `docker run` → the entry of a catalog; a URL → a remote."""
    if isinstance(value.get("url"), str):
        kind = "sse" if value.get("type") == "sse" else "streamable-http"
        written["remote"] = {"transport_type": kind, "url": value.pop("url")}
        if value.get("headers"):
            written["remote"]["headers"] = value.pop("headers")
        return []
    args = list(value.get("args") or [])
    found = _image(args) if value.get("command") == "docker" else None
    if found is None:
        raise Impossible("command", "it starts images of containers only; the entry is left out")
    volumes, image, words = found
    written["image"] = image
    env = value.pop("env", {})
    plain = [{"name": name, "value": text} for name, text in env.items() if _secret(text) is None]
    secrets = [{"name": _secret(text), "env": name} for name, text in env.items() if _secret(text) is not None]
    parts = {"command": words, "volumes": volumes, "env": plain, "secrets": secrets}
    written |= {key: part for key, part in parts.items() if part}
    value["command"] = value["args"] = None
    return []


def _image(args: list[str]) -> tuple[list[str], str, list[str]] | None:
    """Volumes, image and the image's own arguments, where these are the arguments that we write ourselves."""
    if not args or args[0] != "run":
        return None
    volumes, at = [], 1
    while at < len(args):
        word = args[at]
        if word in ("-i", "--rm", "--init", "--interactive"):
            at += 1
        elif word in ("-e", "--env", "-v", "--volume") and at + 1 < len(args):
            volumes += [args[at + 1]] if word in ("-v", "--volume") else []
            at += 2
        elif word.startswith("-"):
            return None
        else:
            return volumes, word, args[at + 1 :]
    return None


def _secret(text: Any) -> str | None:
    pieces = parse(text, OURS) if isinstance(text, str) else ()
    match pieces:
        case (Ref("secret", name, _),):
            return name
    return None


def _named(left: Value, key: str, value: Value) -> list[dict[str, Any]]:
    """A list of objects with a name, or nothing where it is something else; it may have been read as `env` already."""
    found = left.get(key, value.get(key))
    if not isinstance(found, list) or not all(isinstance(each, dict) and "name" in each for each in found):
        return []
    left.pop(key, None)
    value.pop(key, None)
    return found


def _leave(left: Value, key: str, rest: Value) -> None:
    left[key] = rest
    if not rest:
        del left[key]
