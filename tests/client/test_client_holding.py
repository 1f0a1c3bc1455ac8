"""The client renews a worker while it is held, releases it at the end, and raises LeaseLost if the worker is taken away."""

import asyncio
import threading
from contextlib import suppress

import pytest
from fake_holdfast import TOKEN, FakeHoldfast, lose_answer, unavailable

from holdfast.client import Claim, ClaimEnded, Client, LeaseLost, claim, sync


def hold(server: FakeHoldfast, **options: str) -> claim:
    return claim("notebook", url=server.urls, token=TOKEN, **options)  # type: ignore[arg-type]


async def ended(server: FakeHoldfast) -> None:
    """Ends the claim on the server, so that the next renewal fails."""
    await asyncio.to_thread(server.change, "c-1", state="ended", outcome="expired", reason="its lease ran out")


async def test_a_worker_is_held_and_released(server: FakeHoldfast) -> None:
    async with hold(server, tenant="acme") as worker:
        assert (worker.id, worker.claim_id, worker.fence, worker.protected) == ("w-1", "c-1", 101, True)
        assert worker.headers == {"Authorization": "Bearer credential-1"}
        assert "credential-1" not in repr(worker)
        assert server.claims["c-1"]["state"] == "active"
    assert server.claims["c-1"]["outcome"] == "released"
    assert server.bodies["c-1"]["tenant"] == "acme"


async def test_it_waits_until_it_is_served(server: FakeHoldfast) -> None:
    server.serves = False

    async def serve() -> None:
        await asyncio.to_thread(server.until, lambda _: server.asked("GET", "/claims/c-1"))
        server.change("c-1", **server.active(1, leased=True))

    serving = asyncio.create_task(serve())
    async with hold(server) as worker:
        await serving
        assert worker.id == "w-1"


async def test_the_lease_is_renewed_through_an_outage(server: FakeHoldfast) -> None:
    server.lease = 1.0
    server.fail_next("POST", "/renew", lose_answer, unavailable(0), lose_answer)

    async with hold(server):
        await asyncio.to_thread(server.until, lambda _: len(server.asked("POST", "/renew")) >= 6)
    assert server.claims["c-1"]["outcome"] == "released"


async def test_a_lost_lease_cancels_the_body_and_raises(server: FakeHoldfast) -> None:
    server.lease = 1.0
    cleaned: list[str] = []
    with pytest.raises(LeaseLost, match="c-1 is lost"):  # noqa: PT012
        async with hold(server):
            await ended(server)
            try:
                await asyncio.Event().wait()
            finally:
                cleaned.append("the body's own clean-up ran")
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0  # the cancellation of the body was undone
    await asyncio.sleep(0)
    assert cleaned
    assert server.asked("POST", "/release") == []


async def test_a_body_that_swallows_the_cancellation_still_gets_lease_lost(server: FakeHoldfast) -> None:
    server.lease = 1.0

    with pytest.raises(LeaseLost):  # noqa: PT012
        async with hold(server):
            await ended(server)
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()


async def test_a_cancellation_from_outside_stays_one_and_releases(server: FakeHoldfast) -> None:
    inside = asyncio.Event()

    async def body() -> None:
        async with hold(server):
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(body())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert server.claims["c-1"]["outcome"] == "released"


async def test_a_timeout_around_the_block_works_and_leaves_no_claim(server: FakeHoldfast) -> None:
    server.serves = False

    async def run_out(limit: asyncio.Timeout) -> None:
        await asyncio.to_thread(server.until, lambda _: server.claims)  # by now the client waits for its worker
        limit.reschedule(asyncio.get_running_loop().time())

    with pytest.raises(TimeoutError):  # noqa: PT012
        async with asyncio.timeout(60) as limit:
            running_out = asyncio.create_task(run_out(limit))
            async with hold(server):
                raise AssertionError("it was never served")
    await running_out
    assert server.claims["c-1"]["outcome"] == "cancelled"


