"""``python -m engine``."""

from __future__ import annotations

import os
import sys

# Beside a busy program, threads that spin while they wait hold the cores that the others need: a step took up to fifty
# times as long. libgomp reads this when torch loads it.
os.environ.setdefault("GOMP_SPINCOUNT", "2000")

from engine.cli import main

if __name__ == "__main__":
    sys.exit(main())
