"""The Redis store against a real Valkey: what it does, and that it is never in the way when that fails."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import redis
from valkeys import Valkey

from adapters.ports import free_port
from cache.address import parse_address
from cache.breaker import StoreError
from cache.codec import Codec
from cache.entry import Entry
from cache.key import Key, make_key, pattern, tag
from cache.redis_store import RedisStore

StartValkey = Callable[..., Valkey]
LIMIT_S = 15.0
KEY = make_key("chat", "m", "ann", {"messages": b"1"})
LEASE = KEY.lease(["fp"])
ENTRY = Entry("m", "d", "llamacpp", "bf16", 1_000_000.0, 2_000_000.0, True, b"data: 1\n\n" * 400)
DATA = Codec().pack(KEY.entry("fp"), ENTRY)


@asynccontextmanager
async def store_at(url: str, **options: float) -> AsyncIterator[RedisStore]:
    """A store that has been reached. Its limit is wide, since these tests are not about a busy machine."""
    store = RedisStore(parse_address(url), **{"lookup_s": 0.5, **options})  # type: ignore[arg-type]
    store.open()
    try:
        await until(lambda: store.available)
        yield store
    finally:
        await store.aclose()


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not holds():  # noqa: ASYNC110 - other processes, which set no event here
            await asyncio.sleep(0.01)


async def written(store: RedisStore, key: Key = KEY, data: bytes = DATA, fingerprint: str = "fp") -> None:
    assert store.put(key.entry(fingerprint), data, 60.0)
    await store.flush(LIMIT_S)


async def fails(store: RedisStore) -> str:
    """Why a lookup fails now."""
    with pytest.raises(StoreError) as failure:
        await store.lookup([KEY.entry("fp")], LEASE)
    return str(failure.value)


async def test_what_was_put_is_found_under_the_best_of_its_names(valkey: StartValkey) -> None:
    async with store_at(valkey().url) as store:
        assert (await store.lookup([KEY.entry("fp")], LEASE)).data is None
        await written(store)
        found = await store.lookup([KEY.entry("other"), KEY.entry("fp")], LEASE)
        assert found == (KEY.entry("fp"), DATA, "")
        await written(store, data=DATA + b"!", fingerprint="other")
        assert (await store.lookup([KEY.entry("other"), KEY.entry("fp")], LEASE)).name == KEY.entry("other")
        store.drop(KEY.entry("fp"))
        await store.flush(LIMIT_S)
        assert (await store.lookup([KEY.entry("fp")], LEASE)).data is None


async def test_an_entry_expires(valkey: StartValkey) -> None:
    server = valkey()
    async with store_at(server.url) as store:
        store.put(KEY.entry("fp"), DATA, 0.05)
        await store.flush(LIMIT_S)
        await until(lambda: not server.keys())


async def test_many_values_are_read_at_once(valkey: StartValkey) -> None:
    keys = [make_key("embeddings", "m", "", {"input": b"%d" % i}) for i in range(500)]
    async with store_at(valkey().url) as store:
        for key in keys[::2]:
            store.put(key.entry("fp"), key.digest.encode(), 60.0)
        await store.flush(LIMIT_S)
        values = await store.get_many([key.entry("fp") for key in keys])
        assert values == [None if i % 2 else key.digest.encode() for i, key in enumerate(keys)]


async def test_a_lease_is_one_replicas_until_it_is_given_back_or_runs_out(valkey: StartValkey) -> None:
    server = valkey()
    async with store_at(server.url) as store:
        assert (await store.lookup([KEY.entry("fp")], LEASE, "us")).holder == "us"
        assert (await store.lookup([KEY.entry("fp")], LEASE, "them")).holder == "us"
        assert (await store.lookup([KEY.entry("fp")], LEASE)).holder == ""
        with server.client() as client:
            assert 0 < client.pttl("paceline:" + LEASE) <= 5000
        await written(store)
        assert (await store.lookup([KEY.entry("fp")], LEASE, "them")).data == DATA


class TestManyAtOnce:
    """Lookups of many requests go together; each is still one request's own."""

    async def test_each_gets_its_own_answer_over_few_connections(self, valkey: StartValkey) -> None:
        server = valkey()
        keys = [make_key("chat", "m", "", {"messages": b"%d" % i}) for i in range(300)]
        async with store_at(server.url) as store:
            for key in keys[::2]:
                store.put(key.entry("fp"), key.digest.encode(), 60.0)
            await store.flush(LIMIT_S)
            with server.client() as client:
                client.script_flush()  # as a server that was restarted: it knows no script
                found = await asyncio.gather(*(store.lookup([k.entry("fp")], k.lease(["fp"]), "us") for k in keys))
                connections = len(client.client_list())
            assert [each.data for each in found] == [None if i % 2 else k.digest.encode() for i, k in enumerate(keys)]
            assert [each.holder for each in found] == ["us" if i % 2 else "" for i in range(300)]
            assert connections < 10

    async def test_one_that_is_cancelled_disturbs_nobody(self, valkey: StartValkey) -> None:
        async with store_at(valkey().url) as store:
            await written(store)
            looking = [asyncio.create_task(store.lookup([KEY.entry("fp")], LEASE)) for _ in range(6)]
            await asyncio.sleep(0)
            looking[0].cancel()  # the one that is being sent
            looking[3].cancel()
            found = await asyncio.gather(*looking, return_exceptions=True)
            assert [getattr(each, "data", None) for each in found] == [None, DATA, DATA, None, DATA, DATA]
            assert (await store.lookup([KEY.entry("fp")], LEASE)).data == DATA

    async def test_none_waits_longer_than_its_limit_and_all_work_again_afterwards(self, valkey: StartValkey) -> None:
        server = valkey()
        async with store_at(server.url, lookup_s=0.2) as store:
            await written(store)
            await store.lookup([KEY.entry("fp")], LEASE)
            server.freeze()
            said = await asyncio.gather(
                *(store.lookup([KEY.entry("fp")], LEASE) for _ in range(50)), return_exceptions=True
            )
            assert {str(each) for each in said} == {"no answer within 200 ms"}
            server.thaw()
            await until(lambda: store.available)
            found = await asyncio.gather(*(store.lookup([KEY.entry("fp")], LEASE) for _ in range(50)))
            assert {each.data for each in found} == {DATA}


