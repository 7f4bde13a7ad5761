"""Addresses as people and URLs write them."""

from __future__ import annotations

import ipaddress


def url_of(host: str, port: int) -> str:
    """Return the URL at which a server that listens on ``host`` is reached from this machine."""
    return f"http://{url_host(reachable(host))}:{port}"


def reachable(host: str) -> str:
    """Return the address that leads to a server which listens on ``host``: for "all addresses", this machine's own."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if not address.is_unspecified:
        return host
    return "127.0.0.1" if address.version == 4 else "::1"


def url_host(host: str) -> str:
    """Return a host as it stands in a URL: IPv6 addresses in brackets."""
    return f"[{host}]" if ":" in host else host
