"""Strangers send invented tokens to `POST /v1/worker/register`, so that Holdfast floods the API server with reviews of them."""

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from holdfast.kubernetes import names, tokens
from holdfast.kubernetes.access import find_access
from holdfast.kubernetes.api import Api
from holdfast.kubernetes.tokens import Reviews, named_pod
from holdfast.ports.cluster import AgentIdentity, ClusterUnavailable


class ApiServer:
    """Reviews tokens: those in `genuine` belong to the pod that they name."""

    def __init__(self) -> None:
        self.genuine: set[str] = set()
        self.asked: list[str] = []

    async def review(self, request: web.Request) -> web.Response:
        token = (await request.json())["spec"]["token"]
        self.asked.append(token)
        pod = named_pod(token)
        if pod is None or token not in self.genuine:
            return web.json_response({"status": {}}, status=201)
        extra = {"authentication.kubernetes.io/pod-name": [pod.name], "authentication.kubernetes.io/pod-uid": [pod.uid]}
        user = {"username": "system:serviceaccount:ours:default", "extra": extra}
        return web.json_response({"status": {"authenticated": True, "user": user, "audiences": [names.AUDIENCE]}}, status=201)


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    server = ApiServer()
    app = web.Application()
    app.router.add_post("/apis/authentication.k8s.io/v1/tokenreviews", server.review)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.port = runner.addresses[0][1]  # type: ignore[attr-defined]
    yield server
    await runner.cleanup()


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def reviews(server: Any, clock: Clock, tmp_path: Path) -> AsyncIterator[Reviews]:
    config = {
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.port}"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "ours"}}],
        "current-context": "x",
    }
    (tmp_path / "config").write_text(json.dumps(config))
    api = Api(find_access(tmp_path / "config"))
    yield Reviews(api, "ours", lambda name, uid: uid == f"uid-of-{name}", clock)
    await api.close()


def token_of(pod: str, uid: str, signature: str) -> str:
    claims = {"aud": [names.AUDIENCE], "exp": 1, "kubernetes.io": {"namespace": "ours", "pod": {"name": pod, "uid": uid}}}
    payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"e30.{payload}.{signature}"


async def test_a_refused_token_is_refused_again_without_a_call(reviews: Reviews, server: ApiServer, clock: Clock) -> None:
    for _ in range(50):
        assert await reviews.review("invented") is None
    assert server.asked == ["invented"]
    clock.now += tokens.REFUSED_SECONDS + 1
    assert await reviews.review("invented") is None
    assert len(server.asked) == 2, "a pod that the API server learns of later is not refused forever"


async def test_invented_tokens_are_reviewed_at_a_low_rate(reviews: Reviews, server: ApiServer, clock: Clock) -> None:
    async def flood() -> int:
        refused = 0
        for n in range(200):
            try:
                assert await reviews.review(token_of("w-1", "a guessed uid", f"{clock.now}-{n}")) is None
            except ClusterUnavailable:
                refused += 1
        return refused

    assert await flood() == 200 - tokens.OTHERS_BURST
    clock.now += 2.0
    assert await flood() == 200 - 2 * tokens.OTHERS_RATE
    assert len(server.asked) == tokens.OTHERS_BURST + 2 * tokens.OTHERS_RATE


async def test_every_agent_is_reviewed_at_once_while_strangers_flood(reviews: Reviews, server: ApiServer) -> None:
    for n in range(200):
        try:
            await reviews.review(f"invented-{n}")
        except ClusterUnavailable:
            continue
    for n in range(300):  # all agents register at the same time
        good = token_of(f"w-{n}", f"uid-of-w-{n}", "genuine")
        server.genuine.add(good)
        assert await reviews.review(good) == AgentIdentity(f"w-{n}", f"uid-of-w-{n}")


async def test_a_pod_that_invents_tokens_about_itself_reaches_only_its_own_limit(reviews: Reviews, server: ApiServer) -> None:
    for n in range(50):
        try:
            await reviews.review(token_of("w-1", "uid-of-w-1", f"forged-{n}"))
        except ClusterUnavailable:
            continue
    assert len(server.asked) == tokens.POD_BURST
    good = token_of("w-2", "uid-of-w-2", "genuine")
    server.genuine.add(good)
    assert await reviews.review(good) is not None


async def test_what_is_remembered_is_bounded(reviews: Reviews, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "REMEMBERED", 10)
    for n in range(30):
        clock.now += 1.0
        assert await reviews.review(f"invented-{n}") is None
        assert await reviews.review(token_of(f"w-{n}", f"uid-of-w-{n}", "forged")) is None
    assert (len(reviews._refused), len(reviews._pods)) == (10, 10)


@pytest.mark.parametrize(
    "token", ["", "a.b.c", "a.!!.c", "..", "a.W10.c", "a.e30", "e30.eyJrdWJlcm5ldGVzLmlvIjoxfQ.x", "a." + "W1tb" * 3000 + ".c"]
)
def test_a_token_that_cannot_be_read_names_no_pod(token: str) -> None:
    assert named_pod(token) is None
