"""What an open dashboard costs over time, under live traffic: ``python -m benchmarks.dashboard``."""
