"""The kubelet's view of pods: a pod that was deleted while there was no watch is reported as gone."""

import asyncio
from collections.abc import AsyncIterator, Mapping

from holdfast_testcluster.api import Answer, Expired, Object
from holdfast_testcluster.reflector import PodReflector
from waiting import sooner


def pod(uid: str) -> Object:
    return {"metadata": {"uid": uid, "resourceVersion": "1"}}


class ForgetfulApi:
    """Returns the given lists one after another. Every watch except for the last has expired."""

    def __init__(self, *lists: list[Object]) -> None:
        self._lists = list(lists)

    async def insist(self, method: str, path: str) -> Answer:
        return Answer(200, {"items": self._lists.pop(0), "metadata": {"resourceVersion": "1"}})

    async def watch(self, path: str, query: Mapping[str, str]) -> AsyncIterator[Object]:
        if self._lists:
            raise Expired
        await asyncio.Event().wait()
        yield {}


async def test_a_list_after_an_expired_watch_reports_what_is_gone() -> None:
    events: list[str] = []

    api = ForgetfulApi([pod("a"), pod("b")], [pod("b"), pod("c")])
    seen, gone = (lambda it, kind=kind: events.append(f"{kind} {it['metadata']['uid']}") for kind in ("seen", "gone"))
    running = asyncio.create_task(PodReflector(api, None, seen, gone).run())  # type: ignore[arg-type]
    await sooner(lambda: len(events) >= 5 or running.done())
    running.cancel()
    assert events == ["seen a", "seen b", "gone a", "seen b", "seen c"]
