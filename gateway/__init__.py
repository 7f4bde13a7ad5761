"""HTTP in, HTTP out, and the command line; puts the other parts together."""

__version__ = "0.1.0"
