"""The operations that a model's speed depends on: each with a plain torch reference, and a Triton kernel beside it."""
