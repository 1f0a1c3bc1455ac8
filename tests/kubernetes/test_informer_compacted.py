"""The informer on a real API server that has compacted its history: it lists again, and reports what was deleted meanwhile."""

import asyncio
from collections.abc import Callable

import pytest
from fake_api import SELECTOR

from holdfast.kubernetes import informer
from holdfast.kubernetes.access import find_access
from holdfast.kubernetes.api import Api
from holdfast.kubernetes.informer import Informer
from holdfast.kubernetes.shapes import PodObject
from holdfast_testcluster.control_plane import ControlPlane
from waiting import sooner


async def test_after_a_compaction_a_real_api_server_is_followed_again_and_what_went_is_noticed(
    own_control_plane: ControlPlane, make_namespace: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plane, namespace = own_control_plane, make_namespace(own_control_plane)
    path, hints, expired = f"/api/v1/namespaces/{namespace}/pods", list[set[str]](), list[object]()

    class Noted(informer.Expired):
        def __init__(self) -> None:
            expired.append(self)

    def make(name: str) -> None:
        spec = {"containers": [{"name": "work", "image": "work:test"}], "terminationGracePeriodSeconds": 0}
        plane.ask("POST", path, {"metadata": {"name": name, "labels": dict([SELECTOR.split("=")])}, "spec": spec})

    make("w-1")
    make("w-2")
    api = Api(find_access(plane.kubeconfig))
    pods: Informer[PodObject] = Informer(api, path, SELECTOR, PodObject, hints.append)
    monkeypatch.setattr(informer, "Expired", Noted)
    following = asyncio.create_task(pods.run())
    try:
        assert await sooner(lambda: pods.fresh and pods.known().keys() == {"w-1", "w-2"})
        hints.clear()
        # These calls block the event loop, so the informer hangs as a replica may.
        plane.restart_apiserver()  # otherwise the informer would find the next events in its socket
        plane.ask("DELETE", f"{path}/w-1")
        make("w-3")
        plane.expire_watches()
        assert await sooner(lambda: pods.fresh and pods.known().keys() == {"w-2", "w-3"}, 60), pods.known().keys()
        assert {"w-1", "w-3"} <= set().union(*hints)
        make("w-4")
        assert await sooner(lambda: "w-4" in pods.known()), "and it follows"
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await api.close()
    assert expired, "the API server had forgotten"
