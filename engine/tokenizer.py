"""Text to tokens and back: from a folder's ``tokenizer.json``, or built out of a GGUF file's metadata."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from engine.errors import BrokenModel, ModelError, UnsupportedModel
from engine.gguf_file import GGUFFile, open_gguf

# Tokens that are marked as special and yet say something to a reader of the answer: where reasoning and calls begin.
_REASONING_MARKS = ("<think>", "</think>", "[THINK]", "[/THINK]")
_CALL_MARKS = ("<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")
MARKS = frozenset((*_REASONING_MARKS, *_CALL_MARKS))
UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4  # kinds of tokens in GGUF

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LLAMA = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_TAIL}"
_QWEN = _LLAMA.replace("{1,3}", "")
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# How a text is cut before pairs are merged, by the name in GGUF's ``tokenizer.ggml.pre``; None: GPT-2's own cut.
_CUTS: dict[str, str | None] = {
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3"), _LLAMA),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), _QWEN),
    "tekken": _TEKKEN,
    **dict.fromkeys(("smollm", "gpt-2", "default")),
}


class Tokenizer:
    """Encodes as the model's own tokenizer does; decodes by the tokens' bytes, so that it can be done token by token.

    ``strips`` says that a text's first blank is the tokenizer's own and not shown. ``size`` counts the tokens, added
    ones included; a model's vocabulary may be padded beyond it.
    """

    def __init__(self, core: tokenizers.Tokenizer) -> None:
        self._core = core
        core.no_truncation()
        core.no_padding()
        self.size = core.get_vocab_size(with_added_tokens=True)
        decoder = core.decoder
        self._by_bytes = decoder is not None and decoder.decode(["Ġa"]) == " a"
        self.strips = decoder is not None and not self._by_bytes and decoder.decode(["▁a"]) == "a"
        special = {number: token.content for number, token in core.get_added_tokens_decoder().items() if token.special}
        self.special = frozenset(special)
        self.hidden = frozenset(number for number, text in special.items() if text not in MARKS)
        self._bytes: dict[int, bytes] = {}

    @classmethod
    def open(cls, path: Path) -> Tokenizer:
        """Of a folder or a GGUF file; raises ``BrokenModel`` or ``UnsupportedModel`` naming what is wrong."""
        file = path if path.is_file() else path / "tokenizer.json"
        if not file.is_file():
            raise BrokenModel(f"{path} has no tokenizer.json")
        try:
            return cls(_from_gguf(open_gguf(path)) if file == path else tokenizers.Tokenizer.from_file(str(file)))
        except ModelError:
            raise
        except Exception as error:  # the library raises nothing narrower for what it cannot make a tokenizer of
            raise BrokenModel(f"{file}: the tokenizer cannot be read: {error}") from error

    def encode(self, text: str, special: bool = True) -> list[int]:
        """The text's tokens. ``special`` adds what goes around a text (a BOS); chat templates do so themselves.

        Special tokens written out in the text become those tokens either way, as templates need it.
        """
        return list(self._core.encode(text, add_special_tokens=special).ids)

    def decode(self, tokens: Iterable[int], hide_special: bool = True) -> str:
        """The tokens' text; bytes that are no UTF-8 become U+FFFD."""
        hidden = self.hidden if hide_special else ()
        text = b"".join(self.token_bytes(number) for number in tokens if number not in hidden).decode(errors="replace")
        return text[1:] if self.strips and text.startswith(" ") else text

    def token_bytes(self, number: int) -> bytes:
        """The bytes that a token adds to a text, its name for a special one, none for one that does not exist."""
        if number not in self._bytes:
            self._bytes[number] = self._spell(number)
        return self._bytes[number]

    @cached_property
    def vocabulary(self) -> list[bytes]:
        """All tokens' bytes, by number."""
        return [self.token_bytes(number) for number in range(self.size)]

    def _spell(self, number: int) -> bytes:
        token = self._core.id_to_token(number) if 0 <= number < 2**32 else None
        if token is None:
            return b""
        if self._by_bytes:
            # An added token may hold characters that stand for no byte; then it stands for itself.
            return bytes(map(_BYTES.__getitem__, token)) if _BYTES.keys() >= set(token) else token.encode()
        if number in self.special:
            return token.encode()
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            return bytes.fromhex(token[3:5])
        return token.replace("▁", " ").encode()


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable character for each byte: itself, or the next one from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(rest)}


