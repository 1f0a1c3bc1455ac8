"""The agent of one worker: it accepts claims, runs the command or guards the served port, and reports the result.

Start it with `python -m holdfast.agent` or `holdfast.agent.entry.main()`. Every worker runs an agent, so the agent must stay
small: it uses the standard library, msgspec and h11 only. docs/worker-protocol.md defines what it does.
"""
