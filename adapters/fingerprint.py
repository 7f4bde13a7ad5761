"""What a speed record depends on: other software, weights, precision, settings or hardware: another fingerprint."""

from __future__ import annotations

import hashlib
import json

from adapters.base import ModelDescription
from policies.types import Hardware


def traits(kind: str, version: str, model: ModelDescription, hardware: Hardware) -> dict[str, str]:
    """Everything that goes into a fingerprint, by names that people read.

    The host's name is left out where the hardware itself is known: records survive a renamed machine, and a container.
    """
    return {
        "engine": kind,
        "engine version": version,
        "model": model.digest or model.engine_model,
        "precision": model.precision.value,
        "quantisation": model.scheme,
        "context": str(model.context or ""),
        "slots": str(model.slots or ""),
        "settings": model.settings,
        "hardware": hardware.description or f"{hardware.host}: {', '.join(sorted(hardware.devices))}",
    }


def fingerprint(kind: str, version: str, model: ModelDescription, hardware: Hardware) -> str:
    """Return 16 hexadecimal digits that are the same as long as all traits are."""
    spelled = json.dumps(traits(kind, version, model, hardware), sort_keys=True)
    return hashlib.sha256(spelled.encode()).hexdigest()[:16]


def differences(before: dict[str, str], after: dict[str, str]) -> tuple[str, ...]:
    """Return in what two sets of traits differ, one sentence each; empty when the fingerprints are the same."""
    return tuple(
        f"{name}: {before.get(name) or 'none'} → {after.get(name) or 'none'}"
        for name in dict.fromkeys((*before, *after))
        if before.get(name, "") != after.get(name, "")
    )