async def test_a_loss_that_is_noticed_at_the_release_is_reported(server: FakeHoldfast) -> None:
    with pytest.raises(LeaseLost, match="ended as expired"):
        async with hold(server):
            await ended(server)


async def test_a_release_that_could_not_be_stored_is_noted_on_the_worker(server: FakeHoldfast) -> None:
    server.lease = 1.0
    server.fail_next("POST", "/release", unavailable(60), unavailable(60))
    async with hold(server) as worker:
        first = worker.lease_until
        await asyncio.to_thread(server.until, lambda _: len(server.asked("POST", "/renew")) >= 2)
        assert worker.lease_until != first  # the second renewal was sent after the first was answered
    assert worker.unreleased == "the database is away"
    assert worker.outcome is None
    assert worker.lease_until is not None
    assert server.claims["c-1"]["state"] == "active"
    async with hold(server) as after:
        pass
    assert (after.unreleased, after.outcome) == (None, "released")


async def test_an_error_of_the_body_is_not_hidden(server: FakeHoldfast) -> None:
    with pytest.raises(KeyError, match="mine"):
        async with hold(server):
            raise KeyError("mine")
    assert server.claims["c-1"]["outcome"] == "released"


async def test_a_refused_claim_shows_why(server: FakeHoldfast) -> None:
    server.ends_at_once = {"outcome": "refused", "reason": "no worker within 1h"}

    with pytest.raises(ClaimEnded, match="refused: no worker within 1h"):
        async with hold(server):
            raise AssertionError("it was never served")


# A job's claim, which has no lease


def run_job(server: FakeHoldfast, client: Client | None = None, **options: str) -> claim:
    return claim("linux", url=server.urls, token=TOKEN, client=client, command=["make"], **options)  # type: ignore[arg-type]


async def test_whoever_holds_a_job_hears_at_once_that_it_completed(server: FakeHoldfast) -> None:
    async with run_job(server) as worker:
        await asyncio.to_thread(server.change, "c-1", state="ended", outcome="completed", exit_code=0)
        await asyncio.wait_for(worker.ended.wait(), 10)
        assert worker.outcome == "completed"  # and the block goes on: it may still read the job's output
    assert worker.unreleased is None
    assert server.asked("POST", "/release") == []


async def test_a_job_that_was_cancelled_interrupts_the_block_of_its_holder(server: FakeHoldfast) -> None:
    with pytest.raises(LeaseLost, match="c-1 is lost: it ended as cancelled: by an operator"):  # noqa: PT012
        async with run_job(server) as worker:
            await asyncio.to_thread(server.change, "c-1", state="ended", outcome="cancelled", reason="by an operator")
            await asyncio.wait_for(asyncio.Event().wait(), 10)
    assert worker.outcome == "cancelled"
    assert worker.ended.is_set()


async def test_the_end_of_a_job_is_heard_after_an_outage(server: FakeHoldfast) -> None:
    server.fail_next("GET", "/claims/c-1", *[unavailable(60)] * 4)
    async with Client(server.urls, TOKEN, patience=0.0) as client, run_job(server, client) as worker:
        await asyncio.to_thread(server.change, "c-1", state="ended", outcome="failed", exit_code=2)
        await asyncio.wait_for(worker.ended.wait(), 30)
        assert worker.outcome == "failed"


async def test_leaving_the_block_of_a_running_job_releases_it(server: FakeHoldfast) -> None:
    async with run_job(server) as worker:
        assert not worker.ended.is_set()
    assert server.claims["c-1"]["outcome"] == worker.outcome == "released"
    assert worker.ended.is_set()


async def test_a_job_with_a_lease_that_completes_is_not_called_lost(server: FakeHoldfast) -> None:
    server.lease = 1.0
    async with hold(server) as worker:
        await asyncio.to_thread(server.change, "c-1", state="ended", outcome="completed", exit_code=0)
        await asyncio.wait_for(worker.ended.wait(), 10)
    assert worker.outcome == "completed"


