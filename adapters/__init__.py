"""Engines: one kind a file. The only place that talks to engines and starts their processes."""
