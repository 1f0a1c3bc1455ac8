"""A pod is protected before its holder is informed. If the cluster refuses that, the holder knows, and it is repaired later."""

import json
from collections.abc import Callable

from fleet import JOB, Fleet, eventually

Make = Callable[..., Fleet]


def test_a_claim_shows_that_its_worker_could_not_be_protected_and_it_is_repaired(make_fleet: Make) -> None:
    fleet = make_fleet(replicas=2, pools={"linux": JOB})
    worker = fleet.warm(1)[0]["id"]
    stamp = fleet.layout.workers / worker / "stamp.json"
    stamp.mkdir()  # so that the stamp cannot be written
    claim = fleet.claim("linux", command=["sleep", "60"], wait="30s")
    assert (claim["state"], claim["worker"], claim["protected"]) == ("active", worker, False)
    events = fleet.api("GET", f"/v1/events?claim={claim['id']}").json["items"]
    assert "claim.unprotected" in [event["kind"] for event in events]
    stamp.rmdir()
    kept = eventually(lambda: json.loads(stamp.read_bytes()), 15, "the protection is restored")
    assert (kept["protected"], kept["stamp"]["claim"], kept["stamp"]["fence"]) == (True, claim["id"], claim["fence"])


def test_where_protection_is_required_an_unprotected_holder_is_refused(make_fleet: Make) -> None:
    fleet = make_fleet(replicas=1, pools={"strict": {**JOB, "protection": {"required": True}}})
    worker = fleet.warm(1)[0]["id"]
    (fleet.layout.workers / worker / "stamp.json").mkdir()
    claim = fleet.claim("strict", command=["true"], wait="30s")
    assert (claim["state"], claim["outcome"]) == ("ended", "refused")
    assert "protection" in claim["reason"]
    shown = fleet.api("GET", f"/v1/workers/{worker}").json
    assert shown["state"] in ("warm", "retiring", "gone"), "nothing was delivered to it"


def test_left_over_protection_on_a_free_worker_is_removed(make_fleet: Make) -> None:
    fleet = make_fleet(replicas=2, pools={"linux": JOB})
    worker = fleet.warm(1)[0]["id"]
    stamp = fleet.layout.workers / worker / "stamp.json"
    left = {"version": 7, "stamp": {"owner": "acme", "claim": "c-long-gone", "fence": 1, "at": 0.0}, "protected": True}
    draft = stamp.with_name(".left")
    draft.write_text(json.dumps(left))
    draft.replace(stamp)
    kept = eventually(lambda: (s := json.loads(stamp.read_bytes()))["stamp"] is None and s, 40, "the stamp is gone")
    assert kept["protected"] is False
    assert fleet.api("GET", f"/v1/workers/{worker}").json["state"] == "warm"
