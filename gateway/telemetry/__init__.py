"""Traces and metrics of what the gateway does, made from each request at its end."""
