"""The model consists of values: no object can be changed after it was made."""

import dataclasses
import inspect
from types import ModuleType
from typing import Any

import msgspec
import pytest

from holdfast.model import claim, effect, machine, pod, pool, tenant, worker

MODULES: list[ModuleType] = [claim, machine, effect, pod, pool, tenant, worker]
KINDS = [
    kind
    for module in MODULES
    for _, kind in inspect.getmembers(module, inspect.isclass)
    if kind.__module__ == module.__name__ and (issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind))
]
WRITTEN = [kind for kind in KINDS if kind.__name__.endswith("Spec")]
ROWS = [claim.Claim, pod.Pod, pod.Heartbeat, pool.Pool, tenant.Tenant, tenant.TenantSpec, worker.Worker]


def test_there_are_values_to_look_at() -> None:
    assert len(KINDS) >= 23
    assert len(WRITTEN) >= 11


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_value_is_frozen(kind: Any) -> None:
    if dataclasses.is_dataclass(kind):
        assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    else:
        assert kind.__struct_config__.frozen


@pytest.mark.parametrize("kind", ROWS, ids=lambda kind: kind.__name__)
def test_a_row_with_many_fields_is_made_by_their_names(kind: Any) -> None:
    """Two fields of the same type that are swapped by position would not be noticed."""
    with pytest.raises(TypeError, match="positional"):
        kind(None)


@pytest.mark.parametrize("kind", WRITTEN, ids=lambda kind: kind.__name__)
def test_a_field_that_does_not_exist_is_refused_in_what_users_write(kind: Any) -> None:
    """A misspelled limit that is ignored would not limit anything."""
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        msgspec.convert({"colour": "red"}, kind)