_BYTES = _byte_alphabet()


def _from_gguf(file: GGUFFile) -> tokenizers.Tokenizer:
    kind, tokens = file.get("tokenizer.ggml.model"), file.get("tokenizer.ggml.tokens", [])
    makers = {"gpt2": _byte_level, "llama": _sentence_piece}
    if kind not in makers:
        raise UnsupportedModel(f"{file.path}: a tokenizer of kind {kind!r} is not supported; {', '.join(makers)} are")
    core = makers[kind](file, tokens)
    known = list(zip(tokens, file.get("tokenizer.ggml.token_type", []), strict=False))
    core.add_tokens([AddedToken(token, normalized=False) for token, kind in known if kind == USER_DEFINED])
    special = [AddedToken(token, normalized=False) for token, kind in known if kind in (UNKNOWN, CONTROL)]
    core.add_special_tokens(special)
    around = {}
    for name, usual in (("bos", kind == "llama"), ("eos", False)):
        if file.get(f"tokenizer.ggml.add_{name}_token", usual):
            number = file.get(f"tokenizer.ggml.{name}_token_id")
            around[name] = (tokens[number], number)
    if around:
        texts = [
            around[name][0] if name in around else name for name in ("bos", "$A", "eos") if name in ("$A", *around)
        ]
        core.post_processor = processors.TemplateProcessing(single=texts, special_tokens=list(around.values()))
    return core


def _byte_level(file: GGUFFile, tokens: list[str]) -> tokenizers.Tokenizer:
    """Merges over bytes, as GPT-2, Llama 3, Qwen and newer Mistral models have it."""
    pre = file.get("tokenizer.ggml.pre", "default")
    if pre not in _CUTS:
        raise UnsupportedModel(f"{file.path}: tokenizer.ggml.pre {pre!r} is not supported; {', '.join(_CUTS)} are")
    merges = [tuple(merge.split(" ", 1)) for merge in file.get("tokenizer.ggml.merges", [])]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    cut = _CUTS[pre]
    core = tokenizers.Tokenizer(models.BPE(vocabulary, merges, ignore_merges=cut in (_LLAMA, _TEKKEN)))
    steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if pre == "smollm" else []
    if cut is not None:
        steps.append(pre_tokenizers.Split(Regex(cut), "isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=cut is None))
    if cut == _QWEN:
        core.normalizer = normalizers.NFC()
    core.pre_tokenizer = pre_tokenizers.Sequence(steps)
    core.decoder = decoders.ByteLevel()
    return core


def _sentence_piece(file: GGUFFile, tokens: list[str]) -> tokenizers.Tokenizer:
    """SentencePiece's merges, as Llama 2, older Mistral and Gemma models have it: the best scored pair first."""
    vocabulary = {token: number for number, token in enumerate(tokens)}
    scores = file.get("tokenizer.ggml.scores")
    pairs = [
        (-scores[number], -place, (token[:place], token[place:]))
        for number, token in enumerate(tokens)
        for place in range(1, len(token))
        if token[:place] in vocabulary and token[place:] in vocabulary
    ]
    merges = [pair for *_, pair in sorted(pairs)]
    unknown = tokens[file.get("tokenizer.ggml.unknown_token_id", 0)]
    core = tokenizers.Tokenizer(models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    core.normalizer = normalizers.Replace(" ", "▁")
    if file.get("tokenizer.ggml.add_space_prefix", True):
        core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), core.normalizer])
        steps.append(decoders.Strip(" ", 1, 0))
    core.decoder = decoders.Sequence(steps)
    return core