class TestClearing:
    async def test_by_model_scope_and_age(self, valkey: StartValkey) -> None:
        server = valkey()
        async with store_at(server.url) as store:
            for model in ("a", "b"):
                for scope in ("ann", "bob"):
                    for i in range(3):
                        key = make_key("chat", model, scope, {"messages": b"%d" % i})
                        created = 1000.0 + i
                        store.put(key.entry("fp"), Codec().seal(key.entry("fp"), b"x", created), 60.0)
            await store.flush(LIMIT_S)
            with server.client() as client:
                client.set("someone-elses", "1")
                client.set("paceline:not-an-entry", "1")
            counted = await store.count(pattern())
            assert {model: entries for model, (entries, _) in counted.items()} == {tag("a"): 6, tag("b"): 6}
            assert await store.clear(pattern(model="a", scope="ann")) == 3
            assert await store.clear(pattern(model="b"), older_than_s=0) == 6
            assert await store.clear(pattern(scope="ann")) == 0
            assert await store.clear(pattern()) == 3
            assert server.keys() == ["paceline:not-an-entry", "someone-elses"]

    async def test_only_what_is_older(self, valkey: StartValkey) -> None:
        async with store_at(valkey().url) as store:
            now = Entry("m", "d", "e", "bf16", 4e9, 4e9 + 1, False, b"{}")
            await written(store)
            await written(store, data=Codec().pack(KEY.entry("new"), now), fingerprint="new")
            assert await store.clear(pattern(), older_than_s=60) == 1
            assert [kept.name for kept in await store.matching(pattern(), 10)] == [KEY.entry("new")]

    async def test_many_thousands_while_others_go_on(self, valkey: StartValkey) -> None:
        server = valkey()
        with server.client() as client:
            pipeline = client.pipeline(transaction=False)
            for i in range(20_000):
                pipeline.set("paceline:" + make_key("chat", "m", "", {"messages": b"%d" % i}).entry("fp"), b"x" * 100)
            pipeline.execute()
        async with store_at(server.url) as store:
            clearing = asyncio.create_task(store.clear(pattern()))
            looked = 0
            while not clearing.done():
                await store.lookup([KEY.entry("fp")], LEASE)
                looked += 1
            assert clearing.result() == 20_000
            assert looked > 20


