"""All mistakes of a value are found at once, and their reasons speak to people."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.api.app import ROUTES
from holdfast.api.claim_shapes import ClaimRequest, ListQuery
from holdfast.model.mistakes import MOST, mistakes
from holdfast.model.nearest import nearest, nearest_id
from holdfast.model.pool import PoolSpec
from holdfast.model.tenant import TenantSpec

DURATION = "must be a duration such as 500ms, 60s, 10m or 1h30m"


def found_in(value: Any, kind: Any, *, lax: bool = False) -> dict[str, str]:
    try:
        msgspec.convert(value, kind, strict=not lax)
    except msgspec.ValidationError as error:
        return {found.field: found.reason for found in mistakes(value, kind, error, lax=lax)}
    return {}


def test_a_claim_with_many_mistakes_names_each_of_them() -> None:
    request = {
        "pool": "Linux!",
        "comand": ["true"],
        "wait": "soon",
        "lease": 5,
        "priority": 10,
        "retry": "always",
        "env": {"A B": "x", "C": 7},
        "command": ["ls", 7],
    }
    found = found_in(request, ClaimRequest)
    assert found.pop("pool").startswith("must be a DNS label such as linux-large")
    assert found.pop("env").startswith("contains a name that is refused: each name must be a variable's name such as PATH")
    assert found == {
        "comand": "is not a field of this object",  # `command` is given as well
        "wait": DURATION,
        "lease": f"{DURATION}; this is a whole number",
        "priority": "must be from 0 to 9",
        "retry": "must be 'lost'",
        "env.C": "must be text, not a whole number",
        "command[1]": "must be text, not a whole number",
    }


@pytest.mark.parametrize(
    ("kind", "value", "field", "reason"),
    [
        (ClaimRequest, {}, "pool", "is required"),
        (ClaimRequest, [], "", "must be an object, not a list"),
        (ClaimRequest, {"pool": "x", "comand": []}, "comand", "is not a field of this object; did you mean 'command'?"),
        (ClaimRequest, {"pool": "x", "park_ttl": "1m"}, "park_ttl", "is not a field of this object; did you mean 'parkTTL'?"),
        (ClaimRequest, {"pool": "x", "key": ""}, "key", "must not be empty"),
        (ClaimRequest, {"pool": "x", "key": "k" * 256}, "key", "must have at most 255 characters"),
        (ClaimRequest, {"pool": "x", "key": "a\nb"}, "key", "must be one line without control characters"),
        (ClaimRequest, {"pool": "x", "command": ["x"] * 257}, "command", "must have at most 256 items"),
        (PoolSpec, {"mode": "jbo"}, "mode", "must be 'job' or 'session'; did you mean 'job'?"),
        (PoolSpec, {"worker": {"agent": "yes"}}, "worker.agent", "must be true or false"),
        (PoolSpec, {"worker": {"prot": 80}}, "worker.prot", "is not a field of this object; did you mean 'port'?"),
        (PoolSpec, {"rollout": {"maxUnavailable": "some"}}, "rollout.maxUnavailable",
         "must be a number of workers or a share such as 25%"),
        (PoolSpec, {"rollout": {"maxUnavailable": []}}, "rollout.maxUnavailable", "must be text or a whole number, not a list"),
        (PoolSpec, {"claim": None}, "claim", "must be an object, not null"),
        (TenantSpec, {"weight": 0}, "weight", "must be from 1 to 1000"),
    ],
)  # fmt: skip
def test_a_reason_says_what_to_write(kind: Any, value: Any, field: str, reason: str) -> None:
    assert found_in(value, kind)[field] == reason


def test_a_query_is_written_as_text_and_refused_in_the_same_words() -> None:
    assert found_in({"limit": "10", "state": "ended"}, ListQuery, lax=True) == {}
    found = found_in({"limit": "ten", "state": "endet", "curser": "x"}, ListQuery, lax=True)
    assert found["limit"] == "must be a whole number from 1 to 1000"
    assert found["state"].endswith("; did you mean 'ended'?")
    assert found["curser"] == "is not a field of this object; did you mean 'cursor'?"


class Circle(msgspec.Struct, forbid_unknown_fields=True, tag_field="kind", tag="circle"):
    radius: int


class Square(msgspec.Struct, forbid_unknown_fields=True, tag_field="kind", tag="square"):
    side: int


class Drawing(msgspec.Struct, forbid_unknown_fields=True):
    shapes: list[Circle | Square]
    picture: bytes = b""


def test_an_object_of_several_kinds_is_compared_with_the_kind_that_it_names() -> None:
    shapes = [{"kind": "circle", "radius": 1}, {"kind": "circle", "radios": 1}, {"kind": "sqare"}, {"side": 2}, 7]
    assert found_in({"shapes": shapes, "picture": "not base64"}, Drawing) == {
        "shapes[1].radios": "is not a field of this object; did you mean 'radius'?",
        "shapes[1].radius": "is required",
        "shapes[2].kind": "must be 'circle' or 'square'; did you mean 'square'?",
        "shapes[3].kind": "is required",
        "shapes[4]": "must be an object, not a whole number",
        "picture": "must be base64 text",
    }


def test_very_many_mistakes_are_cut() -> None:
    assert len(found_in({"pool": "x", "command": [7] * 256}, ClaimRequest)) == MOST


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 200_000) | st.floats(0, 10) | st.sampled_from(["", "x", "60s", "A B", "x\n"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["run", "A", "a b", "mode"]), inner, max_size=3),
    max_leaves=6,
)
FIELDS = sorted({field.encode_name for kind in (ClaimRequest, PoolSpec, TenantSpec) for field in msgspec.structs.fields(kind)})


@pytest.mark.parametrize("kind", [ClaimRequest, PoolSpec, TenantSpec])
@given(value=st.dictionaries(st.sampled_from([*FIELDS, "other"]), JSON, max_size=5))
def test_what_msgspec_refuses_has_mistakes_in_the_words_of_people(kind: Any, value: Any) -> None:
    reasons = found_in(value, kind).values()
    assert not any("Expected `" in reason or "`$" in reason or "Object " in reason for reason in reasons), reasons
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        assert reasons


def test_no_reason_shows_a_regular_expression() -> None:
    """A pattern without its sentence (`must`) would be shown as it is."""
    kinds = {kind for route in ROUTES for kind in (route.body, route.query) if kind is not None}
    assert kinds
    for kind in kinds:
        for path, node in _strings(msgspec.inspect.type_info(kind), kind.__name__, None):
            assert node, f"{path} has a pattern and no `must`"


def _strings(kind: Any, path: str, must: str | None) -> list[tuple[str, bool]]:
    """Returns each text with a pattern, and whether it has its sentence."""
    inspect = msgspec.inspect
    match kind:
        case inspect.Metadata():
            return _strings(kind.type, path, (kind.extra or {}).get("must", must))
        case inspect.StrType():
            return [(path, must is not None)] if kind.pattern else []
        case inspect.UnionType():
            return [found for each in kind.types for found in _strings(each, path, must)]
        case inspect.ListType():
            return _strings(kind.item_type, path, None)
        case inspect.DictType():
            return _strings(kind.key_type, path, None) + _strings(kind.value_type, path, None)
        case inspect.StructType():
            return [found for each in kind.fields for found in _strings(each.type, f"{path}.{each.encode_name}", None)]
    return []


def test_the_nearest_name_ignores_case_and_dashes_and_needs_some_likeness() -> None:
    assert nearest("Linux_Large", ["linux", "linux-large"]) == "linux-large"
    assert nearest("zzz", ["linux"]) is None


def test_the_nearest_id_differs_in_one_or_two_characters_of_its_random_part() -> None:
    assert nearest_id("c-1a2b3c4d5e6f7a8c", ["c-1a2b3c4d5e6f7a8b", "c-ffffffffffffffff"]) == "c-1a2b3c4d5e6f7a8b"
    assert nearest_id("c-1a2b3c4d5e6f7a8c", ["c-8f01c2b6de94a357"]) is None
    assert nearest_id("w-notebook-large-c6x26a0", ["w-notebook-large-c6x26a08"]) == "w-notebook-large-c6x26a08"
    assert nearest_id("w-notebook-large-c6x26a08", ["w-notebook-large-q91zk44p"]) is None  # another worker of the pool
