"""The main loop of a session agent: it serves the claims of one tenant, one after another, and resets the worker in between."""

import asyncio
import signal
from typing import TYPE_CHECKING

from .activation import HookFailed
from .hold import GRACE, NOT_OURS, Hold, Leave
from .job import file_name
from .log import log
from .memory import Memory
from .messages import Registration
from .proxy import Proxy
from .session import Served, ServeEnded
from .sink import Sink
from .tasks import first_of, settle

TERMINATED = 128 + signal.SIGTERM
ASK_AGAIN = 5.0  # seconds between two acknowledgements of a claim from before a restart

if TYPE_CHECKING:
    from .main import Agent


async def serve_sessions(agent: "Agent", registration: Registration) -> None:
    """Starts the served process and serves claims. Ends by raising Leave."""
    registration, taken = await _read_memory(agent, registration)
    served = agent.served = Served(
        registration.worker, agent.config.folder, registration.output_limit, agent.config.advertise, agent.words.write
    )
    try:
        await served.start()
    except ServeEnded as error:
        await agent.fail(str(error))
    proxy = agent.proxy = Proxy(served.upstream)
    if taken is not None and taken.assignment.credential:
        proxy.expect(taken.assignment.credential)  # the holder may connect already; its requests wait for the acknowledgement
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
        await _report_served_end(agent, proxy, error)
    finally:
        await settle(claims, dying)


async def _report_served_end(agent: "Agent", proxy: Proxy, error: ServeEnded) -> None:
    """Reports that the served process died, and raises Leave. If the holder already had access, the agent reports nothing,
    because only the pod's end may decide how the claim ended."""
    proxy.close()
    if agent.hold is None:
        await agent.fail(str(error))
    elif not agent.hold.accepted:
        await agent.refuse(agent.hold, str(error), agent.served.tail if agent.served is not None else None)
    raise Leave(error.code, str(error))


async def _claims(agent: "Agent", registration: Registration, served: Served, proxy: Proxy, taken: Hold | None) -> None:
    if taken is not None:
        await _resume(agent, taken, served, proxy)
    while True:
        hold = await agent.next_hold()
        assignment = hold.assignment
        sink = Sink(agent.config.outputs / file_name(assignment.claim), registration.output_limit)
        served.output_to(sink)
        if assignment.credential:
            proxy.expect(assignment.credential)
        answer = await agent.activate_and_acknowledge(hold, served.variables, sink)
        if answer == "accepted":
            if assignment.credential:  # without a credential there is no access
                proxy.open(assignment.credential)
            agent.report_state("running")
            await hold.ended
            proxy.close()
            log("closed", claim=assignment.claim, fence=assignment.fence)
        else:
            proxy.close()
        served.output_to(None)
        if answer == "stale":
            agent.let_go()
            await agent.fail(NOT_OURS)
        await _reset_or_leave(agent, hold, served)


async def _read_memory(agent: "Agent", registration: Registration) -> tuple[Registration, Hold | None]:
    """Returns the settings of the agent's first start, and the claim that it held before a restart, if any.

    An agent that guards another container can be restarted without it. The worker then lives on, perhaps with its holder's
    work."""
    memory = Memory(agent.config.folder)
    if memory.kept is None and registration.worker.serve:
        return registration, None  # a served process that the agent started dies with it
    try:
        agent.registration = registration = memory.begin(registration)
    except OSError as error:
        await agent.fail(f"cannot store the state that a restart needs: {error.strerror}")
    agent.memory, kept = memory, memory.kept
    assert kept is not None
    if not kept.reset:
        await agent.fail("the agent was restarted before the worker was reset")
    agent.served_fence = kept.served
    return registration, agent.resume(kept.held.assignment()) if kept.held is not None else None


async def _resume(agent: "Agent", hold: Hold, served: Served, proxy: Proxy) -> None:
    """Continues the claim of before the restart. Requests of its holder wait until the server accepts the acknowledgement."""
    agent.report_state("running")  # report it again, because the endpoint is known now
    while (answer := await agent.acknowledge(hold)) == "stale":
        # Either the claim ended, and a directive will follow; or it was in lost commits, and this agent's report restores it.
        await asyncio.wait({hold.ended}, timeout=ASK_AGAIN)
    if answer == "accepted" and hold.assignment.credential:
        proxy.open(hold.assignment.credential)
    await hold.ended
    proxy.close()
    await _reset_or_leave(agent, hold, served)


async def _reset_or_leave(agent: "Agent", hold: Hold, served: Served) -> None:
    """Ends a claim: resets the worker if it is parked for the tenant's next claim, otherwise raises Leave."""
    end = hold.ended.result()
    if end.do == GRACE:
        raise Leave(TERMINATED, end.reason)  # the claim is still held, so the exit code must not look like a success
    # Reported from now on, so that a restored database does not treat this worker as new.
    agent.served_fence = hold.assignment.fence
    agent.let_go()
    if not end.park:
        raise Leave(0, end.reason or "the claim ended")
    agent.report_state("resetting")
    try:
        await served.reset(hold.assignment.tenant)
    except HookFailed as error:
        await agent.fail(str(error))
    if agent.memory is not None:
        agent.memory.let_go(agent.served_fence)
