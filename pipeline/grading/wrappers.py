"""What may surround an answer and means nothing: quotes, emphasis, tags, invisible characters, marks of a proof's end.

unwrapped() takes these away, and nothing else: a cross or a question mark beside an answer says something and stays.
"""

from __future__ import annotations

import re
import unicodedata

_INVISIBLE = dict.fromkeys([0xAD, *range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x2070), 0xFE0F, 0xFEFF])
_QUOTES = str.maketrans("‘’‚“”„«»＂＇", '\'\'\'""""""\'')
_ALPHABETS = re.compile("[\U0001d400-\U0001d7ff]+")  # mathematical letters and digits: 𝑥, 𝟒
_CHEERS = re.compile("[\U0001f380-\U0001f3af\U0001f440-\U0001f44d\U0001f44f\U0001f600-\U0001f64f\U0001f680\U0001f973✅✔✓★☆⭐✨❗]")
_PAIRS = ("「」", "『』", "【】", "〖〗", "《》", "〈〉", "〔〕", '""', "''", "``", "~~")
_QUOTED_TEXT = re.compile(r"\\(?:text|mbox|mathrm)\s*\{\s*([\"'`「『【《].*)\}", re.DOTALL)
_EMPHASIS = re.compile(r"(\*+)([^*]+)\1", re.DOTALL)
_PROVED = re.compile(r"[\s.,]*(?:\bQ\.?E\.?D\b\.?|\\(?:blacksquare|square|qed|Box|checkmark)(?![a-zA-Z])|[∎■□◻◼])\s*$")
_EMPTY_SIDE = re.compile(r"\\(?:left|right)\s*\.")
_TAG = re.compile(r"</?(?:b|i|u|em|strong|p|div|span|center|code|br|answer)\s*/?>", re.IGNORECASE)


def visible(text: str) -> str:
    """The text without characters that print nothing."""
    return text if text.isascii() else text.translate(_INVISIBLE)


def unwrapped(text: str) -> str:
    """The text without wrappers around all of it: `“27”`, `*5*`, `<b>42</b>`, `42 QED` and `𝟒𝟐` are numbers."""
    if not text.isascii():
        text = _CHEERS.sub("", visible(text).translate(_QUOTES))
        text = _ALPHABETS.sub(lambda match: unicodedata.normalize("NFKC", match.group()), text)
    text = _TAG.sub("", _EMPTY_SIDE.sub("", text))
    text = text.replace("``", '"').replace("''", '"') if text.startswith("``") else text
    quoted = _QUOTED_TEXT.fullmatch(text.strip())
    text, before = quoted[1].strip() if quoted else text, ""
    while text != before:
        before, text = text, _PROVED.sub("", text).strip()
        emphasis = _EMPHASIS.fullmatch(text)
        text = emphasis[2].strip() if emphasis else text
        for opening, closing in _PAIRS:
            if len(text) > 2 and text[0] == opening and text[-1] == closing and not {opening, closing} & set(text[1:-1]):
                text = text[1:-1].strip()
    return text
