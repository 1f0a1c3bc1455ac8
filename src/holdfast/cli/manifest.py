"""Reads manifests: YAML documents of known kinds. A wrong file is refused as a whole, with the line, the path and the reason.

All documents are checked against the server's types before the first one is sent, so that a mistake in the last document
changes nothing. YAML is read as version 1.2: `mode: off` is a string, because only true and false are booleans.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import yaml

from holdfast.model.pool import Name, PoolSpec, problems
from holdfast.model.tenant import TenantName, TenantSpec

API_VERSION = "holdfast.dev/v1alpha1"


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
    """A manifest is refused. The message has the line, the path and the reason."""


class _Loader(yaml.SafeLoader):
    pass


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in known if tag not in ("tag:yaml.org,2002:bool", "tag:yaml.org,2002:timestamp")]
    for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|false|False)$"), list("tTfF"))


def read(text: str, file: str) -> list[Manifest]:
    """Returns all documents of the text. Raises WrongManifest if any of them is refused, with one line per refused document."""
    found: list[Manifest] = []
    wrong: list[str] = []
    try:
        for node, document in _documents(text):
            if document is None:
                continue  # an empty document between two separators
            place = Place(file, node)
            try:
                found.append(_manifest(document, place))
            except _At as refused:
                wrong.append(f"{place.of(refused.path)}: {refused.path or 'document'}: {refused.reason}")
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


class _At(Exception):
    def __init__(self, path: str, reason: str) -> None:
        self.path, self.reason = path, reason


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


def _manifest(document: Any, place: Place) -> Manifest:
    if not isinstance(document, dict):
        raise _At("", "expected a mapping with apiVersion, kind, metadata and spec")
    kind = document.get("kind")
    if kind not in ("WorkerPool", "Tenant"):
        raise _At("kind", "missing" if kind is None else f"unknown kind {kind!r}; known: WorkerPool, Tenant")
    for field in document:
        if field not in ("apiVersion", "kind", "metadata", "spec"):
            raise _At(str(field), "unknown field")
    version = document.get("apiVersion")
    if version != API_VERSION:
        raise _At("apiVersion", f"expected {API_VERSION}" + ("" if version is None else f", not {version!r}"))
    metadata = document.get("metadata")
    if not isinstance(metadata, dict) or "name" not in metadata:
        raise _At("metadata.name", "missing")
    for field in metadata:
        if field != "name":
            raise _At(f"metadata.{field}", "unknown field")
    spec = document.get("spec") or {}
    if kind == "WorkerPool":
        _convert(metadata["name"], Name, "metadata.name")
        for problem in problems(_convert(spec, PoolSpec, "spec")):
            raise _At(f"spec.{problem.field}", problem.reason)
    else:
        _convert(metadata["name"], TenantName, "metadata.name")
        _convert(spec, TenantSpec, "spec")
    return Manifest(kind=kind, name=metadata["name"], spec=spec, place=place)


def _convert(value: Any, kind: Any, path: str) -> Any:
    """Converts a value. Raises _At with msgspec's reason, and with the path as users write it."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        reason, _, where = str(error).partition(" - at ")
        inner = where.strip("`").removeprefix("$").removeprefix(".")
        path = f"{path}.{inner}" if inner and not inner.startswith("[") else path + inner
        if unknown := re.fullmatch(r"Object contains unknown field `(.+)`", reason):
            raise _At(f"{path}.{unknown[1]}", "unknown field") from None
        raise _At(path, reason.replace("`", "")) from None


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
