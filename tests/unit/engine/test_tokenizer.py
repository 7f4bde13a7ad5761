"""Tokens and texts: a tokenizer built out of a GGUF file is the one of its folder, and decoding is by bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

from engine.detokenizer import Detokenizer, StopStrings
from engine.errors import BrokenModel, UnsupportedModel
from engine.tokenizer import Tokenizer
from tests.unit.engine.ggufs import LLAMA, bpe, write

TEXTS = [
    "Hello world, it's me; WE'LL see",
    "  two  blanks\n\n\nand\r\n\tlines  ",
    "def f(x):\n    return x**2 + 0x1F  # 1234567\n",
    "Zürich — “naïve” ½, e\u0301 and ﬁ",
    "日本語のテキスト、한국어, Привет, مرحبا, नमस्ते",
    "👩‍👩‍👧‍👦 🇨🇭 🤷🏽‍♀️\u200b\ufeff\x00",
    "<|im_start|>user\nhi<|im_end|>\n<think> <|im_start|",
    "",
    " ",
]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>"]
QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def byte_level(pre: Any, normalizer: Any = None) -> tokenizers.Tokenizer:
    core = tokenizers.Tokenizer(models.BPE())
    core.pre_tokenizer, core.decoder = pre, decoders.ByteLevel()
    if normalizer:
        core.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    core.train_from_iterator(TEXTS * 3, trainer)
    return core


def metaspace() -> tokenizers.Tokenizer:
    """As Llama 2 is written: blanks as ▁ with one put before the text, and bytes for what is unknown."""
    core = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    core.train_from_iterator(
        [text.encode("ascii", "ignore").decode() for text in TEXTS] * 3,
        trainers.BpeTrainer(vocab_size=400, special_tokens=special, show_progress=False),
    )
    written = json.loads(core.to_str())
    whole = tokenizers.Tokenizer.from_str(json.dumps({**written, "added_tokens": written["added_tokens"][:3]}))
    whole.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return whole


def split(pattern: str) -> Any:
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )


SMOLLM = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)])
KINDS = {"qwen2": byte_level(split(QWEN), normalizers.NFC()), "smollm": byte_level(SMOLLM)}


def facts(core: tokenizers.Tokenizer) -> tuple[list[str], list[str]]:
    """All tokens in order, and the merges."""
    whole = json.loads(core.to_str())
    ordered = sorted(core.get_vocab().items(), key=lambda item: item[1])
    return [token for token, _ in ordered], [" ".join(merge) for merge in whole["model"]["merges"]]


def in_folder(core: tokenizers.Tokenizer, folder: Path) -> Tokenizer:
    core.save(str(folder / "tokenizer.json"))
    return Tokenizer.open(folder)


@pytest.mark.parametrize("pre", KINDS)
def test_a_gguf_files_byte_level_tokenizer_is_its_folders(tmp_path: Path, pre: str) -> None:
    tokens, merges = facts(KINDS[pre])
    built = Tokenizer.open(write(tmp_path / "m.gguf", LLAMA | bpe(tokens, merges, SPECIAL, pre)))
    saved = in_folder(KINDS[pre], tmp_path)
    assert built.size == saved.size == len(tokens)
    assert built.special == saved.special
    for text in TEXTS:
        encoded = saved.encode(text)
        assert built.encode(text) == encoded
        assert built.decode(encoded) == saved.decode(encoded)
        whole = KINDS[pre].decode(encoded, skip_special_tokens=False)
        assert built.decode(encoded, hide_special=False) == whole


def test_a_gguf_files_sentencepiece_tokenizer_is_its_folders(tmp_path: Path) -> None:
    core = metaspace()
    tokens, merges = facts(core)
    ranks = {"".join(merge.split(" ")): -float(place) for place, merge in reversed(list(enumerate(merges)))}
    values = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [ranks.get(token, -1e9) for token in tokens],
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * (len(tokens) - 259)],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    bare = Tokenizer.open(write(tmp_path / "b.gguf", LLAMA | values | {"tokenizer.ggml.add_space_prefix": False}))
    assert not bare.strips
    built, saved = Tokenizer.open(write(tmp_path / "m.gguf", LLAMA | values)), in_folder(core, tmp_path)
    assert built.special == saved.special
    assert built.strips
    assert saved.strips
    for text in TEXTS:
        encoded = saved.encode(text)
        assert encoded[0] == 1
        assert built.encode(text) == encoded
        assert built.encode(text, special=False) == encoded[1:]
        assert built.decode(encoded) == core.decode(encoded) == text
    assert built.token_bytes(tokens.index("<0xE2>")) == b"\xe2"


def test_a_gguf_file_says_what_goes_around_a_text_and_which_tokens_are_whole(tmp_path: Path) -> None:
    around = {"add_bos_token": True, "add_eos_token": True, "bos_token_id": 1, "eos_token_id": 2}
    tokens = ["a", "<s>", "</s>", "日", "aa"]
    values = LLAMA | bpe(tokens, [], [], "smollm", **around) | {"tokenizer.ggml.token_type": [1, 3, 3, 3, 4]}
    tokenizer = Tokenizer.open(write(tmp_path / "m.gguf", values))
    assert tokenizer.encode("aaa") == [1, 4, 0, 2]
    assert tokenizer.encode("a", special=False) == [0]
    assert tokenizer.special == {1, 2, 3}
    assert tokenizer.token_bytes(3) == "日".encode()


@pytest.mark.parametrize(("pre", "tokens"), [("llama-bpe", [2]), ("qwen2", [0, 1])])
def test_families_differ_in_how_they_cut_numbers(tmp_path: Path, pre: str, tokens: list[int]) -> None:
    path = write(tmp_path / "m.gguf", LLAMA | bpe(["1", "2", "12"], ["1 2"], [], pre))
    assert Tokenizer.open(path).encode("12") == tokens


def test_marks_of_reasoning_are_shown_and_other_special_tokens_are_not(tmp_path: Path) -> None:
    tokenizer = in_folder(KINDS["smollm"], tmp_path)
    encoded = tokenizer.encode("<|im_start|><think>a<|im_end|>")
    assert tokenizer.decode(encoded) == "<think>a"
    assert tokenizer.decode(encoded, hide_special=False) == "<|im_start|><think>a<|im_end|>"


def test_tokens_that_do_not_exist_add_nothing(tmp_path: Path) -> None:
    tokenizer = in_folder(KINDS["smollm"], tmp_path)
    assert tokenizer.decode([tokenizer.size, 10**12, -1, *tokenizer.encode("a")]) == "a"
    assert len(tokenizer.vocabulary) == tokenizer.size


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(BrokenModel, match=r"tokenizer\.json"):
        Tokenizer.open(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": 1}')
    with pytest.raises(BrokenModel, match=r"tokenizer\.json"):
        Tokenizer.open(tmp_path)
    with pytest.raises(UnsupportedModel, match="strange-pre"):
        Tokenizer.open(write(tmp_path / "p.gguf", bpe(["a", "b"], [], [], "strange-pre")))
    with pytest.raises(UnsupportedModel, match="bert"):
        Tokenizer.open(
            write(tmp_path / "b.gguf", {"tokenizer.ggml.model": "bert", "tokenizer.ggml.tokens": ["a", "b"]})
        )
    with pytest.raises(UnsupportedModel, match=r"n\.gguf"):
        Tokenizer.open(write(tmp_path / "n.gguf", LLAMA))
    with pytest.raises(BrokenModel, match=r"l\.gguf"):
        Tokenizer.open(write(tmp_path / "l.gguf", bpe(["a", "b"], ["a z"], [], "smollm")))


TOKENIZERS = [Tokenizer(KINDS["qwen2"]), Tokenizer(metaspace())]


@given(which=st.sampled_from(TOKENIZERS), data=st.data())
def test_pieces_joined_are_the_whole_text_and_no_piece_ends_within_a_code_point(
    which: Tokenizer, data: st.DataObject
) -> None:
    text = data.draw(st.text() | st.sampled_from(TEXTS))
    tokens = which.encode(text, special=False)
    detokenizer = Detokenizer(which)
    pieces = [detokenizer.feed([token]) for token in tokens]
    assert not any("\ufffd" in piece for piece in pieces if "\ufffd" not in text)
    assert "".join([*pieces, detokenizer.finish()]) == which.decode(tokens)


@given(which=st.sampled_from(TOKENIZERS), data=st.data())
def test_any_tokens_at_all_give_the_same_text_in_pieces_and_whole(which: Tokenizer, data: st.DataObject) -> None:
    tokens = data.draw(st.lists(st.integers(0, which.size)))
    detokenizer = Detokenizer(which)
    steps = data.draw(st.lists(st.integers(1, 4), max_size=30))
    shown, at = "", 0
    for step in [*steps, len(tokens)]:
        shown += detokenizer.feed(tokens[at : at + step])
        at += step
    assert shown + detokenizer.finish() == which.decode(tokens)


def until(stops: list[str], pieces: list[str]) -> tuple[str, bool]:
    watch = StopStrings(stops)
    shown = "".join(watch.feed(piece) for piece in pieces)
    return shown + watch.finish(), watch.stopped


@given(
    stops=st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3),
    pieces=st.lists(st.text("ab\n", max_size=5), max_size=12),
)
@example(stops=["b", "ab"], pieces=["aab"])
@example(stops=["abab", "ba"], pieces=["a", "abab"])
def test_a_stop_string_is_caught_wherever_the_pieces_end(stops: list[str], pieces: list[str]) -> None:
    text = "".join(pieces)
    # The first to be complete, found by trying every end.
    ends = [(end, end - len(stop)) for end in range(len(text) + 1) for stop in stops if text[:end].endswith(stop)]
    wanted = text[: min(ends)[1]] if ends else text
    assert until(stops, pieces) == (wanted, bool(ends))
    assert until(stops, list(text)) == (wanted, bool(ends))


def test_text_that_may_become_a_stop_string_is_held_back_and_no_more() -> None:
    watch = StopStrings(["\n\nUser:", "END"])
    assert watch.feed("Hi\n") == "Hi"
    assert watch.feed("\n") == ""
    assert watch.feed("You E") == "\n\nYou "
    assert watch.feed("N") == ""
    assert watch.finish() == "EN"
    assert not watch.stopped
