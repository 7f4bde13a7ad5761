"""Buckets: a burst, then no more than the rate, whatever is asked."""

from __future__ import annotations

from policies.bucket import Bucket


def test_a_bucket_gives_a_burst_and_then_its_rate() -> None:
    bucket = Bucket(per_s=2.0, most=3.0)
    assert [bucket.take(0.0) for _ in range(5)] == [True, True, True, False, False]
    assert [bucket.take(1.0) for _ in range(3)] == [True, True, False]


def test_what_does_not_fit_is_lost() -> None:
    bucket = Bucket(per_s=1.0, most=2.0)
    bucket.add(100.0, 0.0)
    assert [bucket.take(50.0) for _ in range(3)] == [True, True, False]


def test_time_that_runs_backwards_takes_nothing_away() -> None:
    bucket = Bucket(per_s=1.0, most=1.0)
    assert bucket.take(5.0)
    assert not bucket.take(1.0)
    assert bucket.take(2.0)
