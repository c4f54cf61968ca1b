"""Import of Arazzo documents: operations, expressions, criteria, retries, children, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from mcp.server import MCPServer

from toolway import Hub
from toolway.errors import ConfigError
from toolway.workflows import WorkflowEngine
from toolway.workflows.arazzo import import_arazzo

pytest.importorskip("cel_expr_python", reason="the extra toolway[workflows] is not installed")

DOCUMENT = """
arazzo: 1.0.1
info: {title: Pets, version: 1.0.0}
sourceDescriptions: [{name: petStore, url: ./pets.yaml, type: openapi}]
components:
  parameters: {page: {name: limit, in: query, value: 1}}
  failureActions: {again: {name: again, type: retry, retryAfter: 0.01, retryLimit: 3}}
workflows:
  - workflowId: buy-pet
    summary: Buy a pet and tag it.
    inputs: {type: object, required: [kind], properties: {kind: {type: string}}}
    steps:
      - stepId: find-pet
        operationId: $sourceDescriptions.petStore.findPets
        parameters:
          - {reference: $components.parameters.page}
          - {name: kind, in: query, value: $inputs.kind}
        successCriteria:
          - condition: $statusCode == 200
          - condition: $response.body#/pets/0/name != 'none'
        onFailure: [{reference: $components.failureActions.again}]
        outputs: {pet: $response.body#/pets/0, id: $response.body#/pets/0/id}
      - stepId: tag
        workflowId: tag-pet
        parameters: [{name: id, value: $steps.find-pet.outputs.id}]
    outputs: {name: $steps.find-pet.outputs.pet#/name}
  - workflowId: tag-pet
    inputs: {type: object, properties: {id: {type: integer}}}
    steps:
      - stepId: write
        operationId: tagPet
        requestBody: {contentType: application/json, payload: {id: $inputs.id, text: "pet {$inputs.id} is sold"}}
"""


@pytest.mark.anyio
async def test_an_imported_document_runs() -> None:
    pets = MCPServer("pets")
    tags: list[dict[str, Any]] = []

    @pets.tool()
    def findPets(kind: str, limit: int) -> dict[str, Any]:
        return {"pets": [{"id": 7, "name": f"{kind} {limit}"}]}

    @pets.tool()
    def tagPet(body: dict[str, Any]) -> str:
        tags.append(body)
        return "ok"

    buy, tag = import_arazzo(DOCUMENT, {"petStore": "pets"})
    assert (buy.name, tag.name) == ("buy_pet", "tag_pet")
    assert buy.notes == ("find_pet: an unsafe call is retried only with repeatable: true",)
    async with Hub({"pets": pets}) as hub:
        result = await WorkflowEngine(hub).execute(buy.body, {"input": {"kind": "cat"}})
        assert result["output"] == {"name": "cat 1"}
        failed = await WorkflowEngine(hub).execute(
            import_arazzo(DOCUMENT.replace("'none'", "'dog 1'"), {"petStore": "pets"})[0].body,
            {"input": {"kind": "dog"}},
        )
        assert failed["status"] == "failed" and "does not meet" in failed["error"]["message"]
    assert tags == [{"id": 7, "text": "pet 7 is sold"}]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("arazzo: 1.0.1", "openapi: 3.1.0", "not an Arazzo document"),
        ("retryLimit: 3}", "retryLimit: 3, type: goto}", "written twice"),
        ("name: again, type: retry", "name: again, type: goto", "goto cannot be imported"),
        ("$inputs.kind", "$workflows.other.outputs.kind", "cannot be imported"),
        ("workflowId: tag-pet\n        parameters", "workflowId: other\n        parameters", "no workflow other"),
        ("operationId: tagPet", "operationPath: '{$sourceDescriptions.petStore.url}#/paths'", "no operationId"),
        ("$statusCode == 200", "$statusCode == 404", "status other than 2xx"),
        ("$components.parameters.page", "$components.parameters.none", "reference is not known"),
    ],
)
def test_parts_without_an_equivalent_are_refused(old: str, new: str, words: str) -> None:
    assert old in DOCUMENT
    with pytest.raises(ConfigError, match=words):
        import_arazzo(DOCUMENT.replace(old, new), {})
