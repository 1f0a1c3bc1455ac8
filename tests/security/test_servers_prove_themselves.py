"""The real server proves every answer to an agent, also a refusal, before it has seen a token. Pods get only the public key."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "api"))

from holdfast.agent.http import HttpClient
from holdfast.kubernetes.template import Setup, manifest
from holdfast.model.pool import Pool, PoolSpec
from holdfast.ports.cluster import Order
from holdfast.proof import NONCE, PROOF, PublicKey, Signer
from served_api import KEY, Answer, Stage

KEY_TEXT = Signer(KEY).public_key
FRESH = "a-fresh-nonce-of-the-test"


def proven(path: str, token: str | None, answer: Answer) -> bool:
    header = f"Bearer {token}" if token else ""
    return PublicKey(KEY_TEXT).verify(answer.headers.get(PROOF, ""), FRESH, path, header, answer.status, answer.raw)


def test_every_answer_to_an_agent_carries_a_proof_and_no_other_does(stage: Stage) -> None:
    agent, idle = stage.agent_token(), {"doing": "idle", "wait": 0}
    calls = [
        ("/v1/worker/register", None, 401),
        ("/v1/worker/register", "forged", 401),
        ("/v1/worker/poll", None, 401),
        ("/v1/worker/poll", agent, 200),
        ("/v1/worker/progress", agent, 409),
        ("/v1/worker/of-a-newer-agent", agent, 404),
    ]
    bodies = {"/v1/worker/poll": idle, "/v1/worker/progress": {"fence": 1}}
    for path, token, status in calls:
        body = bodies.get(path, {"worker": "w-agent", "uid": "u"}) if token else None
        answer = stage.ask("POST", path, body, token=token, headers={NONCE: FRESH})
        assert (answer.status, proven(path, token, answer)) == (status, True), path
        assert not proven(path, "another", answer)
    assert PROOF not in stage.ask("POST", "/v1/worker/poll", idle, token=agent).headers, "an agent of the release before"
    assert PROOF not in stage.ask("POST", "/v1/worker/poll", idle, token=agent, headers={NONCE: "short"}).headers
    assert PROOF not in stage.ask("GET", "/v1/pools", headers={NONCE: FRESH}).headers


async def test_the_agents_client_accepts_the_real_server(stage: Stage) -> None:
    client = HttpClient(PublicKey(KEY_TEXT))
    for _ in range(2):  # the second request uses the same connection
        answer = await client.post(stage.url, "/v1/worker/poll", stage.agent_token(), b'{"doing": "idle", "wait": 0}', 10)
        assert answer.status == 200
    client.close()


def test_a_pod_shows_the_public_key_and_nothing_secret() -> None:
    spec = PoolSpec(mode="job", warm=1, max=1, pod={"spec": {"containers": [{"name": "main", "image": "x"}]}})
    pool = Pool(id="p-1", name="linux", spec=spec, revision="1", state="live", source="api", created_at=0.0)
    setup = Setup("one", "holdfast:test", ("http://x",), server_key=KEY_TEXT)
    pod = manifest(Order(worker="w-1", pool=pool, epoch=1), setup, "anchor")
    agent = next(each for each in pod["spec"]["initContainers"] if each["name"] == "holdfast-agent")
    assert {"name": "HOLDFAST_SERVER_KEY", "value": KEY_TEXT} in agent["env"]
    assert KEY.hex() not in str(pod)
