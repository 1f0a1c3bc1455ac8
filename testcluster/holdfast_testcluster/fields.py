"""Computes what a container gets from its pod: fields, environment variables, and `$(NAME)` in its command."""

import re
from collections.abc import Mapping

from holdfast_testcluster.status import Object

REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_.-][A-Za-z0-9_.-]*)\)")
KEYED = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]")


class FieldProblem(Exception):
    pass


def field_of(pod: Object, path: str, address: str) -> str:
    """Returns the value of a `fieldRef`."""
    meta, spec = pod["metadata"], pod["spec"]
    known = {
        "metadata.name": meta["name"],
        "metadata.namespace": meta["namespace"],
        "metadata.uid": meta["uid"],
        "spec.nodeName": spec.get("nodeName", ""),
        "spec.serviceAccountName": spec.get("serviceAccountName", "default"),
        "status.podIP": address,
        "status.podIPs": address,
        "status.hostIP": "127.0.0.1",
        "status.hostIPs": "127.0.0.1",
    }
    if path in known:
        return str(known[path])
    if keyed := KEYED.fullmatch(path):
        return str((meta.get(keyed[1]) or {}).get(keyed[2], ""))
    if path in ("metadata.labels", "metadata.annotations"):  # these exist in volumes only
        values = meta.get(path.removeprefix("metadata.")) or {}
        return "\n".join(f'{key}="{value}"' for key, value in sorted(values.items()))
    raise FieldProblem(f"a test kubelet does not know the field {path!r}")


def expand(text: str, env: Mapping[str, str]) -> str:
    """Replaces `$(NAME)` by the variable if it exists, otherwise leaves it as it is. `$$` becomes `$`."""

    def replaced(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else env.get(match[1], match[0])

    return REFERENCE.sub(replaced, text)
