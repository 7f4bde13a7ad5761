"""Paceline's built-in engine: a program of its own (``python -m engine``) that serves one model over HTTP.

It imports nothing else of the project, and nothing else imports it: the gateway talks to it as to any other engine.
"""

__version__ = "0.1.0"
"""Here, too, since a Python that has only what the engine needs has no metadata of Paceline."""
