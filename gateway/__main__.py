"""`python -m gateway` is `paceline`."""

from __future__ import annotations

from gateway.cli import main

main()
