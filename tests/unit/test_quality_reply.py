"""What is read of an engine's answer, and what becomes of two of them."""

from __future__ import annotations

import math

import pytest
from replies import GOOD, OTHER, pair, prompt, said

from measure.quality.pairs import FLOOR_NATS, Pair, pair_up
from measure.quality.reply import Reply, Token, ToolCall, read_reply


def token(text: str, logprob: object, **rivals: float) -> dict[str, object]:
    top = [{"token": piece, "logprob": value, "bytes": list(piece.encode())} for piece, value in rivals.items()]
    return {"token": text, "logprob": logprob, "bytes": None, "top_logprobs": top}


def body(message: dict[str, object], **choice: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "finish_reason": "stop", "message": message, **choice}]}


def test_text_reasoning_calls_and_the_end_are_read() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    reply = read_reply(body({"content": "Hello", "reasoning_content": "Hm. ", "tool_calls": [call]}), 7)
    assert (reply.text, reply.reasoning, reply.finish, reply.prompt_tokens) == ("Hello", "Hm. ", "stop", 7)
    assert reply.calls == (ToolCall("add", '{"a": 1}'),)
    assert reply.written == 'Hm. Helloadd({"a": 1})'


def test_tokens_are_known_by_their_bytes_since_their_text_may_be_half_a_character() -> None:
    entry = {"token": "\ufffd", "logprob": -0.5, "bytes": [0xE6, 0x9C], "top_logprobs": []}
    reply = read_reply(body({"content": "x"}, logprobs={"content": [entry, token("b", -1, a=-0.5)]}), None)
    assert reply.tokens == (Token(b"\xe6\x9c", -0.5), Token(b"b", -1.0, {b"a": -0.5}))


@pytest.mark.parametrize("logprob", [None, "much", math.nan, True])
def test_without_a_usable_probability_for_each_token_there_are_none(logprob: object) -> None:
    entries = [token("a", -0.1), token("b", logprob)]
    assert read_reply(body({"content": "ab"}, logprobs={"content": entries}), None).tokens == ()


@pytest.mark.parametrize("strange", [{}, {"choices": []}, {"choices": [None]}, {"choices": [{"message": "text"}]}])
def test_an_answer_of_another_shape_is_empty(strange: dict[str, object]) -> None:
    assert read_reply(strange, None) == Reply()


def test_equal_answers_agree_in_everything() -> None:
    same = pair(before=-0.3, after=-0.3)
    assert not same.diverged
    assert (same.prefix_share, same.edit_share) == (1.0, 0.0)
    assert same.shared is not None
    assert same.shared.loss == 0.0


def test_answers_are_compared_up_to_the_first_word_that_differs() -> None:
    found = pair("one two three four", "one two six four")
    assert (found.same_words, found.diverged, found.prefix_share, found.edit_share) == (2, True, 0.5, 0.25)
    assert found.same_characters == len("one two ")


def test_empty_answers_agree() -> None:
    found = pair("", "")
    assert (found.diverged, found.prefix_share, found.edit_share) == (False, 1.0, 0.0)


def test_the_loss_counts_the_shared_tokens_and_the_first_that_differs() -> None:
    mine = (Token(b"a", -0.1), Token(b"b", -0.2), Token(b"c", -0.3))
    theirs = (Token(b"a", -0.2), Token(b"x", -0.6, {b"x": -0.6, b"b": -0.9}), Token(b"c", -9.0))
    shared = Pair(prompt(), said("abc", tokens=mine), said("axc", tokens=theirs)).shared
    assert shared is not None
    assert shared.places == 2
    assert shared.loss == pytest.approx(0.1 + 0.7)


@pytest.mark.parametrize(
    ("mine", "theirs", "places"),
    [
        ((b"a", b" har", b"bour"), (b"a", b" harbour"), 1),
        ((b"a", b"\xe6", b"\x9c"), (b"a", "\ufffd".encode()), 1),
        ((b" The", b" sea"), (b"The", b" sea"), 2),
        ((b"harb", b"our"), (b"harbour",), 0),
    ],
)
def test_the_same_text_in_other_tokens_is_no_loss(
    mine: tuple[bytes, ...], theirs: tuple[bytes, ...], places: int
) -> None:
    sides = [
        said("x", tokens=[Token(piece, -0.5, {piece: -0.5, b"?": -9.0}) for piece in each]) for each in (mine, theirs)
    ]
    shared = Pair(prompt(), *sides).shared
    assert (shared.places if shared else 0) == places
    assert shared is None or shared.loss == 0.0


def test_other_space_within_a_text_is_another_token() -> None:
    mine = (Token(b"a", -0.5), Token(b"\n", -0.5))
    theirs = (Token(b"a", -0.5), Token(b" ", -0.5, {b" ": -0.5, b"\n": -2.5}))
    shared = Pair(prompt(), said("a", tokens=mine), said("a", tokens=theirs)).shared
    assert shared is not None
    assert (shared.places, shared.loss) == (2, 2.0)


def test_a_token_that_is_not_among_the_rivals_counts_as_the_least_of_them() -> None:
    theirs = (Token(b"x", -0.1, {b"x": -0.1, b"y": -4.0}),)
    shared = Pair(prompt(), said("a", tokens=[Token(b"a", -0.5)]), said("x", tokens=theirs)).shared
    assert shared is not None
    assert shared.loss == pytest.approx(3.5)


def test_one_impossible_token_does_not_drown_all_others() -> None:
    theirs = (Token(b"x", 0.0, {b"a": -math.inf}),)
    shared = Pair(prompt(), said("a", tokens=[Token(b"a", -0.5)]), said("x", tokens=theirs)).shared
    assert shared is not None
    assert shared.loss == FLOOR_NATS


def test_without_log_probabilities_on_both_sides_nothing_is_said_of_them() -> None:
    assert pair(before=-0.3).shared is None
    assert pair(after=-0.3).shared is None


def test_only_prompts_that_both_have_answered_make_pairs() -> None:
    prompts = [prompt(number) for number in range(4)]
    mine = {each.id: said(GOOD) for each in prompts[:3]}
    theirs = {each.id: said(OTHER) for each in prompts[1:]} | {prompts[1].id: Reply(failed="Broken: out of memory")}
    assert [each.prompt.id for each in pair_up(prompts, mine, theirs)] == ["format/2"]
