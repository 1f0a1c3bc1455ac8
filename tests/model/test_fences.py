"""A fence is one integer with the epoch in its high part, and JSON keeps it exactly."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.model.claim import FENCE_BITS, epoch_of, fence_of

EPOCHS = st.integers(1, 2**13 - 1)
NUMBERS = st.integers(1, 2**FENCE_BITS - 1)


@settings(deadline=None, max_examples=200)
@given(EPOCHS, NUMBERS)
def test_a_fence_survives_json_readers_that_know_only_doubles(epoch: int, number: int) -> None:
    fence = fence_of(epoch, number)
    assert 0 < fence < 2**53
    assert int(float(fence)) == fence
    assert msgspec.json.decode(msgspec.json.encode(fence)) == fence
    assert epoch_of(fence) == epoch


@settings(deadline=None, max_examples=200)
@given(st.tuples(EPOCHS, NUMBERS), st.tuples(EPOCHS, NUMBERS))
def test_the_epoch_counts_before_the_number(one: tuple[int, int], other: tuple[int, int]) -> None:
    assert (fence_of(*one) < fence_of(*other)) == (one < other)
    assert (fence_of(*one) == fence_of(*other)) == (one == other)


def test_the_greatest_fence_of_an_epoch_is_below_the_first_of_the_next() -> None:
    assert fence_of(7, 2**FENCE_BITS - 1) < fence_of(8, 1)
    assert fence_of(2**13 - 1, 2**FENCE_BITS - 1) == 2**53 - 1


@pytest.mark.parametrize(("epoch", "number"), [(0, 1), (-1, 1), (2**13, 1), (1, 0), (1, -1), (1, 2**FENCE_BITS)])
def test_what_does_not_fit_is_impossible(epoch: int, number: int) -> None:
    with pytest.raises(AssertionError):
        fence_of(epoch, number)
