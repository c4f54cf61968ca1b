import pytest

from toolway.doctor.lint import lint_tools


def findings(schema, name="search", server="acme"):
    return lint_tools(server, [{"name": name, "inputSchema": schema}]).findings


def of_object(**more):
    return {"type": "object", **more}


@pytest.mark.parametrize(
    ("schema", "part", "providers"),
    [
        ({"properties": {}}, 'no "type": "object"', ("openai", "anthropic", "gemini")),
        (of_object(oneOf=[{}]), '"oneOf" at the top', ("openai", "anthropic")),
        (of_object(allOf=[{}]), '"allOf" at the top', ("openai", "anthropic")),
        (of_object(properties={"a": {"type": "array"}}), 'an array without "items"', ("openai", "gemini")),
        (of_object(properties={"a": {"type": ["array", "null"]}}), 'an array without "items"', ("openai", "gemini")),
        (of_object(properties={"a b": {}}), "the property 'a b'", ("anthropic",)),
        (of_object(properties={"a": {"enum": [1, 2]}}), "non-string", ("gemini",)),
        (of_object(properties={"a": {"$ref": "https://x/y"}}), "another document", ("openai", "anthropic", "gemini")),
        ({"type": "objekt"}, "not valid JSON Schema", ("openai", "anthropic", "gemini")),
        ("text", "not an object", ("openai", "anthropic", "gemini")),
    ],
)
def test_rejected_schema_is_found(schema, part, providers):
    [finding] = findings(schema)
    assert part in finding.message
    assert finding.providers == providers
    assert finding.hint
    assert finding.severity == "error"


@pytest.mark.parametrize(
    "schema",
    [
        of_object(),
        of_object(properties={"a": {"type": "array", "items": {"type": "string"}}}),
        of_object(properties={"a": {"anyOf": [{"type": "string"}, {"type": "null"}]}}),
        of_object(properties={"a": {"$ref": "#/$defs/b"}}, **{"$defs": {"b": {"type": "string"}}}),
        of_object(properties={"a": {"enum": ["x", "y"]}, "b.c-d_e": {}}),
        of_object(additionalProperties=False, required=["a"], properties={"a": {"const": 1}}),
    ],
)
def test_accepted_schema_has_no_finding(schema):
    assert findings(schema) == ()


def test_nested_place_in_schema_is_named():
    deep = {"type": "object", "properties": {"b": {"items": {"type": "array"}, "type": "array"}}}
    [finding] = findings(of_object(properties={"a": {"anyOf": [{"type": "null"}, deep]}}))
    assert finding.where == "properties.a.anyOf.1.properties.b.items"


def test_tool_name_length_includes_server_name():
    [finding] = findings(of_object(), name="t" * 60, server="server")
    assert "has 68 characters" in finding.message
    assert "at most 2 characters" in finding.hint
    assert findings(of_object(), name="t" * 60, server="ab") == ()


def test_invalid_tool_name_characters_are_found():
    [finding] = findings(of_object(), name="files/read")
    assert "files/read has characters that models reject" in finding.message


def test_too_many_tools_are_reported():
    tools = [{"name": f"t{number}", "inputSchema": of_object()} for number in range(129)]
    [finding] = lint_tools("acme", tools).findings
    assert "129 tools" in finding.message
    assert lint_tools("acme", tools[:128]).findings == ()


def test_exponential_schema_is_not_followed():
    doubling = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
    schema = of_object(properties={"a": {"$ref": "#/$defs/d0"}}, **{"$defs": {**doubling, "d40": {}}})
    assert findings(schema) == ()


def test_tokens_count_only_model_visible_parts():
    tool = {"name": "search", "description": "Search. " * 100, "inputSchema": of_object()}
    cost = lint_tools("acme", [tool]).cost
    assert 180 <= cost.openai <= cost.anthropic <= cost.gemini <= 230  # 870 characters
    told_elsewhere = {**tool, "outputSchema": of_object(), "annotations": {"title": "x" * 500}}
    assert lint_tools("acme", [told_elsewhere]).cost == cost
    assert lint_tools("acme", [tool, tool]).cost.openai == pytest.approx(2 * cost.openai, abs=1)
