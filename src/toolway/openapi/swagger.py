"""Swagger 2.0 in the words of OpenAPI 3: parameters, bodies, answers, addresses, credentials."""

from __future__ import annotations

from typing import Any, Final

from toolway.model import Json

_STYLES: Final = {
    "csv": ("form", False), "ssv": ("spaceDelimited", False), "tsv": ("tabDelimited", False),
    "pipes": ("pipeDelimited", False), "multi": ("form", True),
}  # fmt: skip
_NOT_OF_SCHEMAS: Final = frozenset({"name", "in", "required", "collectionFormat", "allowEmptyValue", "schema"})
_FLOWS: Final = {"accessCode": "authorizationCode", "application": "clientCredentials"}
_FORM: Final = "application/x-www-form-urlencoded"
_MULTIPART: Final = "multipart/form-data"


def parameter(raw: Json) -> Json:
    """A parameter that is no body."""
    found: Json = {
        word: raw[word] for word in ("name", "in", "required", "description", "allowEmptyValue") if word in raw
    }
    found["schema"] = schema(raw)
    if raw.get("type") == "array":
        found |= _style(raw)
        if raw.get("in") in ("path", "header") and found["style"] == "form":
            found["style"] = "simple"
    return found


def schema(raw: Json) -> Json:
    return {word: value for word, value in raw.items() if word not in _NOT_OF_SCHEMAS}


def body(raw: Json, consumes: list[str]) -> Json:
    """The body of a parameter that is one."""
    media = consumes or ["application/json"]
    found: Json = {
        "required": raw.get("required") is True,
        "content": {each: {"schema": raw.get("schema", {})} for each in media},
    }
    if "description" in raw:
        found["description"] = raw["description"]
    return found


def form(fields: list[Json], consumes: list[str]) -> Json:
    """The body that form fields make together."""
    has_file = any(field.get("type") == "file" for field in fields)
    media = [each for each in consumes if _bare(each) in (_FORM, _MULTIPART)]
    if has_file or not media:
        media = [_MULTIPART if has_file else _FORM]
    wanted = [field["name"] for field in fields if field.get("required") is True]
    whole: Json = {
        "type": "object",
        "properties": {field["name"]: schema(field) for field in fields},
        "required": wanted,
    }
    encoding = {}
    for field in fields:
        if field.get("type") == "array":
            encoding[field["name"]] = _style(field)
    content = {each: {"schema": whole, "encoding": encoding} for each in media}
    return {"required": bool(wanted), "content": content}


def response(raw: Json, produces: list[str]) -> Json:
    """One kind of answer."""
    found: Json = {"description": raw.get("description", "")}
    if isinstance(raw.get("schema"), dict):
        found["content"] = {each: {"schema": raw["schema"]} for each in produces or ["application/json"]}
    return found


def servers(tree: Json) -> list[Json]:
    host, path = tree.get("host"), tree.get("basePath")
    path = path if isinstance(path, str) else "/"
    if not isinstance(host, str):
        return [{"url": path}]
    schemes = texts(tree.get("schemes")) or [""]  # none: as the document came
    ordered = sorted(schemes, key=lambda scheme: scheme != "https")
    return [
        {"url": f"{scheme}:" * bool(scheme) + f"//{host}{path}"}
        for scheme in ordered
        if scheme in ("https", "http", "")
    ]


def scheme(raw: Json) -> Json:
    """A way to prove who one is."""
    if raw.get("type") == "basic":
        return {"type": "http", "scheme": "basic", "description": raw.get("description", "")}
    if raw.get("type") != "oauth2":
        return raw
    flow = str(raw.get("flow", ""))
    words = ("authorizationUrl", "tokenUrl", "scopes")
    return {"type": "oauth2", "flows": {_FLOWS.get(flow, flow): {word: raw[word] for word in words if word in raw}}}


def texts(value: Any) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def _style(raw: Json) -> Json:
    style, explode = _STYLES.get(str(raw.get("collectionFormat", "csv")), ("form", False))
    return {"style": style, "explode": explode}


def _bare(media: str) -> str:
    return media.partition(";")[0].strip().lower()
