"""What pairs teach: those of an engine's own kind first, those of others where it has none."""

from __future__ import annotations

from measurements import deployment

from gateway.learned import Learned
from policies.types import Deployment, PairSample, SpeedSample

LLAMA, OTHER_LLAMA, VLLM = (
    deployment(name, engine=kind) for name, kind in (("a", "llamacpp"), ("b", "llamacpp"), ("c", "vllm"))
)
ALL = (LLAMA, OTHER_LLAMA, VLLM)


def pairs(neighbour: str, slower: float) -> tuple[PairSample, ...]:
    return tuple(PairSample(neighbour, activity, slower, slower) for activity in ("decoding", "prefilling"))


def taught(*lessons: tuple[Deployment, tuple[PairSample, ...]]) -> Learned:
    learned = Learned()
    for each in ALL:
        learned.measured(each, [SpeedSample(100, 16, 1.0, 0.1)])
    for timed, found in lessons:
        learned.paired(timed, found, ALL)
    return learned


def factor(learned: Learned, of: Deployment, kind: str) -> float:
    profile = learned.predictor.profile(of.fingerprint)
    assert profile is not None
    return round(profile.contention.factor("decode", {kind: 1.0}), 3)


async def test_how_one_engine_is_slowed_by_itself_is_taken_for_its_kind_alone() -> None:
    before = factor(taught(), VLLM, "same_decoding")
    learned = taught((LLAMA, pairs("same", 1.7)))
    assert [factor(learned, each, "same_decoding") for each in ALL] == [1.7, 1.7, before]


async def test_how_others_slow_one_is_taken_for_all_until_their_own_kind_is_measured() -> None:
    llama, vllm = (LLAMA, pairs("other", 3.0)), (VLLM, pairs("other", 1.5))
    for learned in (taught(llama), taught(llama, vllm), taught(vllm, llama)):
        assert [factor(learned, each, "other_decoding") for each in (LLAMA, OTHER_LLAMA)] == [3.0, 3.0]
    assert factor(taught(llama), VLLM, "other_decoding") == 3.0
    assert factor(taught(llama, vllm), VLLM, "other_decoding") == 1.5
    assert factor(taught(vllm, llama), VLLM, "other_decoding") == 1.5


async def test_other_kinds_pairs_leave_what_serving_has_taught_as_it_is() -> None:
    learned = taught((VLLM, pairs("other", 1.5)))
    profile = learned.predictor.profile(VLLM.fingerprint)
    assert profile is not None
    for _ in range(5):
        profile.contention.learn("decode", {"other_decoding": 1.0}, 2.0)
    known = factor(learned, VLLM, "other_decoding")
    learned.paired(LLAMA, pairs("other", 3.0), ALL)
    assert factor(learned, VLLM, "other_decoding") == known