class TestFaults:
    async def test_nobody_there_is_no_error_and_it_is_used_as_soon_as_it_comes(
        self, valkey: StartValkey, caplog: pytest.LogCaptureFixture
    ) -> None:
        server = valkey(tcp=True)
        server.kill()
        store = RedisStore(parse_address(server.url), lookup_s=0.5)
        store.open()
        try:
            assert "left alone" in await fails(store)
            assert not store.put(KEY.entry("fp"), DATA, 60.0)
            await until(lambda: store.reading.why)
            server.start()
            await until(lambda: store.available)
            await written(store)
            assert (await store.lookup([KEY.entry("fp")], LEASE)).data == DATA
        finally:
            await store.aclose()
        assert [record.levelname for record in caplog.records if record.name == "paceline.cache"] == ["WARNING"] * 2

    async def test_frozen_it_costs_five_lookups_their_limit_and_is_used_again_when_thawed(
        self, valkey: StartValkey, caplog: pytest.LogCaptureFixture
    ) -> None:
        server = valkey()
        async with store_at(server.url, lookup_s=0.02) as store:
            await written(store)
            server.freeze()
            loop = asyncio.get_running_loop()
            started = loop.time()
            for _ in range(5):
                assert "no answer within 20 ms" in await fails(store)
            assert loop.time() - started < 2.0
            assert not store.available
            for _ in range(200):
                assert "left alone" in await fails(store)
            server.thaw()
            await until(lambda: store.available)
            store._lookup_s = LIMIT_S
            assert (await store.lookup([KEY.entry("fp")], LEASE)).data == DATA
        assert _lines(caplog) == ["reading", "reading"]

    async def test_killed_under_load_no_lookup_raises_anything_but_that_it_fails(self, valkey: StartValkey) -> None:
        server = valkey(tcp=True, persistent=True)
        async with store_at(server.url) as store:
            await written(store)
            outcomes: set[str] = set()

            async def look() -> None:
                while "back" not in outcomes:
                    try:
                        found = await store.lookup([KEY.entry("fp")], LEASE)
                        if found.data == DATA:
                            outcomes.add("back" if "away" in outcomes else "hit")
                    except StoreError:
                        outcomes.add("away")
                    await asyncio.sleep(0.001)

            async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
                for _ in range(20):
                    group.create_task(look())
                await until(lambda: "hit" in outcomes)
                server.kill()
                await until(lambda: not store.available)
                server.start()

    async def test_a_wrong_password_is_said_once_and_never_shown(
        self, valkey: StartValkey, caplog: pytest.LogCaptureFixture
    ) -> None:
        server = valkey(tcp=True, requirepass="right")
        store = RedisStore(parse_address(server.url.replace("://", "://:wr0ng@")))
        store.open()
        try:
            await until(lambda: store.reading.why)
            assert "left alone" in await fails(store)
        finally:
            await store.aclose()
        assert _lines(caplog) == ["reading"]
        assert "invalid username-password" in caplog.text.lower()
        assert "wr0ng" not in caplog.text

    async def test_with_the_right_password_or_an_acl_user_it_works(self, valkey: StartValkey) -> None:
        server = valkey(tcp=True, requirepass="p@ss/1", user=("ann", "on", ">s3cret", "~paceline:*", "+@all"))
        for login in (":p%40ss%2F1@", "default:p%40ss%2F1@", "ann:s3cret@"):
            async with store_at(server.url.replace("://", f"://{login}")) as store:
                await written(store)
                assert (await store.lookup([KEY.entry("fp")], LEASE)).data == DATA

    async def test_a_full_server_is_still_read(self, valkey: StartValkey, caplog: pytest.LogCaptureFixture) -> None:
        server = valkey(maxmemory_policy="noeviction")
        async with store_at(server.url) as store:
            await written(store)
            with server.client() as client:
                client.config_set("maxmemory", "1")
            for i in range(5):
                store.put(KEY.entry(f"{i}"), DATA, 60.0)
                await store.flush(LIMIT_S)
            assert store.writing.open
            assert not store.put(KEY.entry("6"), DATA, 60.0)
            found = await store.lookup([KEY.entry("fp")], LEASE, "us")
            assert found.data == DATA
            assert (await store.lookup([KEY.entry("none")], LEASE, "us")).holder == ""
            with server.client() as client:
                client.config_set("maxmemory", "0")
            await until(lambda: not store.writing.open)
            await written(store, fingerprint="7")
        assert _lines(caplog) == ["writing", "writing"]
        assert "maxmemory" in caplog.text

    async def test_a_read_only_server_is_still_read(self, valkey: StartValkey) -> None:
        master = valkey(tcp=True)
        replica = valkey(tcp=True, replicaof=f"127.0.0.1 {master.port}")
        async with store_at(master.url) as store:
            await written(store)
        await until(lambda: replica.keys())
        async with store_at(replica.url) as store:
            for i in range(5):
                store.put(KEY.entry(f"{i}"), DATA, 60.0)
                await store.flush(LIMIT_S)
            assert store.writing.open
            assert (await store.lookup([KEY.entry("fp")], LEASE, "us")).data == DATA
            assert (await store.lookup([KEY.entry("none")], LEASE, "us")).holder == ""

    async def test_a_foreign_value_under_our_name_is_no_entry_and_is_overwritten(self, valkey: StartValkey) -> None:
        server = valkey()
        with server.client() as client:
            client.rpush("paceline:" + KEY.entry("fp"), "a list")
            client.rpush("paceline:" + LEASE, "a list")
        async with store_at(server.url) as store:
            assert await store.lookup([KEY.entry("fp")], LEASE, "us") == ("", None, "")
            assert await store.get_many([KEY.entry("fp")]) == [None]
            await written(store)
            assert (await store.lookup([KEY.entry("fp")], LEASE)).data == DATA

    async def test_something_that_is_no_redis_is_one_line_in_the_log(
        self, scripted: Callable[..., object], caplog: pytest.LogCaptureFixture
    ) -> None:
        port = scripted(kind="llamacpp").url.rpartition(":")[2]  # type: ignore[attr-defined]
        store = RedisStore(parse_address(f"redis://127.0.0.1:{port}"))
        store.open()
        try:
            await until(lambda: store.reading.why)
        finally:
            await store.aclose()
        assert _lines(caplog) == ["reading"]

    async def test_closing_does_not_wait_for_a_frozen_server(self, valkey: StartValkey) -> None:
        server = valkey()
        loop = asyncio.get_running_loop()
        async with store_at(server.url) as store:
            server.freeze()
            store.put(KEY.entry("fp"), DATA, 60.0)
            started = loop.time()
        assert loop.time() - started < 5.0


