"""Finds all mistakes of a value that its type refuses, each with the field and with a reason for people.

msgspec stops at the first mistake, and its messages show regular expressions. So a value that msgspec has refused is compared
with its type again here. A reason contains names and choices, never the value, because the value may be a secret.
"""

import re
from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from typing import Annotated, Any

import msgspec
from msgspec import inspect

from .nearest import suggest
from .pool import FieldProblem

MOST = 50  # mistakes of one request; somebody who reads these finds the others
# How people name the types of JSON.
NOUNS: dict[type, str] = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    list: "a list",
    dict: "an object",
}

_WHERE = re.compile(r"(?P<reason>.*?)(?: - at (?:`key` in )?`(?P<path>\$[^`]*)`)?", re.DOTALL)


def mistakes(value: Any, kind: Any, error: msgspec.ValidationError, *, lax: bool = False) -> list[FieldProblem]:
    """Returns the mistakes of a value that msgspec refused with `error`, in the order of the value's fields, at most MOST. The
    field of the value itself is ''. With `lax`, numbers and booleans are written as text, as in a query."""
    return list(islice(_Walk(lax).walk(value, inspect.type_info(kind), ""), MOST)) or [reported(error)]


def reported(error: msgspec.ValidationError) -> FieldProblem:
    """Returns the mistake that msgspec reports. It puts the path of the field into its message."""
    match = _WHERE.fullmatch(str(error))
    assert match is not None
    return FieldProblem((match["path"] or "$").removeprefix("$").removeprefix("."), match["reason"])


class _Walk:
    def __init__(self, lax: bool) -> None:
        self._lax = lax

    def walk(self, value: Any, kind: inspect.Type, path: str, must: str | None = None) -> Iterator[FieldProblem]:
        """Yields the mistakes of one value. `must` completes the sentence "it must …" in the words of the type's own author."""
        match kind:
            case inspect.Metadata():
                yield from self.walk(value, kind.type, path, (kind.extra or {}).get("must", must))
            case inspect.UnionType():
                yield from self._union(value, kind, path, must)
            case inspect.StructType():
                yield from self._struct(value, kind, path)
            case inspect.DictType():
                yield from self._dict(value, kind, path)
            case inspect.ListType():
                yield from self._list(value, kind, path)
            case inspect.LiteralType():
                if value not in kind.values or isinstance(value, bool):
                    near = suggest(value, map(str, kind.values)) if isinstance(value, str) and len(kind.values) > 1 else ""
                    yield FieldProblem(path, f"must be {_either([repr(choice) for choice in kind.values])}{near}")
            case _:
                reason = self._plain(value, kind, must)
                if reason is not None:
                    yield FieldProblem(path, reason)

    def _union(self, value: Any, kind: inspect.UnionType, path: str, must: str | None) -> Iterator[FieldProblem]:
        options = [option for option in kind.types if not isinstance(option, inspect.NoneType)]
        by_tag = {option.tag: option for option in options if isinstance(option, inspect.StructType) and option.tag is not None}
        if by_tag and isinstance(value, dict):
            yield from self._tagged(value, by_tag, path)
            return
        if not all(list(self.walk(value, option, path, must)) for option in kind.types):
            return  # one of the options takes it
        fitting = [option for option in options if isinstance(value, _json_type(option))]
        if fitting or len(options) == 1:
            yield from self.walk(value, (fitting or options)[0], path, must)
        else:
            expected = must or f"be {_either(list(dict.fromkeys(NOUNS[_json_type(option)] for option in options)))}"
            yield FieldProblem(path, f"must {expected}, not {_noun(value)}")

    def _tagged(self, value: dict[str, Any], kinds: dict[Any, inspect.StructType], path: str) -> Iterator[FieldProblem]:
        """Yields the mistakes of an object that is of one of several kinds, which one of its fields names."""
        field = next(iter(kinds.values())).tag_field
        assert field is not None
        named = value.get(field)
        if isinstance(named, str) and named in kinds:
            yield from self._struct(value, kinds[named], path)
            return
        near = suggest(named, map(str, kinds)) if isinstance(named, str) else ""
        reason = f"must be {_either([repr(tag) for tag in kinds])}{near}" if field in value else "is required"
        yield FieldProblem(_join(path, field), reason)

    def _struct(self, value: Any, kind: inspect.StructType, path: str) -> Iterator[FieldProblem]:
        if not isinstance(value, dict):
            yield FieldProblem(path, f"must be an object, not {_noun(value)}")
            return
        fields = {field.encode_name: field for field in kind.fields}
        for name, item in value.items():
            if name in fields:
                yield from self.walk(item, fields[name].type, _join(path, name))
            elif kind.forbid_unknown_fields and name != kind.tag_field:
                near = suggest(name, (known for known in fields if known not in value))
                yield FieldProblem(_join(path, name), f"is not a field of this object{near}")
        for name, field in fields.items():
            if field.required and name not in value:
                yield FieldProblem(_join(path, name), "is required")

    def _dict(self, value: Any, kind: inspect.DictType, path: str) -> Iterator[FieldProblem]:
        if not isinstance(value, dict):
            yield FieldProblem(path, f"must be an object, not {_noun(value)}")
            return
        for name, item in value.items():
            wrong = list(self.walk(name, kind.key_type, path))
            for problem in wrong:
                yield FieldProblem(path, f"contains a name that is refused: each name {problem.reason}")
            yield from self.walk(item, kind.value_type, path if wrong else _join(path, name))
        if size := _size(len(value), kind.min_length, kind.max_length, "entries"):
            yield FieldProblem(path, size)

    def _list(self, value: Any, kind: inspect.ListType, path: str) -> Iterator[FieldProblem]:
        if not isinstance(value, list | tuple):
            yield FieldProblem(path, f"must be a list, not {_noun(value)}")
            return
        if size := _size(len(value), kind.min_length, kind.max_length, "items"):
            yield FieldProblem(path, size)
        for number, item in enumerate(value):
            yield from self.walk(item, kind.item_type, f"{path}[{number}]")

    def _plain(self, value: Any, kind: inspect.Type, must: str | None) -> str | None:
        """Returns what is wrong with a value that contains no other values, or None."""
        match kind:
            case inspect.StrType():
                if not isinstance(value, str):
                    return f"must be text, not {_noun(value)}" if must is None else f"must {must}; this is {_noun(value)}"
                if kind.pattern is not None and not re.search(kind.pattern, value):
                    return f"must {must or f'match {kind.pattern}'}"
                return _size(len(value), kind.min_length, kind.max_length, "characters")
            case inspect.IntType() | inspect.FloatType():
                number = self._number(value, int if isinstance(kind, inspect.IntType) else float)
                if number is None:
                    noun = NOUNS[_json_type(kind)]
                    return f"must be {noun}{_range(kind)}" + ("" if self._lax else f", not {_noun(value)}")
                low = (kind.ge is None or number >= kind.ge) and (kind.gt is None or number > kind.gt)
                high = (kind.le is None or number <= kind.le) and (kind.lt is None or number < kind.lt)
                return None if low and high else f"must be{_range(kind)}"
            case inspect.BoolType():
                return None if self._fits(value, bool) else "must be true or false"
            case inspect.BytesType():
                return (
                    None
                    if self._fits(value, Annotated[bytes, msgspec.Meta(max_length=kind.max_length)])
                    else "must be base64 text" + ("" if kind.max_length is None else f" of at most {kind.max_length} bytes")
                )
            case inspect.NoneType():
                return None if value is None else f"must be null, not {_noun(value)}"
            case inspect.DateTimeType():
                return None if self._fits(value, datetime) else f"must {must or 'be a time such as 2026-01-31T12:00:00Z'}"
        return None

    def _number(self, value: Any, kind: type[int] | type[float]) -> float | None:
        return msgspec.convert(value, kind, strict=not self._lax) if self._fits(value, kind) else None

    def _fits(self, value: Any, kind: Any) -> bool:
        try:
            msgspec.convert(value, kind, strict=not self._lax)
        except msgspec.ValidationError:
            return False
        return True


