"""A session agent's life: serve one claim after another of one tenant, reset in between."""

import asyncio
import signal
from typing import TYPE_CHECKING

from .activation import HookFailed
from .hold import GRACE, Hold, Leave
from .job import file_name
from .log import log
from .memory import remembered
from .messages import Assignment, Registration
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
    served = agent.served = Served(registration.worker, agent.config.folder, registration.output_limit, agent.config.advertise)
    try:
        await served.start()
    except ServeEnded as error:
        await agent.fail(str(error))
    proxy = agent.proxy = Proxy(served.address)
    try:
        port = await proxy.listen(agent.config.bind, agent.config.port)
    except OSError as error:
        await agent.fail(f"cannot listen on {agent.config.bind}:{agent.config.port}: {error.strerror}")
    host = agent.config.advertise
    agent.endpoint = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    claims = asyncio.create_task(_claims(agent, registration, served, proxy))
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


async def _claims(agent: "Agent", registration: Registration, served: Served, proxy: Proxy) -> None:
    held = remembered(agent.config.folder)
    if held is not None and not registration.worker.serve:  # what we had started ourselves has died with us
        await _take_up(agent, held, served, proxy)
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
            if registration.worker.activate:
                await agent.fail("it was activated for a claim that is no longer its own")
            agent.let_go()
            continue
        await _go_on_or_leave(agent, hold, served)


async def _take_up(agent: "Agent", held: Assignment, served: Served, proxy: Proxy) -> None:
    """We were restarted, alone: the worker's container lives on, and its holder waits at our door."""
    hold = agent.take_up(held)
    log("taken up", claim=held.claim, fence=held.fence)
    while (outcome := await agent.acknowledge(hold)) == "stale":
        # It ended, and we shall be told; or it is among lost commits, and our word brings it back.
        await asyncio.wait({hold.ended}, timeout=ASK_AGAIN)
    if outcome == "accepted" and held.credential:
        proxy.open(held.credential)
    await hold.ended
    proxy.close()
    await _go_on_or_leave(agent, hold, served)


async def _go_on_or_leave(agent: "Agent", hold: Hold, served: Served) -> None:
    """After the end of a claim: fit for its tenant's next one, or gone."""
    end = hold.ended.result()
    if end.do == GRACE:
        raise Leave(TERMINATED, end.reason)  # it is still held: let nobody read this as its good end
    agent.let_go()
    if not end.park:
        raise Leave(0, end.reason or "its claim ended")
    agent.reset_fence = hold.assignment.fence  # from now on: a restored database must not take us for new
    agent.say("resetting")
    try:
        await served.reset(hold.assignment.tenant)
    except HookFailed as error:
        await agent.fail(str(error))