class TestTopologies:
    async def test_cluster(self, valkey: StartValkey) -> None:
        nodes = [valkey(tcp=True, cluster_enabled="yes", cluster_port=str(free_port())) for _ in range(3)]
        await form_cluster(nodes)
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in nodes)
        async with store_at(f"redis+cluster://{hosts}") as store:
            keys = [make_key("chat", "m", "", {"messages": b"%d" % i}) for i in range(60)]
            for key in keys:
                assert (await store.lookup([key.entry("a"), key.entry("b")], key.lease([]), "us")).holder == "us"
                store.put(key.entry("b"), key.digest.encode(), 60.0)
            await store.flush(LIMIT_S)
            for key in keys:
                found = await store.lookup([key.entry("a"), key.entry("b")], key.lease([]), "us")
                assert found.data == key.digest.encode()
            assert await store.get_many([key.entry("b") for key in keys]) == [key.digest.encode() for key in keys]
            assert all(node.keys("paceline:*") for node in nodes)
            assert await store.clear(pattern()) == 60
            assert (await store.info())["redis_version"]

    async def test_sentinel_and_its_failover(self, valkey: StartValkey) -> None:
        master = valkey(tcp=True)
        replica = valkey(tcp=True, replicaof=f"127.0.0.1 {master.port}")
        sentinel = Valkey(tcp=True)
        try:
            configuration = sentinel.folder / "sentinel.conf"
            configuration.write_text(
                f"port {sentinel.port}\ndir {sentinel.folder}\n"
                f"sentinel monitor answers 127.0.0.1 {master.port} 1\n"
                "sentinel down-after-milliseconds answers 300\nsentinel failover-timeout answers 2000\n"
            )
            sentinel.start(str(configuration), "--sentinel")
            async with store_at(f"redis+sentinel://127.0.0.1:{sentinel.port}/answers") as store:
                await written(store)
                await until(lambda: replica.keys())
                with sentinel.client() as client:
                    await until(lambda: client.execute_command("SENTINEL", "REPLICAS", "answers"))
                master.kill()
                await until(lambda: _is_master(replica))
                async with asyncio.timeout(LIMIT_S):
                    while True:
                        try:
                            assert (await store.lookup([KEY.entry("fp")], LEASE)).data == DATA
                            break
                        except StoreError:
                            await asyncio.sleep(0.02)
        finally:
            sentinel.stop()


async def form_cluster(nodes: list[Valkey]) -> None:
    """Give each node its share of the slots and wait until all agree."""
    share = 16384 // len(nodes) + 1
    for i, node in enumerate(nodes):
        with node.client() as client:
            client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", i + 1)
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", i * share, min(16383, (i + 1) * share - 1))
    for node in nodes:
        with node.client() as client:
            for other in nodes:
                client.execute_command("CLUSTER", "MEET", "127.0.0.1", other.port, other.option("cluster-port"))
    for node in nodes:
        await until(lambda node=node: _is_in_agreement(node))


def _is_in_agreement(node: Valkey) -> bool:
    with node.client() as client:
        return client.execute_command("CLUSTER INFO")["cluster_state"] == "ok"


def _is_master(server: Valkey) -> bool:
    with contextlib.suppress(redis.exceptions.ConnectionError), server.client() as client:
        return bool(client.info("replication")["role"] == "master")
    return False


def _lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What each line of the cache's log is about, in order: one a change."""
    return [
        r.getMessage().split()[1] for r in caplog.records if r.name == "paceline.cache" and r.levelno >= logging.WARNING
    ]
