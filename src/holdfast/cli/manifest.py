"""Reads manifests: YAML documents of known kinds. A wrong file is refused as a whole, with the line, the path and the reason.

All documents are checked against the server's types before the first one is sent, so that a mistake in the last document
changes nothing. YAML is read as version 1.2: `mode: off` is a string, because only true and false are booleans.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import yaml

from holdfast.model.mistakes import mistakes
from holdfast.model.nearest import suggest
from holdfast.model.pool import FieldProblem, Name, PoolSpec, problems
from holdfast.model.tenant import TenantName, TenantSpec

API_VERSION = "holdfast.dev/v1alpha1"
UNKNOWN = "is not a field of this object"
FIELDS = ("apiVersion", "kind", "metadata", "spec")
KINDS = {"WorkerPool": (Name, PoolSpec), "Tenant": (TenantName, TenantSpec)}  # the types of the name and of the spec


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    kind: str  # WorkerPool | Tenant
    name: str
    spec: dict[str, Any]  # as written; the server fills in the defaults
    place: "Place"


class Place(msgspec.Struct, frozen=True):
    """Where a manifest is written."""

    file: str
    node: Any  # the YAML node of the document

    def of(self, path: str) -> str:
        """Returns the file and the line of a field, such as `pools.yaml:7`."""
        return f"{self.file}:{_line(self.node, path)}"


class WrongManifest(Exception):
    """Manifests are refused. The message has a line per mistake, with the file's line, the path and the reason."""


class _Loader(yaml.SafeLoader):
    pass


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in known if tag not in ("tag:yaml.org,2002:bool", "tag:yaml.org,2002:timestamp")]
    for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|false|False)$"), list("tTfF"))


def read(text: str, file: str) -> list[Manifest]:
    """Returns all documents of the text. Raises WrongManifest with all mistakes, one line each, if any document is refused."""
    found: list[Manifest] = []
    wrong: list[str] = []
    try:
        for node, document in _documents(text):
            if document is None:
                continue  # an empty document between two separators
            place = Place(file, node)
            if mistaken := document_mistakes(document):
                wrong += [f"{place.of(each.field)}: {each.field or 'document'}: {each.reason}" for each in mistaken]
                continue
            name, spec = document["metadata"]["name"], document.get("spec") or {}
            found.append(Manifest(kind=document["kind"], name=name, spec=spec, place=place))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise WrongManifest(f"{file}:{line}: not YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise WrongManifest(f"{file}: not YAML: {error}") from None
    if wrong := wrong or doubles(found):
        raise WrongManifest("\n".join(wrong))
    if not found:
        raise WrongManifest(f"{file}: holds no document")
    return found


def doubles(found: Sequence[Manifest]) -> list[str]:
    """Returns a line for each manifest of an object that an earlier manifest is about, with both places."""
    first: dict[tuple[str, str], Manifest] = {}
    lines = []
    for each in found:
        if (other := first.setdefault((each.kind, each.name), each)) is not each:
            here, there = each.place.of("metadata.name"), other.place.of("metadata.name")
            lines.append(f"{here}: {each.kind} {each.name!r} appears twice; it is also in {there}")
    return lines


def _documents(text: str) -> Iterator[tuple[yaml.Node, Any]]:
    loader = _Loader(text)
    try:
        while loader.check_node():
            node = loader.get_node()
            assert node is not None
            _refuse_doubles(node)
            yield node, loader.construct_document(node)
    finally:
        loader.dispose()


def _refuse_doubles(node: yaml.Node) -> None:
    """Refuses a key that appears twice, because YAML would silently keep the last one."""
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _refuse_doubles(item)
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"key {key.value!r} appears twice", problem_mark=key.start_mark)
            if isinstance(key, yaml.ScalarNode):
                seen.add(key.value)
            _refuse_doubles(value)


def document_mistakes(document: Any) -> list[FieldProblem]:
    """Returns all mistakes of one document. Of an unknown kind nothing else is checked, because its fields are not known."""
    if not isinstance(document, dict):
        return [FieldProblem("", "expected a mapping with apiVersion, kind, metadata and spec")]
    kind, version, metadata = document.get("kind"), document.get("apiVersion"), document.get("metadata")
    if kind not in KINDS:
        known = f"; known: {', '.join(KINDS)}"
        return [FieldProblem("kind", "missing" if kind is None else f"unknown kind {kind!r}{suggest(str(kind), KINDS) or known}")]
    found = [FieldProblem(str(field), f"{UNKNOWN}{suggest(str(field), FIELDS)}") for field in document if field not in FIELDS]
    if version != API_VERSION:
        found.append(FieldProblem("apiVersion", f"expected {API_VERSION}" + ("" if version is None else f", not {version!r}")))
    name_type, spec_type = KINDS[kind]
    if not isinstance(metadata, dict) or "name" not in metadata:
        found.append(FieldProblem("metadata.name", "missing"))
    else:
        found += [FieldProblem(f"metadata.{field}", UNKNOWN) for field in metadata if field != "name"]
        found += _mistakes(metadata["name"], name_type, "metadata.name")
    return found + _mistakes(document.get("spec") or {}, spec_type, "spec")


def _mistakes(value: Any, kind: Any, path: str) -> list[FieldProblem]:
    """Returns the mistakes of a value of this type, with the path as users write it."""
    try:
        converted = msgspec.convert(value, kind)
        found = problems(converted) if isinstance(converted, PoolSpec) else []
    except msgspec.ValidationError as error:
        found = mistakes(value, kind, error)
    return [FieldProblem(f"{path}.{each.field}".rstrip("."), each.reason) for each in found]


def _line(node: yaml.Node, path: str) -> int:
    """Returns the line of the deepest part of the path that exists."""
    line = node.start_mark.line
    for part in re.findall(r"[^.\[\]]+", path):
        if isinstance(node, yaml.SequenceNode) and part.isdigit() and int(part) < len(node.value):
            node = node.value[int(part)]
            line = node.start_mark.line
            continue
        inner = [(key, value) for key, value in node.value if key.value == part] if isinstance(node, yaml.MappingNode) else []
        if not inner:
            break
        line, node = inner[0][0].start_mark.line, inner[0][1]
    return line + 1
