"""Tokens, prompts and rope's frequencies are transformers' own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from engine_kit import smollm2 as packaged
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from engine.config import read_config
from engine.dialogue import Dialogue
from engine.tokenizer import Tokenizer
from tests.unit.engine.test_tokenizer import KINDS, SMOLLM, TEXTS, metaspace

USER = {"role": "user", "content": "What is 2 + 2? <b>Zürich</b>\n"}
CHATS: list[list[dict[str, Any]]] = [
    [USER],
    [{"role": "system", "content": "Be brief."}, USER, {"role": "assistant", "content": "4"}, USER],
]
TOOLS = [
    {"type": "function", "function": {"name": "wéather", "parameters": {"type": "object", "properties": {"a": {}}}}}
]
TEMPLATES = {
    "loops": """
        {%- for m in messages %}
          {%- if m.role == 'system' %}{% continue %}{% endif %}
          {{- '<' + m['role'] + '>' + m['content'] | trim }}
          {%- if loop.index > 2 %}{% break %}{% endif %}
        {%- endfor %}{{ bos_token }}{{ eos_token }}""",
    "namespaces": """{% set ns = namespace(n=0, last='') %}{% for m in messages %}{% set ns.n = ns.n + 1 %}
{% set ns.last = m.content %}{% endfor %}{{ ns.n }}:{{ ns.last | upper }}{% if add_generation_prompt %}>{% endif %}""",
    "tools": "{% if tools %}{{ tools | tojson }}{{ tools[0] | tojson(indent=4) }}{% endif %}{{ messages | tojson }}",
    "training": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "today": "{{ strftime_now('%Y') }}{% if date is not defined %}none{% else %}{{ date }}{% endif %}",
    "macros": """{% macro say(m) %}[{{ m.role[0] }}]{{ m.content }}{% endmacro %}
{% for m in messages[::-1] %}{{ say(m) }}{% endfor %}""",
}


def test_smollm2s_tokens_are_transformers_from_the_folder_and_from_gguf(smollm2: Path) -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(smollm2)
    folder, file = Tokenizer.open(smollm2), Tokenizer.open(packaged.gguf().make())
    assert folder.size == file.size == len(theirs)
    assert folder.special == file.special
    for text in TEXTS:
        encoded = theirs.encode(text)
        assert folder.encode(text) == encoded
        assert folder.decode(encoded, hide_special=False) == theirs.decode(encoded, clean_up_tokenization_spaces=False)
    # The folder was made from the GGUF file by transformers, which leaves out SmolLM's own cut between digits.
    theirs.backend_tokenizer.pre_tokenizer = SMOLLM
    for text in TEXTS:
        assert file.encode(text) == theirs.encode(text)
    generator = torch.Generator().manual_seed(3)
    for _ in range(50):
        tokens = torch.randint(0, folder.size, (20,), generator=generator).tolist()
        whole = theirs.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert folder.decode(tokens) == file.decode(tokens) == whole


@pytest.mark.parametrize("core", [*KINDS.values(), metaspace()])
def test_tokenizers_of_other_kinds_are_transformers_too(tmp_path: Path, core: Any) -> None:
    transformers.PreTrainedTokenizerFast(tokenizer_object=core).save_pretrained(tmp_path)
    theirs, ours = transformers.AutoTokenizer.from_pretrained(tmp_path), Tokenizer.open(tmp_path)
    for text in TEXTS:
        encoded = theirs.encode(text)
        assert ours.encode(text) == encoded
        assert ours.encode(text, special=False) == theirs.encode(text, add_special_tokens=False)
        whole = theirs.decode(encoded, clean_up_tokenization_spaces=False)
        assert ours.decode(encoded, hide_special=False) == whole


@pytest.mark.parametrize("chat", CHATS)
def test_smollm2s_prompts_are_transformers_from_the_folder_and_from_gguf(
    smollm2: Path, chat: list[dict[str, Any]]
) -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(smollm2)
    for dialogue in (Dialogue.open(smollm2), Dialogue.open(packaged.gguf().make())):
        for add in (True, False):
            whole = theirs.apply_chat_template(chat, tokenize=False, add_generation_prompt=add)
            assert dialogue.render(chat, add_generation_prompt=add) == whole
    prompt = Dialogue.open(smollm2).render(chat)
    tokens = theirs.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    assert Tokenizer.open(smollm2).encode(prompt, special=False) == tokens


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("chat", CHATS)
def test_what_templates_use_works_as_in_transformers(smollm2: Path, tmp_path: Path, name: str, chat: list[Any]) -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(smollm2)
    theirs.chat_template = TEMPLATES[name]
    theirs.save_pretrained(tmp_path)
    ours = Dialogue.open(tmp_path)
    for more in ({}, {"tools": TOOLS}, {"date": "today"}):
        if "tools" in more and name != "tools":
            continue
        whole = theirs.apply_chat_template(chat, tokenize=False, add_generation_prompt=True, **more)
        assert ours.render(chat, **more) == whole  # type: ignore[arg-type]


ROPES: list[dict[str, Any]] = [
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    {"rope_type": "yarn", "factor": 4.0},
    {"rope_type": "yarn", "factor": 4.0, "beta_fast": 16.0, "beta_slow": 2.0, "attention_factor": 0.7},
    {"rope_type": "yarn", "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.8, "truncate": False},
]


@pytest.mark.parametrize("rope", ROPES)
def test_ropes_frequencies_are_transformers(tmp_path: Path, rope: dict[str, Any]) -> None:
    parameters = {**rope, "rope_theta": 500000.0, "original_max_position_embeddings": 2048}
    if rope["rope_type"] in ("default", "linear"):
        del parameters["original_max_position_embeddings"]
    config = transformers.LlamaConfig(head_dim=64, max_position_embeddings=8192, rope_parameters=parameters)
    config.save_pretrained(tmp_path)
    ours = read_config(tmp_path).rope
    if rope["rope_type"] == "default":
        theirs, factor = 1.0 / (500000.0 ** (torch.arange(0, 64, 2) / 64)), 1.0
    else:
        theirs, factor = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, torch.device("cpu"))
    torch.testing.assert_close(torch.tensor(ours.frequencies(64)), theirs, rtol=1e-5, atol=0)
    assert ours.attention_factor == pytest.approx(factor)


def test_an_older_form_of_rope_scaling_says_the_same(tmp_path: Path) -> None:
    old = {"rope_parameters": None, "rope_theta": 7.0, "rope_scaling": {"type": "linear", "factor": 2.0}}
    (tmp_path / "config.json").write_text(json.dumps({**transformers.LlamaConfig().to_dict(), **old}))
    rope = read_config(tmp_path).rope
    assert (rope.theta, rope.kind, rope.factor) == (7.0, "linear", 2.0)
