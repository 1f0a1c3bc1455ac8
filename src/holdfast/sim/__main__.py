"""Try it by hand: python -m holdfast.sim SEED…"""

import sys
import tempfile
import time
from pathlib import Path

from .run import Run
from .server import launch


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="hf-sim-") as folder:
        Path(folder).chmod(0o755)
        server = launch(Path(folder))
        try:
            failed = 0
            for seed in map(int, sys.argv[1:]):
                began = time.monotonic()
                outcome = Run(seed, server.dsn).run()
                took = time.monotonic() - began
                print(seed, outcome.digest, outcome.statements, f"{outcome.seconds:.0f}", f"{took:.1f}", outcome.failure)
                Path(f"/tmp/sim-{seed}.log").write_text("\n".join(outcome.lines) + "\n")
                failed += outcome.failure is not None
            return failed
        finally:
            server.stop()


if __name__ == "__main__":
    sys.exit(main())
