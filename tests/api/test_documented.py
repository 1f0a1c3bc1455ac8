"""The OpenAPI documents describe every field and parameter, and every operation has a tag, a summary and an example."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from holdfast.api.app import ROUTES
from holdfast.api.examples import EXAMPLES, PROBLEMS
from holdfast.api.openapi import TAGS, _kinds, document, for_agents
from holdfast.api.problems import ProblemBody
from served_api import Stage

USERS = document([route for route in ROUTES if not for_agents(route)], "1")
AGENTS = document([route for route in ROUTES if for_agents(route)], "1")
BOTH = pytest.mark.parametrize("described", [USERS, AGENTS], ids=["users", "agents"])


def operations(described: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, item in described["paths"].items():
        for method, operation in item.items():
            yield f"{method.upper()} {path}", operation


def resolved(described: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    """Returns the response itself; the problems are shared by all operations."""
    reference = answer.get("$ref", "")
    return described["components"]["responses"][reference.rpartition("/")[2]] if reference else answer


@BOTH
def test_every_field_says_what_it_means(described: dict[str, Any]) -> None:
    missing = [
        f"{name}.{field}"
        for name, schema in described["components"]["schemas"].items()
        for field, about in schema.get("properties", {}).items()
        if not about.get("description")
    ]
    assert not missing, "add a sentence for each to api/field_texts.py, api/pool_texts.py or api/agent_texts.py"


@BOTH
def test_every_parameter_says_what_it_means_and_has_an_example(described: dict[str, Any]) -> None:
    parameters = [(name, each) for name, operation in operations(described) for each in operation["parameters"]]
    assert not [f"{name} {each['name']}" for name, each in parameters if not each["description"]]
    assert not [f"{name} {each['name']}" for name, each in parameters if each["example"] is None], "add it to api/examples.py"


@BOTH
def test_every_operation_has_a_tag_a_summary_and_examples(described: dict[str, Any]) -> None:
    listed = {each["name"]: each["description"] for each in described["tags"]}
    for name, operation in operations(described):
        assert [tag for tag in operation["tags"] if listed.get(tag)], f"{name}: describe its tag in api/openapi.py"
        assert operation["summary"], name
        assert operation["description"], name
        contents = [resolved(described, answer).get("content", {}) for answer in operation["responses"].values()]
        contents += [operation["requestBody"]["content"]] if "requestBody" in operation else []
        for content in contents:
            for media, about in content.items():
                assert about.get("example") is not None, f"{name}: {media}; see api/examples.py"


def test_every_example_fits_its_type() -> None:
    kinds = {kind.__name__: kind for route in ROUTES for each in (route.body, *route.answers.values()) for kind in _kinds(each)}
    for name, kind in kinds.items():
        known = {field.encode_name for field in msgspec.structs.fields(kind)}
        assert set(EXAMPLES[name]) <= known, name
        msgspec.json.decode(msgspec.json.encode(EXAMPLES[name]), type=kind)


def test_every_example_of_a_problem_is_a_problem() -> None:
    for status, (code, _) in PROBLEMS.items():
        content = USERS["components"]["responses"][f"Problem{status}"]["content"]["application/problem+json"]
        problem = msgspec.convert(content["example"], ProblemBody)
        assert (problem.status, problem.code, problem.type_) == (status, code, f"urn:holdfast:{code}")


def test_agents_have_a_document_of_their_own(stage: Stage) -> None:
    users, agents = (stage.ask("GET", path).json for path in ("/openapi.json", "/openapi-agents.json"))
    assert [tag["name"] for tag in agents["tags"]] == ["agents"]
    assert all(path.startswith("/v1/worker/") for path in agents["paths"])
    assert not [path for path in users["paths"] if path.startswith("/v1/worker/")]
    assert "agents" not in [tag["name"] for tag in users["tags"]]
    assert {"Poll", "Registered"} & users["components"]["schemas"].keys() == set()
    assert set(TAGS) == {tag["name"] for described in (users, agents) for tag in described["tags"]}


@BOTH
def test_every_reference_leads_to_a_schema(described: dict[str, Any]) -> None:
    def references(node: Any) -> Iterator[str]:
        if isinstance(node, dict):
            yield from [node["$ref"]] if isinstance(node.get("$ref"), str) else []
            yield from (found for each in node.values() for found in references(each))
        elif isinstance(node, list):
            yield from (found for each in node for found in references(each))

    known = {f"#/components/{kind}/{name}" for kind, named in described["components"].items() for name in named}
    assert set(references(described)) <= known
