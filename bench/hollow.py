"""A cluster for measuring duties: it lists one pod per row and does nothing else."""

from holdfast.model.pod import Pod


class HollowCluster:
    """Answers only what a duty's observation reads. A duty that calls anything else is not quiet, and the benchmark fails."""

    declarations = None

    def __init__(self, install: str, pool_id: str, pool: str, workers: int) -> None:
        self.install = install
        self._about = (pool_id, pool, workers)

    async def pods(self) -> list[Pod]:
        """Returns new objects for each pass, as a real cluster would."""
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

    async def output_sizes(self) -> dict[str, int]:
        return {}
