"""Each action of recovery makes its own call of the store, with everything that the plan decided."""

import asyncio
from typing import Any

import pytest

from duties.converge_views import FENCE, pod
from holdfast.model.effect import Done, Skipped, Stale
from holdfast.ports.recovery import Adoption
from holdfast.recovery.actions import Adopt, AdoptFree, BeginRecovery, EndRecovery, handlers
from holdfast.recovery.compare import adopt_free

ADOPTION = Adoption(worker="w-1", uid="u", pool="etl", pool_id="p-1", revision="r1", claim="c-1", tenant="acme", fence=FENCE)


class RecordedRecovery:
    def __init__(self, begun: bool = True) -> None:
        self.begun = begun
        self.calls: list[tuple[Any, ...]] = []

    async def begin_by_fence(self, *about: Any) -> bool:
        self.calls.append(("begin", *about))
        return self.begun

    async def adopt(self, adoption: Adoption) -> Any:
        self.calls.append(("adopt", adoption))
        return Skipped("recovering")

    async def adopt_free(self, *about: Any, spent: bool) -> Any:
        self.calls.append(("adopt_free", *about, spent))
        return Skipped("frozen")

    async def end(self) -> Any:
        self.calls.append(("end",))
        return Stale()


def applied(store: RecordedRecovery, action: Any) -> Any:
    async def apply() -> Any:
        return await handlers(store)[type(action)](action)  # type: ignore[arg-type]

    return asyncio.run(apply())


@pytest.mark.parametrize(("begun", "effect"), [(True, Done()), (False, Stale())])
def test_a_recovery_that_is_in_progress_already_is_not_begun_again(begun: bool, effect: Any) -> None:
    store = RecordedRecovery(begun)
    assert applied(store, BeginRecovery("a pod is ahead", FENCE)) == effect
    assert store.calls == [("begin", "a pod is ahead", FENCE)]


@pytest.mark.parametrize(
    ("action", "call", "effect"),
    [
        (Adopt(ADOPTION), ("adopt", ADOPTION), Skipped("recovering")),
        (AdoptFree("w-1", "u", "p-1", "etl", "r1"), ("adopt_free", "w-1", "u", "p-1", "etl", "r1", False), Skipped("frozen")),
        (adopt_free(pod(), spent=True), ("adopt_free", "w-etl-1", "uid-1", "p-1", "etl", "r1", True), Skipped("frozen")),
        (EndRecovery(), ("end",), Stale()),
    ],
)
def test_an_action_is_one_call_and_its_effect_is_the_stores(action: Any, call: tuple[Any, ...], effect: Any) -> None:
    store = RecordedRecovery()
    assert applied(store, action) == effect
    assert store.calls == [call]
