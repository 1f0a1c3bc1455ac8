"""`make fuzz`: in tests/, `python -m fuzz --seed 1 --seconds 60`."""

import argparse
import asyncio
import random
import sys
import tempfile
from pathlib import Path

from scratch import prepared_postgres

from .own_database import own_database
from .run import Broken, run
from .targets import targets


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description="Sends mutated requests to everything that listens.")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--batch", type=int, help="send only this batch of the seed")
    options = parser.parse_args()
    print(f"seed {options.seed}; repeat it with: make fuzz SEED={options.seed} SECONDS={options.seconds:g}", flush=True)
    with tempfile.TemporaryDirectory(prefix="hf-") as folder:
        Path(folder).chmod(0o755)  # because Postgres runs as another account when this runs as root
        server = prepared_postgres(Path(folder) / "postgres")
        server.start()
        try:
            with asyncio.Runner() as runner, own_database(runner, server.dsn) as dsn, targets(dsn) as found:
                run(found, options.seed, options.seconds, options.batch)
        except Broken as broken:
            print(broken, file=sys.stderr)
            return 1
        finally:
            server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
