"""Messages become a prompt through the model's own template, and neither they nor it can reach out of the sandbox."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.dialogue import Dialogue, forced_schema
from engine.errors import BrokenModel, InvalidRequest
from tests.unit.engine.ggufs import LLAMA, bpe, write

CHATML = (
    "{%- if tools %}tools: {{ tools | tojson }}\n{% endif -%}"
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
    "{% for call in m.tool_calls or [] %}{{ call.function.arguments.city }}{% endfor %}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
USER = {"role": "user", "content": "hi"}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {}}}},
}


def render(template: str, messages: list[dict[str, Any]] | None = None, **more: Any) -> str:
    return Dialogue(template, {"eos_token": "</s>"}).render([USER] if messages is None else messages, **more)


def test_a_prompt_is_what_the_template_writes() -> None:
    assert render(CHATML) == "<|user|>hi</s><|assistant|>"
    assert render(CHATML, add_generation_prompt=False) == "<|user|>hi</s>"
    assert render("{{ enable_thinking }}", enable_thinking=False) == "False"
    assert "tools: [{" in render(CHATML, tools=[TOOL])


def test_parts_of_text_are_joined_and_other_parts_are_refused_by_place() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert render(CHATML, [{"role": "user", "content": parts}]) == "<|user|>ab</s><|assistant|>"
    image = [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]
    with pytest.raises(InvalidRequest) as refused:
        render(CHATML, [USER, {"role": "user", "content": image}])
    assert refused.value.field == "messages[1].content"


def test_calls_reach_the_template_as_objects_and_broken_ones_are_refused_by_place() -> None:
    def asked(arguments: object) -> list[dict[str, Any]]:
        call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
        return [{"role": "assistant", "content": None, "tool_calls": [call]}]

    assert render(CHATML, asked('{"city": "Bern"}')) == render(CHATML, asked({"city": "Bern"}))
    assert "Bern" in render(CHATML, asked('{"city": "Bern"}'))
    nameless = {"function": {"arguments": "{}"}}
    for broken in (
        asked("{broken"),
        *([USER | {"tool_calls": calls}] for calls in (7, "calls", {"function": {"name": "weather"}}, [7], [nameless])),
    ):
        for template in (CHATML, "{{ messages }}"):
            with pytest.raises(InvalidRequest) as refused:
                render(template, broken)
            assert refused.value.field == "messages[0].tool_calls"


def test_a_template_that_knows_no_tools_is_told_of_them_in_the_system_message() -> None:
    template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bern"}'}}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "sunny"},
        {"role": "tool", "tool_call_id": "2", "name": "clock", "content": "noon"},
    ]
    prompt = render(template, messages, tools=[TOOL])
    assert prompt.startswith("[system]Be brief.\n\n")
    assert json.dumps(TOOL["function"]) in prompt
    assert '[assistant]{"name": "weather", "arguments": {"city": "Bern"}}' in prompt
    assert prompt.endswith("[user]Result of the function: sunny\nResult of clock: noon")
    assert render(template, messages[1:], tools=[TOOL]).startswith("[system]")


def test_two_calls_of_one_message_are_told_as_a_list_where_a_template_knows_none() -> None:
    calls = [{"function": {"name": name, "arguments": "{}"}} for name in ("weather", "clock")]
    told = render("{{ messages[0].content }}", [{"role": "assistant", "content": "So:", "tool_calls": calls}])
    said, _, listed = told.partition("\n")
    assert said == "So:"
    assert json.loads(listed) == [{"name": "weather", "arguments": {}}, {"name": "clock", "arguments": {}}]


def test_whether_there_is_a_template_can_be_asked() -> None:
    assert Dialogue(CHATML, {}).chats
    assert not Dialogue(None, {}).chats


def test_what_a_template_refuses_or_cannot_do_is_the_requests_fault() -> None:
    for template in (
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[7].content }}",
        "{{ messages + 1 }}",
        "{{ 1 / 0 }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    ):
        with pytest.raises(InvalidRequest) as refused:
            render(template)
        assert refused.value.field == "messages"
    with pytest.raises(InvalidRequest, match="alternate"):
        render("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(InvalidRequest, match="no chat template"):
        Dialogue(None, {}).render([USER])
    with pytest.raises(BrokenModel, match="chat template"):
        Dialogue("{% if %}", {})


def test_the_variables_of_a_request_cannot_take_the_messages_place() -> None:
    with pytest.raises(InvalidRequest):
        render(CHATML, documents=[], add_generation_prompt=True)
    with pytest.raises(InvalidRequest):
        Dialogue(CHATML, {"messages": "x"}).render([USER])


def test_a_prompt_is_text_and_never_a_template() -> None:
    hostile = "{{ 7 * 7 }}{% include '/etc/passwd' %}{{ cycler.__init__.__globals__ }}"
    assert render(CHATML, [{"role": "user", "content": hostile}]) == f"<|user|>{hostile}</s><|assistant|>"


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ lipsum.__globals__['os'].popen('id').read() }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__globals__ }}",
        "{{ (messages | attr('__class__')) }}x{{ messages['__class__'].__mro__ }}",
        "{{ '{0.__class__.__mro__}'.format(messages) }}",
        "{{ '{0.__globals__}' | format(lipsum) }}{{ '%s'.__mod__ }}",
        "{% set f = '{0.__class__.__init__.__globals__}'.format %}{{ namespace() | tojson(default=f) }}",
        "{% set n = namespace() %}{% set n.__html__ = '{0.__class__}'.format %}{{ n | escape }}",
        "{{ namespace(__html__=1) }}",
        "{% include '/etc/passwd' %}",
        "{% import '/etc/passwd' as x %}{{ x }}",
        "{% extends '/etc/passwd' %}",
        "{{ self.__init__.__globals__ }}{{ self._TemplateReference__context.environment }}",
        "{{ dict.mro() }}",
        "{{ messages.append(1) }}",
        "{{ open('/etc/passwd').read() }}",
        "{{ range(10 ** 9) | list }}",
    ],
)
def test_a_hostile_template_reads_no_file_runs_no_code_and_changes_nothing(template: str) -> None:
    messages = [dict(USER)]
    try:
        written = render(template, messages)
    except InvalidRequest:
        written = ""
    assert not any(sign in written for sign in ("<class", "root:", "uid=", "<module", "__builtins__"))
    assert messages == [USER]


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) if range(99999) | list | sum < 0 %}{% endfor %}",
        "{% macro m(n) %}{{ m(n - 1) ~ m(n - 1) if n else '' }}{% endmacro %}{{ m(60) }}",
        "{% macro m() %}{{ caller() ~ caller() }}{% endmacro %}" + "{% call m() %}" * 30 + "{% endcall %}" * 30,
        "{{ ([range(99999)] * 99999) | map('sum') | list }}",
        "{{ ([1] * 999999) | select('even') | list }}",
    ],
)
def test_a_template_that_loops_without_end_is_stopped_and_named(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.sandbox.TIME_LIMIT_S", 0.05)
    with pytest.raises(InvalidRequest, match=r"tool_use chat template .* ran for more than 0\.05 s"):
        Dialogue("{{ messages }}", {}, template).render([USER], tools=[TOOL])


@pytest.mark.parametrize(
    "template",
    ["{{ 7 ** 9999999 }}", "{{ 'a' * 9999999 }}", "{{ 9999999 * [1] }}", "{% set n = 2 ** 900000 %}{{ n * n }}"],
)
def test_a_template_multiplies_nothing_out_of_all_proportion(template: str) -> None:
    with pytest.raises(InvalidRequest, match="characters, elements or bits"):
        render(template)
    assert render("{{ '-' * 3 }}{{ 2 * 1.5 }}{{ 2 ** 3 }}{{ 2 ** -1 }}") == "---3.080.5"


def test_a_template_that_asks_for_more_memory_than_there_is_refuses_the_messages() -> None:
    with pytest.raises(InvalidRequest, match="chat template refuses"):
        render("{{ 'x'.center(10 ** 17) }}")


def test_loops_macros_and_filters_within_the_limit_are_as_ever() -> None:
    template = (
        "{% macro m(x) %}<{{ x }}{{ caller() if caller else '' }}>{% endmacro %}"
        "{% for a in range(6) if a is odd %}{{ loop.index }}{{ m(a) }}{% else %}none{% endfor %}"
        "{% call m(0) %}!{% endcall %}{{ ['1', '2'] | map('int') | select('even') | list }}"
    )
    assert render(template) == "1<1>2<3>3<5><0!>[2]"


def test_what_templates_of_hugging_face_use_beyond_jinja_is_there() -> None:
    assert render("{% set n = namespace(a=1) %}{% for x in 'bc' %}{% set n.a = n.a + 1 %}{% endfor %}{{ n.a }}") == "3"
    assert render("a{% generation %}{{ messages | length }}{% endgeneration %}b") == "a1b"
    assert render("{{ strftime_now('%Y') | int > 2000 }}") == "True"
    assert render("""{{ {"b": "<é>", "a": 1} | tojson }}""") == '{"b": "<é>", "a": 1}'
    with pytest.raises(InvalidRequest, match="lipsum"):
        render("{{ lipsum(9) }}")


@pytest.mark.parametrize(
    "template", ["{% set n = namespace() %}{% set n.__html__ = 1 %}", "{{ namespace(__html__=1) }}"]
)
def test_a_namespace_takes_no_name_that_python_gives_a_meaning_to(template: str) -> None:
    with pytest.raises(InvalidRequest, match="__html__"):
        render(template)


def test_templates_and_their_tokens_are_found_in_a_folder(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "eos_token": {"content": "</s>"},
        "bos_token": None,
        "unk_token": "<unk>",
        "pad_token": {"content": "<pad>"},
        "chat_template": "{{ eos_token }}1{{ unk_token }}{{ pad_token }}",
    }
    file = tmp_path / "tokenizer_config.json"
    file.write_text(json.dumps(settings))
    assert Dialogue.open(tmp_path).render([USER]) == "</s>1<unk><pad>"
    two = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "{{ tools | length }}"}]
    file.write_text(json.dumps({**settings, "chat_template": two}))
    assert Dialogue.open(tmp_path).render([USER]) == "plain"
    assert Dialogue.open(tmp_path).render([USER], tools=[TOOL]) == "1"
    (tmp_path / "chat_template.jinja").write_text("{{ eos_token }}2")
    assert Dialogue.open(tmp_path).render([USER]) == "</s>2"


def test_a_template_and_its_tokens_are_found_in_a_gguf_file(tmp_path: Path) -> None:
    ids = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 3, "padding_token_id": 4}
    values = LLAMA | bpe(["a", "<s>", "</s>", "<unk>", "<pad>"], [], [], "smollm", **ids)
    values["tokenizer.chat_template"] = (
        "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{{ unk_token }}{{ pad_token }}"
    )
    assert Dialogue.open(write(tmp_path / "m.gguf", values)).render([USER]) == "<s>hi</s><unk><pad>"


def test_the_schema_of_a_forced_call_allows_the_named_tool_alone() -> None:
    other = {"type": "function", "function": {"name": "clock"}}
    assert len(forced_schema([TOOL, other])["anyOf"]) == 2
    schema = forced_schema([TOOL, other], "weather")
    assert schema["properties"]["name"] == {"const": "weather"}
    assert schema["properties"]["arguments"] == TOOL["function"]["parameters"]
    with pytest.raises(InvalidRequest, match="radio"):
        forced_schema([TOOL], "radio")
