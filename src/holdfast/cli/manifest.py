"""Reads manifests: YAML documents of known kinds. A wrong file is refused as a whole, with the line, the path and the reason.

All documents are checked against the server's types before the first one is sent, so that a mistake in the last document
changes nothing. YAML is read as version 1.2: `mode: off` is a string, because only true and false are booleans.
"""

import re
from collections.abc import Iterator
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
    """Returns all documents of the text. Raises WrongManifest if any of them is refused."""
    found: list[Manifest] = []
    try:
        for node, document in _documents(text):
            if document is None:
                continue  # an empty document between two separators
            try:
                manifest = _manifest(document)
            except _At as wrong:
                line = _line(node, wrong.path)
                raise WrongManifest(f"{file}:{line}: {wrong.path or 'document'}: {wrong.reason}") from None
            if any(manifest.kind == other.kind and manifest.name == other.name for other in found):
                raise WrongManifest(f"{file}:{_line(node, 'metadata.name')}: {manifest.kind} {manifest.name!r} appears twice")
            found.append(manifest)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise WrongManifest(f"{file}:{line}: not YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise WrongManifest(f"{file}: not YAML: {error}") from None
    if not found:
        raise WrongManifest(f"{file}: holds no document")
    return found


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


def _manifest(document: Any) -> Manifest:
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
    return Manifest(kind=kind, name=metadata["name"], spec=spec)


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
