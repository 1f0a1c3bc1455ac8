"""Writes one thing for people, one line per field: yes and no, times of this machine, and the line that reaches a worker."""

import json
import shlex
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from .show import cell, lasting
from .times import ago, local, parsed

WIDTH = 13  # characters of the column with the names of the fields


def described(thing: Mapping[str, Any]) -> list[str]:
    """Returns a line for each field that has a value."""
    return [f"{name + ':':<{WIDTH}} {_value(name, value)}" for name, value in thing.items() if value not in (None, "", {}, [])]


def ways_in(claim: Mapping[str, Any]) -> list[str]:
    """Returns a command that reaches the claim's worker, and an address for a browser, or nothing if it serves no port."""
    endpoint, credential = claim.get("endpoint"), claim.get("credential")
    if not endpoint or not credential:
        return []
    return [
        f"{'try:':<{WIDTH}} curl -H {shlex.quote(f'Authorization: Bearer {credential}')} {shlex.quote(endpoint)}",
        f"{'browser:':<{WIDTH}} {_for_browser(endpoint, claim['id'])}/?holdfast_credential={quote(credential)}",
    ]


def _for_browser(endpoint: str, claim_id: str) -> str:
    """Returns the endpoint with a name of its own on this machine. A browser sends cookies of 127.0.0.1 to every port of it, but
    those of c-1.localhost to this session only. Browsers resolve such names to loopback by themselves."""
    return endpoint.replace("//127.0.0.1:", f"//{claim_id}.localhost:", 1)


def _value(name: str, value: Any) -> str:
    if name == "timings" and isinstance(value, dict):
        return ", ".join(f"{step.replace('_', '-')} {lasting(took)}" for step, took in value.items() if took is not None)
    if name.endswith(("_at", "_until")) and parsed(value) is not None:
        return f"{local(value)} ({ago(value)})"
    return json.dumps(value) if isinstance(value, dict | list) else cell(value)
