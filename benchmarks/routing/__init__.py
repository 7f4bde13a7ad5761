"""Routing policies side by side, in a simulator: the real policy code against engines with stated speed laws.

``python -m benchmarks.routing`` prints the table. Nothing here is measured: what the laws say comes from measurements
of real engines, and the policies never see the laws.
"""
