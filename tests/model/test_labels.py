"""A filter of labels is read as users write it, and a mistake in it is explained."""

import re

import pytest

from holdfast.model.label import NAME, VALUE, LabelFilter, parse_filter


def test_a_filter_names_labels_with_and_without_values() -> None:
    assert parse_filter("team=x,ci") == LabelFilter({"team": "x"}, ("ci",))
    assert parse_filter("ci") == LabelFilter({}, ("ci",))
    assert parse_filter("ci=") == LabelFilter({"ci": ""}, ())
    assert parse_filter("ci=1,ci") == LabelFilter({"ci": "1"}, ("ci",))
    assert parse_filter("a=1,b=2,a=1") == LabelFilter({"a": "1", "b": "2"}, ())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is not the name of a label"),
        ("team=x,", "is not the name of a label"),
        ("te am=x", "is not the name of a label"),
        ("team=x=y", "is not the value of a label"),
        ("team=a b", "is not the value of a label"),
        ("team=x,team=y", "cannot have two values"),
    ],
)
def test_a_filter_that_cannot_be_meant_is_explained(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_filter(text)


@pytest.mark.parametrize("name", ["a", "team", "example.com/team", "a" * 63, "0-_./9"])
def test_names_of_labels(name: str) -> None:
    assert re.fullmatch(NAME, name)


@pytest.mark.parametrize("name", ["", "-a", "a-", "/a", "a" * 64, "a b", "a=b", "a,b", "a\n", "ä"])
def test_names_that_are_refused(name: str) -> None:
    assert not re.fullmatch(NAME, name)


@pytest.mark.parametrize("value", ["", "x", "feature/login", "joe@example.com", "v1.2.3+4", "10:30", "a" * 63])
def test_values_of_labels(value: str) -> None:
    assert re.fullmatch(VALUE, value)


@pytest.mark.parametrize("value", ["a" * 64, "a b", "a,b", "a=b", "a\n", "ä"])
def test_values_that_are_refused(value: str) -> None:
    assert not re.fullmatch(VALUE, value)
