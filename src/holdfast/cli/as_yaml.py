"""Prints pools and tenants as YAML that `apply` takes back."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import yaml

from holdfast.model.pool import PoolSpec
from holdfast.model.shown import shown_lines
from holdfast.model.tenant import TenantSpec

from .manifest import API_VERSION

KINDS = {"pools": "WorkerPool", "tenants": "Tenant"}
DEFAULTS: dict[str, dict[str, Any]] = {
    "WorkerPool": msgspec.to_builtins(PoolSpec()),
    "Tenant": msgspec.to_builtins(TenantSpec()),
}


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True  # two equal lists are written twice, because people do not expect `*id001`

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)  # a list is indented below its name


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)
# PyYAML takes 1e3 for a string and would write it without quotes, but other programs read it as a number.
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+[eE][-+]?[0-9]+$"), list("-+0123456789"))


def document(kind: str, name: str, spec: Mapping[str, Any]) -> str:
    """Returns one YAML document."""
    content = {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": dict(spec)}
    found = str(yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120))
    if shown_lines(found) == found:
        return found
    # Without Unicode, every character that would change the screen is written as an escape, which YAML reads back.
    return str(yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=False, width=120))


def documents(noun: str, rows: Iterable[Mapping[str, Any]], *, listed: bool) -> str:
    """Returns the YAML of the server's pools or tenants, without the values that are defaults anyway. A list leaves out what
    `apply` would not take back as it is: pools that are being deleted, and tenants that need no entry."""
    kind = KINDS[noun]
    found = []
    for row in rows:
        spec = without_defaults(row["spec"], DEFAULTS[kind])
        if listed and (row.get("state", "live") != "live" or (noun == "tenants" and not spec)):
            continue
        found.append(document(kind, row["name"], spec))
    return "---\n".join(found)


def without_defaults(value: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields that differ from their defaults. Fields that only a newer server knows are kept."""
    kept: dict[str, Any] = {}
    for name, each in value.items():
        if name in defaults and each == defaults[name]:
            continue
        if isinstance(each, Mapping) and isinstance(defaults.get(name), Mapping):
            each = without_defaults(each, defaults[name])
        kept[name] = each
    return kept
