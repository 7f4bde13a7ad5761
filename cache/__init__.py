"""Repeated prompts: keys, entries, the stores that hold them, and one engine call for many equal requests."""