def _json_type(kind: inspect.Type) -> type:
    """Returns the Python type of the JSON values that this type takes."""
    if isinstance(kind, inspect.Metadata):
        return _json_type(kind.type)
    if isinstance(kind, inspect.LiteralType):
        return type(kind.values[0])
    plain: dict[type[inspect.Type], type] = {
        inspect.BoolType: bool,
        inspect.IntType: int,
        inspect.FloatType: float,
        inspect.ListType: list,
        inspect.DictType: dict,
        inspect.StructType: dict,
    }
    return plain.get(type(kind), str)


def _noun(value: Any) -> str:
    if isinstance(value, bool):  # before int, of which bool is a subclass
        return str(value).lower()
    return "null" if value is None else next((noun for kind, noun in NOUNS.items() if isinstance(value, kind)), "this")


def _range(kind: inspect.IntType | inspect.FloatType) -> str:
    """Returns " from 0 to 9", " of at least 1", or nothing if there is no limit."""
    low, high = kind.ge if kind.ge is not None else kind.gt, kind.le if kind.le is not None else kind.lt
    if low is not None and high is not None:
        return f" from {low} to {high if kind.lt is None else f'less than {high}'}"
    if low is not None:
        return f" {'at least' if kind.ge is not None else 'more than'} {low}"
    return "" if high is None else f" {'at most' if kind.le is not None else 'less than'} {high}"


def _size(size: int, least: int | None, most: int | None, what: str) -> str | None:
    if least is not None and size < least:
        return "must not be empty" if least == 1 else f"must have at least {least} {what}"
    if most is not None and size > most:
        return f"must have at most {most} {what}"
    return None


def _either(words: list[str]) -> str:
    return " or ".join(part for part in (", ".join(words[:-1]), words[-1]) if part)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