async def test_after_a_lost_lease_the_worker_shows_the_outcome(server: FakeHoldfast) -> None:
    server.lease = 1.0
    with pytest.raises(LeaseLost):  # noqa: PT012
        async with hold(server) as worker:
            await ended(server)
            await asyncio.Event().wait()
    assert worker.outcome == "expired"


async def test_a_client_can_be_shared(server: FakeHoldfast) -> None:
    async with Client(server.urls, TOKEN) as client:
        async with claim("notebook", client=client), claim("notebook", client=client):
            pass
        await client.list_pools()
    assert {each["outcome"] for each in server.claims.values()} == {"released"}


# Without an event loop


def test_the_sync_client_holds_and_releases(server: FakeHoldfast) -> None:
    with sync.claim("notebook", url=server.urls, token=TOKEN) as worker:
        worker.check()
        assert worker.headers == {"Authorization": "Bearer credential-1"}
        assert not worker.lost.is_set()
    assert server.claims["c-1"]["outcome"] == "released"
    assert not [thread for thread in threading.enumerate() if thread.name == "holdfast-client"]


def test_the_sync_client_shows_a_lost_lease_in_three_ways(server: FakeHoldfast) -> None:
    server.lease = 1.0

    def hold_until_lost() -> None:
        with sync.claim("notebook", url=server.urls, token=TOKEN) as worker:
            server.change("c-1", state="ended", outcome="expired", reason="")
            assert worker.lost.wait(300)
            assert worker.outcome == "expired"
            with pytest.raises(LeaseLost):
                worker.check()

    with pytest.raises(LeaseLost):
        hold_until_lost()


def test_the_sync_client_shows_that_a_job_has_ended(server: FakeHoldfast) -> None:
    with sync.claim("linux", url=server.urls, token=TOKEN, command=["make"]) as worker:
        server.change("c-1", state="ended", outcome="completed", exit_code=0)
        assert worker.ended.wait(300)
        worker.check()  # a job that completed was not taken from its holder
    assert worker.outcome == "completed"


def test_the_sync_client_has_the_same_methods(server: FakeHoldfast) -> None:
    server.first_output, server.ends_at_once = b"hello", {"outcome": "completed", "exit_code": 0}
    with sync.SyncClient(server.urls, TOKEN) as client:
        done = client.claim("linux", command=["echo", "hello"])
        assert b"".join(client.output(done.id)) == b"hello"
        assert client.get_claim(done.id).exit_code == 0


def test_the_sync_client_loops_over_all_pages_and_releases_what_claim_returned(server: FakeHoldfast) -> None:
    with sync.SyncClient(server.urls, TOKEN) as client:
        made = [client.claim("linux") for _ in range(5)]
        page = client.list_claims(limit=2)
        assert (len(page.items), page.next) == (2, "2")
        assert [claim.id for claim in page] == [claim.id for claim in reversed(made)]
        assert client.release(made[0]).outcome == "released"


@pytest.mark.parametrize("blocking", [False, True])
async def test_a_program_that_waits_for_a_worker_reads_why_it_waits(server: FakeHoldfast, blocking: bool) -> None:
    server.serves = False
    read: list[str | None] = []

    def note(waiting: Claim) -> None:
        read.append(waiting.reason)
        if len(read) == 1:
            server.change("c-1", reason="activation failed 1 of 5 times")
        elif "activation failed 1 of 5 times" in read:
            threading.Thread(target=server.change, args=("c-1",), kwargs=server.active(1, leased=True)).start()

    def hold_blocking() -> str:
        with sync.claim("notebook", url=server.urls, token=TOKEN, news=note) as worker:
            return worker.id

    if blocking:
        assert await asyncio.to_thread(hold_blocking) == "w-1"
    else:
        async with claim("notebook", url=server.urls, token=TOKEN, news=note) as worker:
            assert worker.id == "w-1"
    assert read[:2] == ["0 of 8 workers free; 8 held", "activation failed 1 of 5 times"]
