"""How a command keeps a verdict, for a Paceline that runs to take up."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from gateway.cli.output import styled, write
from measure.async_store import AsyncStore
from measure.database import StoreError
from measure.verdicts import Judged
from policies.types import Deployment


async def keep_verdict(store: AsyncStore, kind: Judged, deployment: Deployment, verdict: Mapping[str, Any]) -> None:
    """Save a verdict under a deployment's fingerprint; warn when that cannot be done."""
    try:
        await store.save_verdict(kind, deployment.fingerprint, verdict)
    except StoreError as error:
        write(f"{styled('warning:', 'yellow', sys.stderr)} the verdict cannot be kept: {error}", sys.stderr)
