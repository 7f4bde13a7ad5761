"""Who is tested, and against whom."""

from __future__ import annotations

from fleets import deployment

from measure.quality.roles import Roles, roles
from policies.types import Capability, Deployment, Precision

CHAT = frozenset({Capability.CHAT})
F16 = deployment("f16", Precision.FP16)
Q8 = deployment("q8", Precision.INT8)
Q4 = deployment("q4", Precision.INT4)


def found(*deployments: Deployment, named: tuple[str, ...] = (), baseline: str = "") -> list[Roles]:
    chosen = [each for each in deployments if not named or each.id in named]
    return roles(deployments, chosen, named=named, baseline=baseline)


def test_quantised_deployments_are_compared_with_the_best_precision() -> None:
    assert found(Q4, F16, Q8) == [Roles(F16, (Q4, Q8))]


def test_without_16_bits_the_best_there_is_will_do() -> None:
    assert found(Q4, Q8) == [Roles(Q8, (Q4,))]


def test_a_model_with_nothing_to_compare_is_left_out() -> None:
    assert found(Q4) == []
    assert found(F16, deployment("bf16", Precision.BF16)) == []


def test_an_unknown_precision_has_to_pass_as_well() -> None:
    unknown = deployment("unknown", Precision.UNKNOWN)
    assert found(unknown, F16) == [Roles(F16, (unknown,))]


def test_16_bits_are_tested_only_when_named_by_id() -> None:
    other = deployment("bf16", Precision.BF16, capabilities=CHAT)
    assert found(F16, other, named=("bf16",)) == [Roles(F16, (other,))]


def test_the_baseline_can_be_chosen() -> None:
    assert found(Q4, F16, Q8, baseline="q8") == [Roles(Q8, (Q4,))]


def test_among_equals_the_baseline_gives_log_probabilities_and_is_of_the_candidates_kind() -> None:
    silent = deployment("a", Precision.FP16, capabilities=CHAT)
    other = deployment("z", Precision.BF16, engine="vllm")
    assert found(silent, other, F16, Q8)[0].baseline is F16
    assert found(silent, other, Q8)[0].baseline is other


def test_hosted_apis_are_neither_tested_nor_compared_with_where_there_is_another() -> None:
    hosted = deployment("hosted", Precision.UNKNOWN, hosted=True)
    assert found(hosted, Q8, Q4) == [Roles(Q8, (Q4,))]


def test_what_does_not_chat_takes_no_part() -> None:
    embeds = deployment("embeds", Precision.INT8, capabilities=frozenset({Capability.EMBEDDINGS}))
    assert found(embeds, F16) == []


def test_models_are_tested_apart() -> None:
    other = deployment("other-q4", Precision.INT4, model="other")
    better = deployment("other-q8", Precision.INT8, model="other")
    assert found(Q4, other, F16, better) == [Roles(F16, (Q4,)), Roles(better, (other,))]
