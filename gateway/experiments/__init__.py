"""Experiments that run in this gateway: who goes where, what became of them, and what can be said of it."""

from gateway.experiments.experiments import Experiments

__all__ = ["Experiments"]
