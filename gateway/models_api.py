"""``GET /v1/models``: the logical models, each with its precisions, context and capabilities; answered from memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from policies.types import Deployment

CREATED = 1_700_000_000
"""OpenAI's form wants a time of creation; engines do not tell one, so all say the same."""


def model_list(deployments: Iterable[Deployment]) -> dict[str, Any]:
    """Return the list in OpenAI's form."""
    by_model: dict[str, list[Deployment]] = {}
    for deployment in deployments:
        by_model.setdefault(deployment.model, []).append(deployment)
    return {"object": "list", "data": [model_entry(name, by_model[name]) for name in sorted(by_model)]}


def model_entry(name: str, deployments: Sequence[Deployment]) -> dict[str, Any]:
    """Return one model in OpenAI's form; what is Paceline's own stands under ``paceline``."""
    contexts = [deployment.context for deployment in deployments if deployment.context]
    precisions = sorted({deployment.precision for deployment in deployments}, key=lambda p: (-p.rank, p))
    return {
        "id": name,
        "object": "model",
        "created": CREATED,
        "owned_by": "paceline",
        "paceline": {
            "precisions": precisions,
            "context": max(contexts, default=None),
            "capabilities": sorted(set().union(*(deployment.capabilities for deployment in deployments))),
            "deployments": [
                {
                    "id": deployment.id,
                    "engine": deployment.engine,
                    "precision": deployment.precision,
                    "scheme": deployment.scheme,
                    "context": deployment.context,
                    "capabilities": sorted(deployment.capabilities),
                }
                for deployment in deployments
            ],
        },
    }
