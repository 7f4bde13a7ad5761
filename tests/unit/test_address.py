from __future__ import annotations

import pytest

from gateway.address import url_of


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:1"),
        ("0.0.0.0", "http://127.0.0.1:1"),
        ("::", "http://[::1]:1"),
        ("::1", "http://[::1]:1"),
        ("workstation.local", "http://workstation.local:1"),
    ],
)
def test_the_url_leads_to_a_server_that_listens_there(host: str, url: str) -> None:
    assert url_of(host, 1) == url
