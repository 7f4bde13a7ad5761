"""``python -m engine``."""

from __future__ import annotations

import os
import sys

# Read when torch is imported. Threads that wait for one another spin for 300,000 turns unless this is said, which is up
# to fifty times slower as soon as another program has a core; asleep at once, they are slower when there is none.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

from engine.cli import main

if __name__ == "__main__":
    sys.exit(main())
