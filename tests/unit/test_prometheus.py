"""Gauges out of engines' metrics."""

from __future__ import annotations

from adapters.prometheus import read_gauges, read_label

TEXT = b"""# HELP vllm:num_requests_running Number of requests.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_running{engine="1",model_name="m"} 3.0
vllm:num_requests_waiting_by_reason{reason="capacity"} 9.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.5
llamacpp:requests_processing 1
nothing NaN
strange word
"""


def test_counts_are_summed_and_usages_are_the_highest() -> None:
    gauges = read_gauges(TEXT)
    assert gauges.total("vllm:num_requests_running") == 5
    assert gauges.highest("vllm:kv_cache_usage_perc", "other") == 0.5
    assert gauges.highest("older", "vllm:kv_cache_usage_perc") == 0.5
    assert gauges.total("llamacpp:requests_processing") == 1


def test_what_is_not_there_is_none() -> None:
    gauges = read_gauges(TEXT)
    for name in ("vllm:num_requests_waiting", "nothing", "strange"):
        assert gauges.total(name) is None
        assert gauges.highest(name) is None
    assert read_gauges(b"\xff\xfe").total("x") is None


def test_settings_are_read_out_of_labels() -> None:
    text = b"""# TYPE other:info gauge
other:info{block_size="1"} 1.0
a:info{hash_block_size="64",block_size="128",is_on="False"} 1.0
"""
    assert read_label(text, "a:info", "block_size") == "128"
    assert read_label(text, "a:info", "hash_block_size") == "64"
    assert read_label(text, "a:info", "is_on") == "False"
    for name, label in (("a:info", "size"), ("a", "block_size"), ("info", "block_size"), ("b:info", "block_size")):
        assert read_label(text, name, label) is None
