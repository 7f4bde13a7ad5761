from __future__ import annotations

import pytest

from gateway.errors import ApiError
from gateway.keys import ANYONE, Caller, Door, KeyRing, hash_key, new_key, require_admin
from gateway.settings import AuthSettings, KeySettings, ServerSettings, Settings, SettingsError

ALICE, BOB = new_key(), new_key()


def ring() -> KeyRing:
    return KeyRing(
        AuthSettings(
            keys=(
                KeySettings(name="alice", hash=hash_key(ALICE), admin=True),
                KeySettings(name="bob", env="BOBS_KEY"),
            )
        ),
        {"BOBS_KEY": BOB},
    )


@pytest.mark.parametrize(
    ("headers", "name"),
    [
        ({b"authorization": f"Bearer {ALICE}".encode()}, "alice"),
        ({b"authorization": f"bearer   {BOB} ".encode()}, "bob"),
        ({b"x-api-key": BOB.encode()}, "bob"),
        ({b"authorization": b"Basic abc", b"x-api-key": ALICE.encode()}, "alice"),
    ],
)
def test_a_key_says_who_calls(headers: dict[bytes, bytes], name: str) -> None:
    assert ring().authenticate(headers).name == name


def test_an_admins_key_is_an_admins() -> None:
    keys = ring()
    require_admin(keys.authenticate({b"x-api-key": ALICE.encode()}))
    with pytest.raises(ApiError) as caught:
        require_admin(keys.authenticate({b"x-api-key": BOB.encode()}))
    assert caught.value.status == 403


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {b"authorization": b"Bearer "},
        {b"authorization": b"Bearer wrong"},
        {b"x-api-key": ALICE.encode()[:-1]},
        {b"x-api-key": hash_key(ALICE).encode()},
        {b"authorization": ALICE.encode()},
        {b"authorization": b"Bearer \xff\xfe"},
    ],
)
def test_without_a_key_that_is_known_it_is_401_and_says_how_to_send_one(headers: dict[bytes, bytes]) -> None:
    with pytest.raises(ApiError) as caught:
        ring().authenticate(headers)
    assert caught.value.status == 401
    assert (b"www-authenticate", b"Bearer") in caught.value.headers
    assert caught.value.code == "invalid_api_key"


def test_the_ring_keeps_no_key_in_the_clear() -> None:
    keys = ring()
    keys.authenticate({b"x-api-key": BOB.encode()})
    held = repr(vars(keys))
    assert BOB not in held
    assert ALICE not in held


def test_new_keys_are_long_and_differ() -> None:
    assert len({new_key() for _ in range(100)}) == 100
    assert len(new_key()) >= 43


@pytest.mark.parametrize("value", [None, "", "short"])
def test_a_key_from_a_variable_that_is_absent_or_short_is_refused(value: str | None) -> None:
    auth = AuthSettings(keys=(KeySettings(name="a", env="ITS_KEY"),))
    with pytest.raises(SettingsError, match="ITS_KEY"):
        KeyRing(auth, {} if value is None else {"ITS_KEY": value})


def test_one_key_under_two_names_is_refused() -> None:
    keys = tuple(KeySettings(name=name, hash=hash_key(ALICE)) for name in ("alice", "mallory"))
    with pytest.raises(SettingsError, match="same key as alice's"):
        KeyRing(AuthSettings(keys=keys))


def test_without_keys_the_door_is_open_to_this_machine_and_closed_to_web_pages() -> None:
    door = Door(Settings())
    scope = {"scheme": "http"}
    assert door.let_in(scope, {b"host": b"127.0.0.1:7223", b"authorization": b"Bearer whatever"}) == ANYONE
    with pytest.raises(ApiError) as caught:
        door.let_in(scope, {b"host": b"evil.example:7223"})
    assert caught.value.status == 403


def test_with_keys_any_host_name_will_do() -> None:
    auth = AuthSettings(keys=(KeySettings(name="alice", hash=hash_key(ALICE)),))
    door = Door(Settings(auth=auth, server=ServerSettings(host="0.0.0.0")))
    headers = {b"host": b"models.example.org", b"origin": b"https://chat.example", b"x-api-key": ALICE.encode()}
    assert door.let_in({"scheme": "http"}, headers) == Caller("alice")
