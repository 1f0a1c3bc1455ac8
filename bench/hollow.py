"""A cluster of hollow pods: it lists what the rows say, and does nothing."""

from holdfast.model.pod import Pod
from holdfast.ports.cluster import Cluster


class HollowCluster(Cluster):
    """Only what a duty's observation asks; anything else is a fault of the benchmark."""

    def __init__(self, install: str, pool_id: str, pool: str, workers: int) -> None:
        self.install = install
        self._about = (pool_id, pool, workers)

    async def pods(self) -> list[Pod]:
        """Made anew for each pass, as a real cluster's answer would be."""
        pool_id, pool, workers = self._about
        return [
            Pod(
                name=f"w-{pool}-{n}",
                uid=f"u-{pool}-{n}",
                worker=f"w-{pool}-{n}",
                install=self.install,
                pool_id=pool_id,
                pool=pool,
                revision="r",
                phase="running",
                version="1",
                created_at=0.0,
                ready=True,
                node="node",
                epoch=1,
            )
            for n in range(1, workers + 1)
        ]
