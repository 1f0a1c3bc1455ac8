"""The informer on an API server that expires versions, hangs and disconnects: its view is complete and deletions are noticed."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest
from fake_api import PATH, SELECTOR, FakeApi

from holdfast.kubernetes import access, informer
from holdfast.kubernetes.api import Api
from holdfast.kubernetes.informer import Informer
from holdfast.kubernetes.shapes import PodObject
from holdfast.ports.cluster import ClusterUnavailable
from waiting import sooner

Pods = Informer[PodObject]


class Scene:
    """An API server, an informer that follows it, and the hints that the informer gave."""

    def __init__(self, api: FakeApi, client: Api) -> None:
        self.api, self.hints = api, list[set[str]]()
        self.pods: Pods = Informer(client, PATH, SELECTOR, PodObject, self.hints.append)

    def knows(self, *names: str) -> bool:
        return self.pods.fresh and self.pods.known().keys() == set(names)

    @property
    def hinted(self) -> set[str]:
        return set().union(*self.hints)

    async def blind(self) -> None:
        """Ends the watch and removes the history from which it could continue."""
        self.api.hold_lists.clear()
        self.api.compact()
        self.api.cut()
        await comes(lambda: not self.pods.fresh, "it notices")
        self.hints.clear()

    def see(self) -> None:
        self.api.hold_lists.set()


async def comes(check: Callable[[], object], what: str) -> None:
    assert await sooner(check), f"never came: {what}"


@pytest.fixture
async def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    """Starts an informer that knows three pods. Pauses and pages are short."""
    monkeypatch.setattr(informer, "PAUSES", (0.01, 0.05))
    monkeypatch.setattr(informer, "PAGE", 2)
    api = FakeApi(tmp_path)
    for name in ("w-1", "w-2", "w-3"):
        api.put(name)
    async with api.served() as client:
        scene = Scene(api, client)
        following = asyncio.create_task(scene.pods.run())
        try:
            await comes(lambda: scene.knows("w-1", "w-2", "w-3") and api.watching, "three pods are known")
            yield scene
            assert not following.done(), "it runs for as long as the replica lives"
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


async def test_it_lists_in_pages_once_and_then_follows(scene: Scene) -> None:
    assert [asked["limit"] for asked in scene.api.lists] == ["2", "2"]
    assert scene.hinted == {"w-1", "w-2", "w-3"}
    scene.hints.clear()
    changed = scene.api.put("w-2", annotations={"noted": "something"})
    scene.api.put("w-4")
    scene.api.delete("w-1")
    await comes(lambda: scene.knows("w-2", "w-3", "w-4"), "every kind of change")
    assert scene.pods.known()["w-2"].metadata.annotations == changed["metadata"]["annotations"]
    assert scene.hinted == {"w-1", "w-2", "w-4"}
    assert len(scene.api.lists) == 2, "nothing was asked for again"


@pytest.mark.parametrize("in_stream", [False, True], ids=["status 410", "ERROR event 410"])
async def test_an_expired_watch_lists_again_and_reports_what_went_meanwhile(scene: Scene, in_stream: bool) -> None:
    scene.api.expires_in_stream = in_stream
    await scene.blind()
    scene.api.delete("w-1")
    scene.api.put("w-2")
    scene.api.put("w-4")
    scene.api.compact()  # no watch will ever report these
    scene.see()
    await comes(lambda: scene.knows("w-2", "w-3", "w-4"), "it sees again")
    assert scene.hinted == {"w-1", "w-2", "w-4"}, "what went, what changed, what came; and not what stayed as it was"
    assert scene.api.watches[-1]["resourceVersion"] == str(scene.api.version)


async def test_a_list_whose_next_page_expired_begins_again(scene: Scene) -> None:
    before = len(scene.api.lists)
    scene.api.lose_pages = 2
    found, version = await scene.pods.list()
    assert found.keys() == {"w-1", "w-2", "w-3"}
    assert int(version) == scene.api.version, "of the list that was whole, not of the first"
    assert ["continue" in asked for asked in scene.api.lists[before:]] == [False, True] * 3


async def test_half_a_list_is_none(scene: Scene) -> None:
    await scene.blind()
    scene.api.lose_pages = 9
    scene.see()
    with pytest.raises(ClusterUnavailable, match="again and again"):
        await scene.pods.list()
    assert scene.pods.known().keys() == {"w-1", "w-2", "w-3"}
    assert not scene.hints, "no pod is reported as gone because of it"
    await comes(lambda: scene.knows("w-1", "w-2", "w-3"), "a whole list, once pages last")
    assert not scene.hints


async def test_bookmarks_move_the_version_that_the_next_watch_begins_from(scene: Scene) -> None:
    scene.api.elsewhere(500)
    scene.api.bookmark()
    moved = str(scene.api.version)
    scene.api.put("w-3")  # read after the bookmark, so the bookmark was read too
    await comes(lambda: scene.pods.known()["w-3"].metadata.resource_version == str(scene.api.version), "a change")
    scene.api.elsewhere(500)
    scene.api.bookmark()
    scene.hints.clear()
    later, lists = scene.api.version, len(scene.api.lists)
    scene.api.cut()
    await comes(lambda: len(scene.api.watches) == 2 and scene.pods.fresh, "the next watch")
    assert scene.api.watches[1]["resourceVersion"] == str(later)
    assert int(moved) < later
    assert len(scene.api.lists) == lists, "without a list"
    assert not scene.hints, "and nothing is reported twice"


async def test_a_watch_that_ends_with_another_error_goes_on_from_where_it_was(scene: Scene) -> None:
    lists = len(scene.api.lists)
    scene.api.error(500, "InternalError")
    await comes(lambda: len(scene.api.watches) == 2 and scene.api.watching == 1, "the next watch")
    scene.api.put("w-4")
    await comes(lambda: scene.knows("w-1", "w-2", "w-3", "w-4"), "it follows again")
    assert len(scene.api.lists) == lists


async def test_a_stream_that_is_silent_for_too_long_is_dead(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(informer, "SILENT", 0.3)
    assert await sooner(lambda: not scene.pods.fresh, 5), "the cache is not trusted any more, although TCP shows no error"
    scene.api.cut()  # the old watch still had the long timeout
    await comes(lambda: len(scene.api.watches) >= 4, "silent watches are started again and again")
    monkeypatch.setattr(informer, "SILENT", 90.0)
    scene.api.put("w-4")
    await comes(lambda: scene.knows("w-1", "w-2", "w-3", "w-4"), "what came meanwhile is known")
    assert len(scene.api.lists) == 2, "it lost nothing, so it listed nothing"


async def test_an_object_that_cannot_be_read_does_not_stop_the_watch_forever(scene: Scene) -> None:
    scene.api.put("w-bad", labels="not a map")
    await comes(lambda: not scene.pods.fresh, "it shows that its cache is not up to date")
    scene.api.delete("w-1")
    scene.api.delete("w-bad")
    await comes(lambda: scene.knows("w-2", "w-3"), "it sees again")
    assert "w-1" in scene.hinted


async def test_a_defect_of_a_listener_does_not_stop_the_watch_forever(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    report_change = scene.hints.append
    monkeypatch.setattr(scene.pods, "_changed", lambda names: [][1])
    scene.api.put("w-4")
    await comes(lambda: len(scene.api.lists) > 2, "it begins again")
    monkeypatch.setattr(scene.pods, "_changed", report_change)
    await comes(lambda: scene.knows("w-1", "w-2", "w-3", "w-4"), "it sees again")


async def test_replicas_do_not_come_back_all_at_once(scene: Scene) -> None:
    while len(scene.api.watches) < 12:
        before = len(scene.api.watches)
        scene.api.cut()
        await comes(lambda before=before: len(scene.api.watches) > before and scene.api.watching, "the next watch")
    timeouts = [int(asked["timeoutSeconds"]) for asked in scene.api.watches]
    assert all(240 <= seconds <= 360 for seconds in timeouts)
    assert len(set(timeouts)) > 4, "chosen again for each watch"


async def test_an_answer_to_our_own_write_is_known_before_the_watch_shows_it_and_older_news_do_not_undo_it(scene: Scene) -> None:
    old, new = scene.api._pod("w-1", annotations={"n": "old"}), scene.api._pod("w-1", annotations={"n": "new"})
    noted = lambda: scene.pods.known()["w-1"].metadata.annotations.get("n")  # noqa: E731
    scene.pods.wrote(_read(new))
    assert noted() == "new"
    scene.pods.wrote(_read(old))
    assert noted() == "new"
    scene.api._tell({"type": "MODIFIED", "object": old})
    scene.api.put("w-2", annotations={"n": "last"})
    await comes(lambda: scene.pods.known()["w-2"].metadata.annotations.get("n") == "last", "the watch has shown both")
    assert noted() == "new"


async def test_what_our_own_write_answered_is_no_news_when_the_watch_shows_it(scene: Scene) -> None:
    """The writer has already seen the answer, so a second check of each pod that we protect would be useless work."""

    scene.hints.clear()
    mine = scene.api._pod("w-1", annotations={"n": "mine"})
    scene.pods.wrote(_read(mine))
    scene.api._tell({"type": "MODIFIED", "object": mine})
    scene.api.put("w-2", annotations={"n": "last"})
    await comes(lambda: scene.hinted, "the watch has shown both")
    assert scene.hinted == {"w-2"}


async def test_what_a_read_showed_first_is_reported_then_because_the_watch_will_not_report_it_again(scene: Scene) -> None:
    """A request read a job's end while the watch was away. Without this notification no other part would learn of it."""

    scene.hints.clear()
    theirs = scene.api._pod("w-1", annotations={"n": "theirs"})
    scene.pods.saw(_read(theirs))
    scene.pods.saw(_read(theirs))
    assert scene.hints == [{"w-1"}], "once"
    scene.api._tell({"type": "MODIFIED", "object": theirs})
    scene.api.put("w-2", annotations={"n": "last"})
    await comes(lambda: "w-2" in scene.hinted, "the watch has shown both")
    assert scene.hints == [{"w-1"}, {"w-2"}]


# Tokens


async def test_a_token_that_was_rotated_is_read_again_after_a_401(scene: Scene) -> None:
    scene.api.rotate("second")
    assert (await scene.pods.list())[0].keys() == {"w-1", "w-2", "w-3"}
    assert scene.api.refused == 1, "once, by a call that then succeeded"
    scene.api.rotate("third")
    scene.api.cut()
    await comes(lambda: len(scene.api.watches) == 2, "a watch reads it again too")
    assert scene.api.refused == 2
    scene.api.put("w-4")
    await comes(lambda: scene.knows("w-1", "w-2", "w-3", "w-4"), "and follows")


async def test_a_rotated_token_is_read_again_in_time_without_a_401(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    assert access.TOKEN_SECONDS <= 60, "a projected token is replaced minutes before its end"
    monkeypatch.setattr(access, "TOKEN_SECONDS", 0.0)
    scene.api.rotate("second")
    await scene.pods.list()
    assert scene.api.refused == 0


def _read(pod: dict[str, object]) -> PodObject:
    return msgspec.convert(pod, PodObject)
