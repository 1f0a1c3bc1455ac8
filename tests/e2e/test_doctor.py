"""The checks of `doctor` that read the cluster itself. Each fails on a violation that the test makes."""

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

from fleet import JOB, Fleet, eventually
from holdfast.model.pool import Pool, PoolSpec, revision_of
from holdfast.ports.cluster import Order
from holdfast.wiring import local_cluster


def test_a_pod_without_a_row_and_a_cluster_that_cannot_be_asked_are_found(make_fleet: Callable[..., Fleet]) -> None:
    fleet = make_fleet(replicas=1, pools={"linux": JOB})
    fleet.warm(1)
    assert broken(fleet) == {}
    fleet.api("POST", "/v1/pools/linux/freeze", {"reason": "so that no duty repairs it"})
    plant_stranger(fleet)
    found = eventually(lambda: broken(fleet).get("every pod has a row"), 20, "the stranger is found")
    assert "w-linux-stranger" in found["detail"]
    assert found["advice"]
    fleet.layout.workers.rename(fleet.layout.workers.with_name("away"))
    found = eventually(lambda: broken(fleet).get("the cluster can be asked"), 20, "the loss of the list is found")
    assert found["detail"]
    fleet.layout.workers.with_name("away").rename(fleet.layout.workers)
    eventually(lambda: "the cluster can be asked" not in broken(fleet), 20)


def plant_stranger(fleet: Fleet) -> None:
    """Makes a pod of this installation with another epoch, so that it is left alone. It looks three minutes old."""
    spec = PoolSpec()
    pool = Pool(id="p-x", name="linux", spec=spec, revision=revision_of(spec), state="live", source="api", created_at=0.0)
    cluster = local_cluster(fleet.layout)

    async def create() -> None:
        await cluster.create(Order(worker="w-linux-stranger", pool=pool, epoch=77))
        await cluster.close()

    asyncio.run(create())
    order = fleet.layout.workers / "w-linux-stranger" / "order.json"
    aged = {**json.loads(order.read_bytes()), "created_at": time.time() - 180}
    draft = order.with_name(".aged")
    draft.write_text(json.dumps(aged))
    draft.replace(order)


def broken(fleet: Fleet) -> dict[str, Any]:
    checks = fleet.api("GET", "/v1/doctor").json["checks"]
    return {check["name"]: check for check in checks if not check["ok"]}
