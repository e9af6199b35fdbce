"""Let producers and workers live with faults for a while, and check that every promise was kept.

`python scripts/soak.py --minutes 20 --seed 7`: on a PostgreSQL of its own. Prints what happened; exits with 1, the
broken promise and the history of its job where one was broken. The seed says what is enqueued and which faults come;
how they meet is up to the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import sys

from soaking.course import soak


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=5.0, help="how long faults go on (default: 5)")
    parser.add_argument("--seed", type=int, help="a number that says what is done (default: a random one)")
    parser.add_argument("--pause", type=float, default=5.0, help="seconds between two faults on average (default: 5)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # either signal ends all that was started
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    return asyncio.run(soak(seconds=60 * options.minutes, seed=seed, pause=options.pause))


if __name__ == "__main__":
    sys.exit(main())
