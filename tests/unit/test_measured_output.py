"""What is read from an engine's answer to a measurement, and when that answer is not normal."""

from __future__ import annotations

import pytest

from measure.output import embedding_faults, stop_faults, streamed_text, text_faults


@pytest.mark.parametrize(
    ("events", "text"),
    [
        (b'data: {"choices":[{"delta":{"role":"assistant","content":null}}]}\n\n', ""),
        (
            b'data: {"choices":[{"delta":{"content":"Hel"}}]}\n\ndata:{"choices":[{"delta":{"content":"lo"}}]}\n\n',
            "Hello",
        ),
        (b'data: {"choices":[{"delta":{"reasoning_content":"hm"}}]}\r\n\r\ndata: [DONE]\r\n\r\n', "hm"),
        (b': a comment\n\ndata: {"choices":[{"text":"plain"}]}\n\ndata: {"choices":[],"usage":{}}\n\n', "plain"),
        (b"data: 3\n\ndata: nonsense\n\n", ""),
    ],
)
def test_the_text_of_a_stream_is_found(events: bytes, text: str) -> None:
    assert streamed_text(events) == text


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("An ordinary answer.", ()),
        ("Ja, natürlich! 好的", ()),
        ("", ("empty",)),
        (" \n\t ", ("empty",)),
        ("!!!!!!!!!!!!!!!!", ("loop",)),
        ("!!!", ()),
        ("half a ch\ufffdaracter", ("broken Unicode",)),
        ("cut at the end \ufffd", ()),
        ("\ufffd\ufffd\ufffd", ("broken Unicode",)),
        ("The ferry leaves at noon. " * 8, ("loop",)),
        ("1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27", ()),
        ("河边的小店里有旧书。" * 15, ("loop",)),
        ("I see.<|im_end|>", ("template marker",)),
        ("[INST] what next? [/INST]", ("template marker",)),
        ("<start_of_turn>user", ("template marker",)),
        ("a</s>", ("template marker",)),
        ("if a <| b |> c: x[INSTANCE]", ()),
    ],
)
def test_faults_of_a_text_are_named(text: str, faults: tuple[str, ...]) -> None:
    assert text_faults(text) == faults


@pytest.mark.parametrize(
    ("body", "faults"),
    [
        (b'{"data":[{"embedding":[0.1,0.2]}]}', ()),
        (b'{"data":[{"embedding":"AAAA"}]}', ()),
        (b'{"data":[{"embedding":[]}]}', ("empty",)),
        (b'{"data":[]}', ("empty",)),
        (b"[]", ("empty",)),
        (b"", ("empty",)),
    ],
)
def test_an_embedding_without_a_vector_is_a_fault(body: bytes, faults: tuple[str, ...]) -> None:
    assert embedding_faults(body) == faults


ORDINARY = (
    "The report is short because the experiment failed early, which saved everybody time. Copper gets warm faster than "
    "iron, so the cook trusts the old pan. When the bakery closed, the whole street smelled of nothing for a month."
)


@pytest.mark.parametrize("text", [ORDINARY, "\n".join(f"{i}. step number {i * 7}" for i in range(12))])
def test_a_long_text_that_goes_on_is_no_loop(text: str) -> None:
    assert text_faults(text) == ()


def test_a_text_that_begins_well_and_then_repeats_itself_is_a_loop() -> None:
    assert text_faults(ORDINARY[:90] + " and then he said that" * 20) == ("loop",)


@pytest.mark.parametrize(
    ("reason", "written", "forced", "faults"),
    [
        ("length", 32, True, ()),
        ("stop", 7, True, ("unexpected stop",)),
        ("stop", 7, False, ()),
        ("length", 32, False, ()),
        ("", 7, False, ()),
        ("content_filter", 7, False, ("unexpected stop",)),
    ],
)
def test_an_answer_has_to_end_as_it_was_asked_to(
    reason: str, written: int, forced: bool, faults: tuple[str, ...]
) -> None:
    assert stop_faults(reason, written, 32, forced=forced) == faults
