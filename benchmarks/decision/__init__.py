"""What one routing decision costs, and how much memory all that was learned may take.

``python -m benchmarks.decision`` prints both.
"""
