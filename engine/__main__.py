"""``python -m engine``."""

from __future__ import annotations

import os
import sys

# Beside a busy program, threads that spin while they wait hold the cores that the others need: by default a step took
# up to fifty times as long. Those that sleep at once make one half as long again. libgomp reads this as torch loads it.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")

from engine.cli import main

if __name__ == "__main__":
    sys.exit(main())
