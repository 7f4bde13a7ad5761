"""Tool calls and reasoning are taken out of an answer's text, however it is cut into pieces."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.dialogue import Dialogue, message
from engine.tool_calls import Delta

HERMES = "{% if tools %}{{ tools }}<tool_call>{% endif %}</think>{% for m in messages %}{{ m.content }}{% endfor %}"
MISTRAL = "{% if tools %}[AVAILABLE_TOOLS]{{ tools }}{% endif %}[TOOL_CALLS]"
LLAMA = "{% if tools %}{{ tools }}{% endif %}<|eot_id|>"
GEMMA = "{% for m in messages %}<start_of_turn>{{ m.content }}{% endfor %}"
CALL = {"name": "weather", "arguments": {"city": "Zürich {x}", "note": 'say "}" \\ ["a"]', "days": [1, {"a": None}]}}
TEXT = json.dumps(CALL, ensure_ascii=False)
LIST = json.dumps([CALL, {"name": "clock", "arguments": {}}], ensure_ascii=False)
# Quotes of either kind, escaped ones and brackets within texts, and Python's own names for values.
PYTHON = """weather(city='Zürich {x}', note="say \\"}\\" \\\\ [\\"a\\"]", days=[1, {'a': None}])"""
ARGUMENTS = json.dumps(CALL["arguments"], ensure_ascii=False)

# template, prompt, answer, content, reasoning, names called
ANSWERS: list[tuple[str, str, str, str | None, str | None, list[str]]] = [
    (HERMES, "", "plain, with <b>marks</b>\n", "plain, with <b>marks</b>\n", None, []),
    (HERMES, "", f"<tool_call>\n{TEXT}\n</tool_call>", None, None, ["weather"]),
    (HERMES, "", f"Let me look.\n<tool_call>\n{TEXT}\n</tool_call>\n", "Let me look.", None, ["weather"]),
    (HERMES, "", f"<tool_call>{TEXT}</tool_call><tool_call>{TEXT}</tool_call> done", "done", None, ["weather"] * 2),
    (HERMES, "", f"<tool_call>{TEXT}</tool_call> done \n", "done", None, ["weather"]),
    (HERMES, "", f"Hm.\n<tool_call>{TEXT}</tool_call>So.", "Hm.So.", None, ["weather"]),
    (HERMES, "", f'<tool_call>{TEXT[:-1]}, "more": [{{}}]}}</tool_call>', None, None, ["weather"]),
    (LLAMA, "", "[", "[", None, []),
    (HERMES, "", '<tool_call>{"name": "radio"}</tool_call>', None, None, ["radio"]),
    (HERMES, "", f"<think>\nhm, <b>\n\n</think>\n\n<tool_call>{TEXT}</tool_call>", None, "hm, <b>", ["weather"]),
    (HERMES, "<think>\n", "why\n</think>\n\nSo.", "So.", "why", []),
    (HERMES, "<think>\n\n</think>\n\n", "So.", "So.", None, []),
    (HERMES, "", "<think>\nnever ends \n", None, "never ends", []),
    (HERMES, "", " <thinking> aloud", " <thinking> aloud", None, []),
    (HERMES, "", "<tool_call>{broken}</tool_call>", "<tool_call>{broken}</tool_call>", None, []),
    (HERMES, "", "<tool_call>nothing", "<tool_call>nothing", None, []),
    (HERMES, "", "a < b", "a < b", None, []),
    (MISTRAL, "", f"[TOOL_CALLS]{LIST}", None, None, ["weather", "clock"]),
    (MISTRAL, "", f"Ok [1]. [TOOL_CALLS] [{TEXT}]", "Ok [1].", None, ["weather"]),
    (MISTRAL, "", f"[TOOL_CALLS]weather[ARGS]{ARGUMENTS}[TOOL_CALLS]clock{{}}", None, None, ["weather", "clock"]),
    (MISTRAL, "", f"[TOOL_CALLS]weather[CALL_ID]abc[ARGS]{ARGUMENTS}", None, None, ["weather"]),
    (LLAMA, "", TEXT.replace("arguments", "parameters"), None, None, ["weather"]),
    (LLAMA, "", f"<|python_tag|>{TEXT}; {TEXT}", None, None, ["weather", "weather"]),
    (LLAMA, "", '{"type": "function", "function": "clock"}', None, None, ["clock"]),
    (LLAMA, "", '{"function": {"name": "clock", "arguments": {}}}', None, None, ["clock"]),
    (LLAMA, "", '{"name": "Ada", "born": 1815} was it', '{"name": "Ada", "born": 1815} was it', None, []),
    (LLAMA, "", '{"a": {"name": "clock"}}', '{"a": {"name": "clock"}}', None, []),
    (LLAMA, "", f"I would call {TEXT}", f"I would call {TEXT}", None, []),
    (GEMMA, "", f"```json\n{TEXT}\n```", None, None, ["weather"]),
    (GEMMA, "", LIST, None, None, ["weather", "clock"]),
    (LLAMA, "", f"[{PYTHON}, clock()]", None, None, ["weather", "clock"]),
    (LLAMA, "", f"<|python_tag|>{PYTHON}", None, None, ["weather"]),
    (LLAMA, "", "[radio(city='Oslo')]", "[radio(city='Oslo')]", None, []),
    (LLAMA, "", "weather(city) is called", "weather(city) is called", None, []),
    (LLAMA, "", "weather is fine", "weather is fine", None, []),
    (LLAMA, "", '[weather("Oslo")]', '[weather("Oslo")]', None, []),
    (LLAMA, "", "weather(**{'city': 'Oslo'})", "weather(**{'city': 'Oslo'})", None, []),
    (LLAMA, "", "weather(city=open('/etc/passwd').read())", "weather(city=open('/etc/passwd').read())", None, []),
    (LLAMA, "", "weather(city={1, 2})", "weather(city={1, 2})", None, []),
    (LLAMA, "", "weather(days=1e999)", "weather(days=1e999)", None, []),
    (LLAMA, "", "weather(city='Os", "weather(city='Os", None, []),
    (GEMMA, "", f"Let me look.\n```tool_code\n{PYTHON}\n```", "Let me look.", None, ["weather"]),
    (GEMMA, "", f"```tool_code\nprint({PYTHON})\nclock()\n```", None, None, ["weather", "clock"]),
    (GEMMA, "", "```tool_code\nprint(1)\n```", "```tool_code\nprint(1)\n```", None, []),
    (GEMMA, "", "```python\nprint()\n```", "```python\nprint()\n```", None, []),
    (GEMMA, "", "[1] is a <think>footnote", "[1] is a <think>footnote", None, []),
    (GEMMA, "", '  {"name": "cl', '  {"name": "cl', None, []),
]


def pieces(text: str, sizes: list[int]) -> list[str]:
    cut, at = [], 0
    for size in sizes:
        cut.append(text[at : at + size])
        at += size
    return [*cut, text[at:]]


def parsed(template: str, prompt: str, answer: list[str], names: tuple[str, ...] = ("weather", "clock")) -> list[Delta]:
    parser = Dialogue(template, {}).parser(prompt, names)
    deltas = [delta for piece in answer for delta in parser.feed(piece)]
    deltas += parser.finish()
    assert parser.calls == len({d["tool_calls"][0]["index"] for d in deltas if "tool_calls" in d})
    return deltas


@pytest.mark.parametrize(("template", "prompt", "answer", "content", "reasoning", "names"), ANSWERS)
@settings(max_examples=30)
@given(sizes=st.lists(st.integers(1, 9), max_size=80))
def test_an_answer_is_read_the_same_however_it_is_cut(
    template: str,
    prompt: str,
    answer: str,
    content: str | None,
    reasoning: str | None,
    names: list[str],
    sizes: list[int],
) -> None:
    whole = message(parsed(template, prompt, pieces(answer, sizes)))
    assert whole["content"] == content
    assert whole.get("reasoning_content") == reasoning
    calls: list[dict[str, Any]] = whole.get("tool_calls", [])
    assert [call["function"]["name"] for call in calls] == names
    for call in calls:
        wanted = CALL["arguments"] if call["function"]["name"] == "weather" else {}
        assert json.loads(call["function"]["arguments"]) == wanted
        assert call["type"] == "function"


@pytest.mark.parametrize("answer", ["<thi", " <", "<think", "<tool_c"])
def test_an_answer_that_ends_within_what_could_have_been_a_mark_is_content(answer: str) -> None:
    assert message(parsed(HERMES + "</think>", "", [answer]))["content"] == answer


def test_arguments_come_while_they_are_written_and_after_the_name() -> None:
    parser = Dialogue(HERMES, {}).parser("", ("weather",))
    assert parser.feed('<tool_call>{"name": "wea') == []
    [start] = parser.feed('ther", ')
    assert start["tool_calls"][0]["function"] == {"name": "weather", "arguments": ""}
    [more] = parser.feed('"arguments": {"city": "Be')
    assert more == {"tool_calls": [{"index": 0, "function": {"arguments": '{"city": "Be'}}]}


def test_arguments_written_as_a_text_or_before_the_name_or_not_at_all_are_an_object() -> None:
    for body, wanted in [
        ('{"name": "weather", "arguments": "{\\"a\\": 1}"}', {"a": 1}),
        ('{"arguments": {"a": 1}, "name": "weather"}', {"a": 1}),
        ('{"parameters": {"a": 1}, "function": "weather"}', {"a": 1}),
        ('{"name": "weather"}', {}),
        ('{"name": "weather", "arguments": null}', {}),
    ]:
        [call] = message(parsed(HERMES, "", [f"<tool_call>{body}</tool_call>"]))["tool_calls"]
        assert json.loads(call["function"]["arguments"]) == wanted


def test_arguments_are_the_models_own_text_without_blanks_around_it() -> None:
    answer = list('<tool_call>{"name": "weather", "arguments":  {"a" : 1}  }</tool_call>')
    assert message(parsed(HERMES, "", answer))["tool_calls"][0]["function"]["arguments"] == '{"a" : 1}'


def test_a_call_as_in_python_comes_whole_and_only_then() -> None:
    parser = Dialogue(LLAMA, {}).parser("", ("weather",))
    assert parser.feed("[weather(city='Os)lo', warm=True") == []
    start, arguments = parser.feed(")")
    assert start["tool_calls"][0]["function"] == {"name": "weather", "arguments": ""}
    assert arguments["tool_calls"][0]["function"] == {"arguments": '{"city": "Os)lo", "warm": true}'}
    assert [*parser.feed("]"), *parser.finish()] == []


def test_arguments_nested_too_deep_to_read_are_content() -> None:
    for text in (
        f"weather(a={'[' * 5000}{']' * 5000})",
        f"weather(a={'-' * 100000}1)",
        f'{{"a": {"[" * 50000}{"]" * 50000}}}',
    ):
        assert message(parsed(LLAMA, "", [text]))["content"] == text
    deep = f'{{"arguments": {"[" * 200000}{"]" * 200000}}}'
    assert (
        message(parsed(HERMES, "", [f"<tool_call>{deep}</tool_call>"]))["content"] == f"<tool_call>{deep}</tool_call>"
    )


def test_json_that_is_no_call_is_shown_as_soon_as_a_key_says_so() -> None:
    parser = Dialogue(LLAMA, {}).parser("", ("weather",))
    assert parser.feed('{"na') == []
    assert parser.feed('tion": "CH", ') == [{"content": '{"nation": "CH",'}]
    assert message([*parser.feed('"name": "weather"}'), *parser.finish()])["content"] == ' "name": "weather"}'


def test_without_tools_nothing_is_taken_for_a_call() -> None:
    assert message(parsed(LLAMA, "", [TEXT], ()))["content"] == TEXT


def test_a_forced_call_is_one_whatever_the_family_writes() -> None:
    parser = Dialogue(HERMES, {}).parser("", ("weather",), forced=True)
    assert message([*parser.feed(TEXT), *parser.finish()])["tool_calls"][0]["function"]["name"] == "weather"


def test_ids_are_of_the_length_that_mistrals_template_insists_on() -> None:
    [call] = message(parsed(HERMES, "", [f"<tool_call>{TEXT}</tool_call>"]))["tool_calls"]
    assert len(call["id"]) == 9
    assert call["id"].isalnum()


@given(
    st.text(st.sampled_from('<tool_cal>{}()=`[]"name:,\\ \n/thinkargsTOOL_CALLSARGS')),
    st.sampled_from([HERMES, MISTRAL, LLAMA, GEMMA]),
)
def test_no_text_is_lost_that_is_no_call(text: str, template: str) -> None:
    deltas = parsed(template, "", list(text), ("weather",))
    if all("content" in delta for delta in deltas):
        assert "".join(delta["content"] for delta in deltas) == text
