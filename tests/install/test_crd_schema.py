"""The CRD has the fields, limits and defaults of the model. They are compared as text, without an API server."""

import re
from typing import Any

import msgspec
import pytest

from holdfast.install.manifests import custom_resource
from holdfast.kubernetes.declared import _counts
from holdfast.model.duration import PATTERN, seconds
from holdfast.model.pool import PoolSpec
from holdfast.ports.declared import DeclaredStatus

Json = dict[str, Any]
VERSION: Json = custom_resource()["spec"]["versions"][0]
ROOT: Json = VERSION["schema"]["openAPIV3Schema"]["properties"]
MODEL = msgspec.json.schema(PoolSpec)
LIMITS = ("minimum", "maximum", "maxLength", "maxItems", "enum")


def of_model(schema: Json) -> Json:
    """Returns the schema without references and without `or null`."""
    if "$ref" in schema:
        return of_model(MODEL["$defs"][schema["$ref"].rpartition("/")[2]])
    choices = [each for each in schema.get("anyOf", []) if each != {"type": "null"}]
    return of_model(choices[0]) if len(choices) == 1 else schema


def pairs(path: str, ours: Json, declared: Json) -> list[tuple[str, Json, Json]]:
    ours = of_model(ours)
    found = [(path, ours, declared)]
    if ours.get("properties"):
        assert ours["properties"].keys() == declared["properties"].keys(), path
        for name, below in ours["properties"].items():
            found += pairs(f"{path}.{name}", below, declared["properties"][name])
    if ours.get("type") == "array":
        found += pairs(f"{path}[]", ours["items"], declared["items"])
    return found


PAIRS = pairs("spec", MODEL, ROOT["spec"])


@pytest.mark.parametrize(("path", "ours", "declared"), PAIRS, ids=[path for path, _, _ in PAIRS])
def test_a_field_has_the_type_and_the_limits_of_the_model(path: str, ours: Json, declared: Json) -> None:
    if "anyOf" in ours:
        assert path == "spec.rollout.maxUnavailable"
        assert declared["x-kubernetes-int-or-string"] is True
        limits = {key: value for each in ours["anyOf"] for key, value in each.items()}
        assert declared["pattern"] == limits["pattern"].removesuffix(r"(?!\n)")
        assert (declared["minimum"], declared["maximum"]) == (limits["minimum"], limits["maximum"])
        return
    if "enum" in ours:
        assert sorted(declared["enum"]) == sorted(ours["enum"])
        return
    assert declared["type"] == ours["type"]
    assert {key: declared.get(key) for key in LIMITS} == {key: ours.get(key) for key in LIMITS}
    assert ("pattern" in declared) == ("pattern" in ours)


def test_defaults_are_those_of_the_model() -> None:
    def filled(schema: Json, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        for name, below in schema.get("properties", {}).items():
            if name not in value and "default" in below:
                value[name] = below["default"]
            if name in value:
                value[name] = filled(below, value[name])
        return value

    model = msgspec.to_builtins(PoolSpec())
    assert filled({"properties": ROOT}, {})["spec"] == without_none(model)


def without_none(value: Any) -> Any:
    return {key: without_none(each) for key, each in value.items() if each is not None} if isinstance(value, dict) else value


@pytest.mark.parametrize(
    "text",
    [
        *(
            "1s",
            "0s",
            "500ms",
            "1h30m",
            "1000000ms",
            "8784h",
            "8785h",
            "10000h",
            "527040m",
            "9999999m",
            "31622400s",
            "999999999s",
        ),
        *("31622400000ms", "999999999999ms", "00000000000000000000000000001h"),
        *("1d", "", "1", "s", "1 s", "1s ", "1s\n", "-1s", "1.5s"),
    ],
)
def test_the_pattern_refuses_only_what_the_model_refuses_too(text: str) -> None:
    """A duration longer than a year may match the pattern, because a rule refuses it."""
    pattern = ROOT["spec"]["properties"]["startTimeout"]["pattern"].removesuffix("$") + r"\Z"  # as `$` works in Go
    try:
        fine = seconds(text) >= 0
    except ValueError:
        fine = False
    matches = re.search(pattern, text) is not None
    assert matches or not fine
    if matches:
        assert re.fullmatch(PATTERN, text)


def test_all_durations_have_one_pattern() -> None:
    patterns = {declared["pattern"] for _, ours, declared in PAIRS if ours.get("pattern") == PATTERN}
    assert len(patterns) == 1
    (pattern,) = patterns
    rules = [rule["rule"] for _, _, declared in PAIRS for rule in declared.get("x-kubernetes-validations", [])]
    rules += [rule["rule"] for rule in VERSION["schema"]["openAPIV3Schema"]["x-kubernetes-validations"]]
    asked = [rule for rule in rules if "duration(" in rule]
    assert len(asked) > 8
    assert all(f"matches( '{pattern}')" in rule or f"matches('{pattern}')" in rule for rule in asked)


def test_the_status_has_what_is_reported() -> None:
    written = _counts(DeclaredStatus(generation=1)).keys() | {"selector", "conditions"}
    assert ROOT["status"]["properties"].keys() == written
