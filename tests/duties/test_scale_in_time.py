"""A pool that follows `scale`, pass by pass: it reaches its size from any start, and stays there."""

from clockwork_pool import STEP, Model, pool, some
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.duties.scale import COOLDOWN

PASSES = 400  # 800 s, which is enough for about twenty-five steps down
LIVES = settings(deadline=None, max_examples=50)
UPTO = st.integers(0, 8)

# The defaults of the schema.
BRAKE_LIMIT, BRAKE_SHARE, BRAKE_SECONDS = 50, 0.25, 600.0


def settled(model: Model) -> int:
    """Returns how many free workers there should be: the target, if max allows it beside the busy ones."""
    target = model.pool.spec.warm + (1 if model.blocked else 0)
    return max(0, min(target, model.pool.spec.max - model.count("held")))


@LIVES
@given(warm=UPTO, room=UPTO, current=UPTO, starting=UPTO, held=UPTO, retiring=UPTO, blocked=st.integers(0, 1))
def test_from_any_start_a_pool_comes_to_its_size_and_stays(
    warm: int, room: int, current: int, starting: int, held: int, retiring: int, blocked: int
) -> None:
    workers = [*some("warm", current), *some("spawning", starting), *some("held", held), *some("retiring", retiring)]
    model = Model(pool(warm=warm, max=warm + room), workers, blocked)
    for _ in range(PASSES):
        model.step()
    assert model.free == settled(model)
    assert model.count("held") == held
    for _ in range(int(2 * COOLDOWN / STEP)):
        assert model.step() == [], "it wavers although nothing changes"


@LIVES
@given(warm=st.integers(1, 8), extra=UPTO, current=UPTO, share=st.sampled_from(["25%", "50%", 1, 3]))
def test_a_rollout_replaces_every_old_worker_and_keeps_enough_ready(
    warm: int, extra: int, current: int, share: int | str
) -> None:
    its_pool = pool(warm=warm, max=warm + extra, rollout={"maxUnavailable": share})
    old = max(0, warm - current)
    model = Model(its_pool, [*some("warm", min(current, warm)), *some("warm", old, current=False)])
    least = warm - its_pool.spec.unavailable(warm)
    for _ in range(PASSES):
        model.step()
        assert model.count("warm") >= least
    assert model.outdated == 0
    assert model.count("warm") == warm


@LIVES
@given(warm=st.integers(1, 6), held=UPTO, old=st.integers(1, 6), current=UPTO, lowered=UPTO)
def test_old_workers_go_however_full_the_pool_is(warm: int, held: int, old: int, current: int, lowered: int) -> None:
    model = Model(
        pool(warm=warm, max=warm + lowered),
        [*some("held", held), *some("warm", old, current=False), *some("warm", current)],
    )
    for _ in range(PASSES):
        model.step()
    assert model.outdated == 0, "workers of an old revision stay for as long as nothing else changes"
    assert len(model.workers) <= max(model.pool.spec.max, held)


@LIVES
@given(warm=st.integers(1, 6), starting=st.integers(1, 8))
def test_workers_that_never_start_do_not_cost_the_ready_ones(warm: int, starting: int) -> None:
    """The pods of a burst stay pending while its demand ends. Afterwards there are as many ready workers as before."""
    model = Model(pool(warm=warm, max=30), [*some("warm", warm), *some("spawning", starting)], starts=False)
    for _ in range(PASSES):
        model.step()
    assert model.count("warm") >= warm


@LIVES
@given(warm=UPTO, current=UPTO)
def test_a_failing_template_does_not_fill_the_cluster(warm: int, current: int) -> None:
    model = Model(pool(warm=warm, max=16), some("warm", min(current, warm)), starts=False)
    for _ in range(50):
        model.step()
        assert model.count("spawning") <= 4


def test_an_ordinary_step_down_does_not_trip_the_brake() -> None:
    """A user lowers `warm` in the evening. The brake must not trip, because it would also stop the ending of leases until a
    person releases it.
    """
    model = Model(pool(warm=10, max=300), some("warm", 200))
    alive = len(model.workers)
    for _ in range(int(BRAKE_SECONDS / STEP)):
        model.step()
        lately = [at for at in model.counted if at > model.now - BRAKE_SECONDS]
        assert len(lately) <= max(BRAKE_LIMIT, BRAKE_SHARE * alive)
