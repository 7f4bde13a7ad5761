"""The log of the last requests: their stages, what was predicted, and what the machine did meanwhile."""
