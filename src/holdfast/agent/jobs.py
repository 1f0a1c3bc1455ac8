"""The work of a job agent: it serves one claim, by its own process or by another container, and reports the result."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from .hold import NOT_OURS, Hold, Leave
from .input import announce, pass_input
from .job import environment, file_name, run, store_result
from .log import log
from .messages import Registration
from .sink import Sink
from .staging import sign, stage, unstage

if TYPE_CHECKING:
    from .main import Agent


async def serve_job(agent: "Agent", registration: Registration) -> None:
    """Serves one claim: hands the job to the worker's container, or runs its command. Ends by raising Leave."""
    hooks, folder = registration.worker, agent.config.folder
    hold = await agent.next_hold()
    assignment = hold.assignment
    sink = Sink(agent.config.outputs / file_name(assignment.claim), registration.output_limit)
    if agent.config.stage is not None:
        await _stage(agent, agent.config.stage, hold, hooks.run or assignment.command)
    answer = await agent.activate_and_acknowledge(hold, {}, sink)
    if answer != "accepted":
        if agent.config.stage is not None:
            unstage(agent.config.stage)
        sink.close()
        if answer == "ended" and not hooks.activate:
            raise Leave(0, "the claim ended before its command started")
        await agent.fail(NOT_OURS)
    if agent.config.stage is not None:
        if agent.config.termination is not None:
            sign(agent.config.termination, assignment)
        agent.staged = True
        raise Leave(0, "the job was handed to the worker's container")
    agent.report_state("running")
    env = environment(assignment, folder / "payload.json")
    feed = None
    if assignment.stdin:
        await announce(agent.control, assignment.fence)
        feed = partial(pass_input, agent.control, assignment.fence)
    result = await run(hooks.run or assignment.command, env, folder, sink, hold.ended, feed)
    log("ended", claim=assignment.claim, code=result.exit_code, why=result.reason)
    store_result(folder, assignment, result)
    kept = await agent.control.result(assignment.fence, result.exit_code, result.reason)
    raise Leave(0, "the server stored the result" if kept else "the claim had already ended in another way")


async def _stage(agent: "Agent", folder: Path, hold: Hold, argv: list[str]) -> None:
    """Writes the job's files. Called before the acknowledgement, because nothing may fail after it. The job's
    container does not start while the agent runs."""
    try:
        stage(folder, hold.assignment, argv)
    except OSError as error:
        await agent.refuse(hold, f"the job could not be staged: {error.strerror}")
