"""Speak for one worker: take its claim, run it or stand in front of it, and say how it ended.

`python -m holdfast.agent`, or `holdfast.agent.main.main()`. One runs for every worker, so it stays small: the
standard library, msgspec and h11. The contract is docs/worker-protocol.md.
"""
