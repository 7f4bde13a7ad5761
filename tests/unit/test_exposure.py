from __future__ import annotations

import pytest

from gateway.errors import ApiError
from gateway.exposure import LocalGuard, is_loopback, require_safe_binding
from gateway.keys import hash_key, new_key
from gateway.settings import AuthSettings, KeySettings, ServerSettings, Settings, SettingsError


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "127.1", "localhost", "::1", "::ffff:127.0.0.1"])
def test_this_machines_own_addresses_need_no_key(host: str) -> None:
    require_safe_binding(Settings(server=ServerSettings(host=host)))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "0", "192.168.1.5", "10.0.0.1", "::ffff:0.0.0.0", "fe80::1"])
def test_any_other_address_without_keys_is_refused_with_the_two_ways_out(host: str) -> None:
    with pytest.raises(SettingsError) as caught:
        require_safe_binding(Settings(server=ServerSettings(host=host)))
    assert "paceline key" in str(caught.value)
    assert "127.0.0.1" in str(caught.value)


def test_an_empty_address_means_all_of_them() -> None:
    assert not is_loopback("")


def test_a_name_that_nobody_knows_is_refused() -> None:
    with pytest.raises(SettingsError, match="no address or name"):
        is_loopback("no-such-host.invalid")


def test_with_keys_every_address_may_be_used() -> None:
    auth = AuthSettings(keys=(KeySettings(name="a", hash=hash_key(new_key())),))
    require_safe_binding(Settings(auth=auth, server=ServerSettings(host="0.0.0.0")))


GUARD = LocalGuard(ServerSettings(allowed_hosts=("workstation.local",), cors_origins=("https://chat.example/",)))


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {b"host": b"localhost"},
        {b"host": b"LocalHost:7223"},
        {b"host": b"127.0.0.1:7223"},
        {b"host": b"[::1]:7223"},
        {b"host": b"[::1]"},
        {b"host": b"workstation.local:7223"},
        {b"host": b"localhost:7223", b"origin": b"http://localhost:7223"},
        {b"host": b"localhost:7223", b"origin": b"https://chat.example"},
    ],
)
def test_programs_on_this_machine_and_allowed_pages_come_in(headers: dict[bytes, bytes]) -> None:
    GUARD.check("http", headers)


@pytest.mark.parametrize(
    "headers",
    [
        {b"host": b"evil.example"},
        {b"host": b"localhost.evil.example:7223"},
        {b"host": b"127.0.0.1.evil.example"},
        {b"host": b"evil.example:7223", b"origin": b"http://evil.example:7223"},
        {b"host": b"localhost:7223", b"origin": b"http://localhost:3000"},
        {b"host": b"localhost:7223", b"origin": b"null"},
        {b"host": b"localhost:7223", b"origin": b"https://localhost:7223"},
    ],
)
def test_a_web_page_that_reaches_this_machine_by_way_of_the_browser_is_kept_out(headers: dict[bytes, bytes]) -> None:
    with pytest.raises(ApiError) as caught:
        GUARD.check("http", headers)
    assert caught.value.status == 403
    assert "server." in caught.value.message


def test_the_address_that_is_listened_on_is_a_name_of_this_machine() -> None:
    LocalGuard(ServerSettings(host="127.0.0.2")).check("http", {b"host": b"127.0.0.2:7223"})
    LocalGuard(ServerSettings(host="::ffff:127.0.0.1")).check("http", {b"host": b"[::ffff:127.0.0.1]:7223"})
