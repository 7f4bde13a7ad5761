"""The dashboard: its files, the feed it lives on, and the records it shows."""

from gateway.ui.router import ui_router

__all__ = ["ui_router"]
