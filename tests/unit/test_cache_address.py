"""Addresses of Redis: every form, and what is wrong with one, without its password."""

from __future__ import annotations

import pytest

from cache.address import Address, parse_address


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://localhost", Address("server", (("localhost", 6379),))),
        ("valkey://10.0.0.1:7000/3", Address("server", (("10.0.0.1", 7000),), db=3)),
        ("redis://h?db=2", Address("server", (("h", 6379),), db=2)),
        ("redis://[::1]:7000", Address("server", (("::1", 7000),))),
        ("redis://[::1]", Address("server", (("::1", 6379),))),
        ("redis://:p%40ss%2F@h", Address("server", (("h", 6379),), password="p@ss/")),
        ("redis://ann:secret@h", Address("server", (("h", 6379),), user="ann", password="secret")),
        ("rediss://h?verify=false", Address("server", (("h", 6379),), tls=True, verify=False)),
        ("rediss://h?ca=/ca.pem", Address("server", (("h", 6379),), tls=True, files={"ca": "/ca.pem"})),
        ("unix:///run/valkey.sock", Address("socket", path="/run/valkey.sock")),
        ("unix://ann:secret@/s?db=1", Address("socket", path="/s", db=1, user="ann", password="secret")),
        (
            "redis+sentinel://:pw@a,b:1/mymaster/2?sentinel_password=x",
            Address(
                "sentinel",
                (("a", 26379), ("b", 1)),
                service="mymaster",
                db=2,
                password="pw",
                sentinel_login={"password": "x"},
            ),
        ),
        ("rediss+cluster://a:1,b:2", Address("cluster", (("a", 1), ("b", 2)), tls=True)),
    ],
)
def test_forms(url: str, address: Address) -> None:
    assert parse_address(url) == address


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("http://h", "redis://"),
        ("localhost:6379", "redis://"),
        ("redis+ring://h", "redis://"),
        ("redis://", "no host"),
        ("redis://:hunter2@h:port", "port"),
        ("redis://:hunter2@h:99999", "port"),
        ("redis://:hunter2@h/zero", "number"),
        ("redis://:hunter2@h/1/2", "after the host"),
        ("redis://:hunter2@a,b", "several hosts"),
        ("redis://hunter2@h", "user:password"),
        ("redis://:hunter2@h?timeout=1", "'timeout'"),
        ("unix://run/valkey.sock", "absolute path"),
        ("redis+sentinel://:hunter2@h", "service"),
        ("redis+cluster://:hunter2@h/1", "numbered"),
    ],
)
def test_what_is_wrong_is_said_without_the_password(url: str, what: str) -> None:
    with pytest.raises(ValueError, match=what) as error:
        parse_address(url)
    assert "hunter2" not in str(error.value)


def test_a_label_and_a_repr_have_no_secret() -> None:
    for url in (
        "redis://ann:hunter2@h",
        "redis+sentinel://:hunter2@h/m?sentinel_password=hunter2",
        "unix://:hunter2@/s",
    ):
        address = parse_address(url)
        assert "hunter2" not in address.label
        assert "hunter2" not in repr(address)
    assert parse_address("rediss+cluster://a,[::1]:7").label == "rediss+cluster://a:6379,[::1]:7"
