"""Which language a text is in, from its letters and its most frequent small words. Pure; for sentences, not words."""

from __future__ import annotations

import re

_SCRIPTS = (
    ("ja", re.compile(r"[\u3040-\u30ff]")),  # before Chinese: Japanese has kanji too
    ("ko", re.compile(r"[\uac00-\ud7af]")),
    ("zh", re.compile(r"[\u4e00-\u9fff]")),
    ("ru", re.compile(r"[\u0400-\u04ff]")),
    ("el", re.compile(r"[\u0370-\u03ff]")),
    ("ar", re.compile(r"[\u0600-\u06ff]")),
)
_SMALL_WORDS = {
    "de": "der die das und ist nicht ein eine ich zu den mit auf für von es sie im dem sich wie auch als",
    "en": "the and is not a of to in it you that was for on are with as his they be at this have from",
    "es": "el la los las y es no un una de que en se por con para lo del como más su al son está",
    "fr": "le la les et est pas un une de que en des du dans il au sur pour qui ce se je vous avec son",
    "it": "il lo gli e è non un una di che in si per con del della sono come più la nel ho mi questo",
    "pt": "o os as e é não um uma de que em se por com para do da no na mais como seu foi ao",
}
_VOCABULARIES = {code: frozenset(words.split()) for code, words in _SMALL_WORDS.items()}
_WORD = re.compile(r"[^\W\d_]+")
_SCRIPT_SHARE = 0.3
_LEAST_WORDS = 2


def language_of(text: str) -> str:
    """Return the code of the language that a text is most probably in, or ``""`` when there is too little to tell by.

    Scripts decide first, then the share of each language's small words; a tie is no answer.
    """
    letters = [letter for letter in text if letter.isalpha()]
    for code, pattern in _SCRIPTS:
        # Kana need not be many in a Japanese sentence.
        share = _SCRIPT_SHARE / 3 if code == "ja" else _SCRIPT_SHARE
        if letters and len(pattern.findall(text)) >= share * len(letters):
            return code
    said = _WORD.findall(text.casefold())
    found = sorted(((sum(word in known for word in said), code) for code, known in _VOCABULARIES.items()), reverse=True)
    (best, code), (second, _) = found[0], found[1]
    return code if best >= _LEAST_WORDS and best > second else ""
