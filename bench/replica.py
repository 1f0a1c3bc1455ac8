"""A replica like that of `holdfast serve`, but with hollow pods: `python -m bench.replica DATA_DIR PORT JOB_SECONDS`."""

import os
import sys
from pathlib import Path
from unittest import mock

from holdfast import serve
from holdfast.local.layout import Layout
from holdfast.wiring import Settings

from .pods import HollowPods


def main(data_dir: Path, port: int, job_seconds: float) -> None:
    def hollow(layout: Layout) -> HollowPods:
        return HollowPods(layout.install.read_text().strip(), layout.key.read_bytes(), port, job_seconds)

    # Only the cluster differs. `patch.object` fails if `serve` makes its cluster under another name in the future.
    with mock.patch.object(serve, "local_cluster", hollow):
        serve.run(Settings(dsn=os.environ["HOLDFAST_DSN"], data_dir=data_dir, port=port))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
