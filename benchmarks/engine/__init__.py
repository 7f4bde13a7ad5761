"""The built-in engine beside others, on a CPU and on a GPU."""
