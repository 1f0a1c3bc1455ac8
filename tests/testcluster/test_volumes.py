"""The volumes of a pod: its token is renewed long before it expires."""

import asyncio
from pathlib import Path

import pytest

from holdfast_testcluster import volumes
from holdfast_testcluster.api import Answer, Object
from waiting import sooner


class Issuer:
    """Numbers the tokens that it issues."""

    def __init__(self) -> None:
        self.asked: list[Object] = []

    async def insist(self, method: str, path: str, body: Object) -> Answer:
        self.asked.append(body["spec"])
        return Answer(201, {"status": {"token": f"token-{len(self.asked)}"}})


async def test_a_token_is_renewed_before_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert volumes.REFRESH_AT < 1
    monkeypatch.setattr(volumes, "REFRESH_AT", 1e-4)  # of 600 s, which is 60 ms
    source = {"serviceAccountToken": {"audience": "holdfast", "expirationSeconds": 600, "path": "token"}}
    spec = {"volumes": [{"name": "identity", "projected": {"sources": [source]}}]}
    pod = {"metadata": {"name": "job", "namespace": "n", "uid": "u"}, "spec": spec}
    issuer = Issuer()

    made = volumes.Volumes(issuer, pod, "127.1.1.1", tmp_path)  # type: ignore[arg-type]
    await made.make()
    token = made.path("identity") / "token"
    assert token.read_text() == "token-1"
    renewing = asyncio.create_task(made.refresh_tokens())
    assert await sooner(lambda: token.read_text() == "token-3"), "it was never renewed"
    renewing.cancel()
    assert all(each["boundObjectRef"]["uid"] == "u" and each["audiences"] == ["holdfast"] for each in issuer.asked)
