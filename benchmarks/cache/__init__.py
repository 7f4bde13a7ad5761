"""What the cache costs and saves: ``python -m benchmarks.cache``."""
