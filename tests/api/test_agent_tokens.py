"""The short-lived tokens of agents: which key signed them, for which worker, and how long they are valid."""

import time
from typing import Any, cast

import pytest

from holdfast.api.auth import AGENT_TOKEN_SECONDS, Auth
from holdfast.api.problems import Problem
from holdfast.ports.cluster import AgentIdentity

AGENT = AgentIdentity("w-1", "uid-1")


class Hands:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return time.monotonic()


def auth(clock: Hands, key: bytes = b"key") -> Auth:
    return Auth(cast(Any, None), key, clock)  # an agent's token is checked without the store


def test_an_agents_token_names_its_worker_and_pod_until_it_expires() -> None:
    clock = Hands()
    ours = auth(clock)
    header = f"Bearer {ours.sign_agent(AGENT)}"
    assert ours.agent(header) == AGENT
    clock.now += AGENT_TOKEN_SECONDS - 1
    assert ours.agent(header) == AGENT
    clock.now += 2
    with pytest.raises(Problem, match="expired") as refused:
        ours.agent(header)
    assert refused.value.status == 401


def test_a_token_of_another_key_or_with_another_worker_in_it_is_refused() -> None:
    clock = Hands()
    ours, others = auth(clock), auth(clock, b"another key")
    body, mac = others.sign_agent(AGENT).removeprefix("hfa_").split(".")
    own_body, own_mac = ours.sign_agent(AgentIdentity("w-2", "uid-2")).removeprefix("hfa_").split(".")
    for token in (f"hfa_{body}.{mac}", f"hfa_{body}.{own_mac}", f"hfa_{own_body}.", own_body, "hfa_", ""):
        with pytest.raises(Problem) as refused:
            ours.agent(f"Bearer {token}")
        assert refused.value.status == 401
