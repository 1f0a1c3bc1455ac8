"""A session agent's life: serve one claim after another of one tenant, reset in between."""

import asyncio
import signal
from typing import TYPE_CHECKING

from .activation import HookFailed
from .hold import GRACE, NOT_OURS, Hold, Leave
from .job import file_name
from .log import log
from .memory import Memory
from .messages import Registration
from .process import Sink
from .proxy import Proxy
from .session import Served, ServeEnded
from .tasks import first_of, settle

TERMINATED = 128 + signal.SIGTERM
ASK_AGAIN = 5.0  # seconds

if TYPE_CHECKING:
    from .main import Agent


async def serve_sessions(agent: "Agent", registration: Registration) -> None:
    """Ends by raising Leave."""
    registration, taken = await _recall(agent, registration)
    served = agent.served = Served(registration.worker, agent.config.folder, registration.output_limit, agent.config.advertise)
    try:
        await served.start()
    except ServeEnded as error:
        await agent.fail(str(error))
    proxy = agent.proxy = Proxy(served.address)
    if taken is not None and taken.assignment.credential:
        proxy.expect(taken.assignment.credential)  # its holder may be at the door already: it waits until we know
    try:
        port = await proxy.listen(agent.config.bind, agent.config.port)
    except OSError as error:
        await agent.fail(f"cannot listen on {agent.config.bind}:{agent.config.port}: {error.strerror}")
    host = agent.config.advertise
    agent.endpoint = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    claims = asyncio.create_task(_claims(agent, registration, served, proxy, taken))
    dying = asyncio.create_task(served.died())
    try:
        await first_of(claims, dying)
        if claims.done():
            claims.result()
        dying.result()
    except ServeEnded as error:
        await _mourn(agent, proxy, error)
    finally:
        await settle(claims, dying)


async def _mourn(agent: "Agent", proxy: Proxy, error: ServeEnded) -> None:
    """Raises Leave. Once its holder was let in, only the pod's end may say how the claim ended."""
    proxy.close()
    if agent.hold is None:
        await agent.fail(str(error))
    elif not agent.hold.accepted:
        await agent.refuse(agent.hold, str(error))
    raise Leave(error.code, str(error))


async def _claims(agent: "Agent", registration: Registration, served: Served, proxy: Proxy, taken: Hold | None) -> None:
    if taken is not None:
        await _take_up(agent, taken, served, proxy)
    while True:
        hold = await agent.next_hold()
        assignment = hold.assignment
        sink = Sink(agent.config.outputs / file_name(assignment.claim), registration.output_limit)
        served.output_to(sink)
        if assignment.credential:
            proxy.expect(assignment.credential)
        outcome = await agent.hand_over(hold, {"PORT": str(served.address[1])}, sink)
        if outcome == "accepted":
            if assignment.credential:  # without one nobody gets in
                proxy.open(assignment.credential)
            agent.say("running")
            await hold.ended
            proxy.close()
            log("closed", claim=assignment.claim, fence=assignment.fence)
        else:
            proxy.close()
        served.output_to(None)
        if outcome == "stale":
            agent.let_go(reset=False)
            await agent.fail(NOT_OURS)
        await _go_on_or_leave(agent, hold, served)


async def _recall(agent: "Agent", registration: Registration) -> tuple[Registration, Hold | None]:
    """Who stands in front of another container may be restarted alone: then the worker lives on, perhaps with its holder's
    work. The settings of our first start, and what we held."""
    memory = Memory(agent.config.folder)
    if memory.kept is None and registration.worker.serve:
        return registration, None  # what we start ourselves dies with us
    try:
        agent.registration = registration = memory.begin(registration)
    except OSError as error:
        await agent.fail(f"cannot keep what it needs after a restart: {error.strerror}")
    agent.memory, kept = memory, memory.kept
    assert kept is not None
    if not kept.reset:
        await agent.fail("it was restarted before it was reset")
    agent.reset_fence = kept.served
    return registration, agent.take_up(kept.held.assignment()) if kept.held is not None else None


async def _take_up(agent: "Agent", hold: Hold, served: Served, proxy: Proxy) -> None:
    """Our claim of before the restart, and its holder waits at the door."""
    agent.say("running")  # again: from here on with our endpoint
    while (outcome := await agent.acknowledge(hold)) == "stale":
        # It ended, and we shall be told; or it is among lost commits, and our word brings it back.
        await asyncio.wait({hold.ended}, timeout=ASK_AGAIN)
    if outcome == "accepted" and hold.assignment.credential:
        proxy.open(hold.assignment.credential)
    await hold.ended
    proxy.close()
    await _go_on_or_leave(agent, hold, served)


async def _go_on_or_leave(agent: "Agent", hold: Hold, served: Served) -> None:
    """After the end of a claim: fit for its tenant's next one, or gone."""
    end = hold.ended.result()
    if end.do == GRACE:
        raise Leave(TERMINATED, end.reason)  # it is still held: let nobody read this as its good end
    agent.reset_fence = hold.assignment.fence  # from now on: a restored database must not take us for new
    agent.let_go(reset=False)
    if not end.park:
        raise Leave(0, end.reason or "its claim ended")
    agent.say("resetting")
    try:
        await served.reset(hold.assignment.tenant)
    except HookFailed as error:
        await agent.fail(str(error))
    if agent.memory is not None:
        agent.memory.let_go(agent.reset_fence)
