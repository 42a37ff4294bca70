"""Where a response states its answer in prose, and whether it stands by it.

A statement counts only where every word before it in its clause is known to affirm (`so the final answer is`), no earlier clause of
the sentence puts it in doubt, and nothing behind it takes it back. What is not known to affirm states nothing: neither `the wrong
answer is 42` nor `twice the answer is 42` nor `the total cannot be 42` says what the answer is.
"""

from __future__ import annotations

import re

NO_CLAIM, UNSURE_CLAIM = -1, -2
MAX_CONTEXT = 400  # characters before and behind a marker that are looked at
MAX_MARKERS = 64  # markers that are looked at, from the last one

_DOUBTS = (
    r"unless|would|might|maybe|perhaps|wrong\w*|false\w*|incorrect\w*|mistak\w*|claim\w*|guess\w*|believ\w*|thinks?|thought|doubt\w*"
    r"|suspect\w*|naive\w*|tempt\w*|trap|contradict\w*|absurd|refut\w*|invalid"
)
_DENIALS = (
    r"not|no|never|none|nobody|nothing|neither|nor|cannot|\w+n['’]t|without|except\w*|exclud\w*|if|whether|suppos\w*|assum\w*|could|may"
    r"|impossib\w*|reject\w*|rul\w* out|hypothe\w*|unlikely|den(?:y|ie[sd])|fake|bogus"
)
_DOUBTED = re.compile(rf"\b(?:{_DOUBTS})\b|错|误", re.IGNORECASE)
UNSURE = re.compile(rf"\b(?:{_DOUBTS}|{_DENIALS})\b|[不非没否错误]|如果|假", re.IGNORECASE)
_TAKEN_BACK = re.compile(
    r"\b(?:wait|correction|oops|scratch that|actually|on second thoughts?|(?:is|was|that['’]s) (?:wrong|incorrect|false|not)"
    r"|but (?:also|not)|or maybe|is (?:unclear|doubtful))\b|\bno,",
    re.IGNORECASE,
)
_AFFIRMING = (
    "so thus hence therefore then and finally consequently accordingly now also in conclusion summary total overall as a "
    "result it follows this that these means implies shows gives we i see find found get have conclude obtain deduce know "
    "can must which from the our my your final correct required desired requested numerical numeric exact short full "
    "complete answer answers value to problem question above original given is are be here for of i.e that's here's done "
    "step solution both all altogether by everything calculation computation checks out box boxed put end giving together "
    "combining simplifying clearly indeed"
)
_WORDS = "|".join(sorted(map(re.escape, _AFFIRMING.split()), key=len, reverse=True))
_HAN = "所以|因此|故|综上|所述|最后|最终|正确|则|那么|于是|从而|得到?|[本该此原]题|这道题|的|应|该|即|可知|为|结果|由此|我们"
_AFFIRMED = re.compile(rf"(?:[^\w]|\d+(?=[.)])|(?<!\w)(?:{_WORDS})(?!\w)|{_HAN})*+", re.IGNORECASE)
_SENTENCE_END = re.compile(r"\n|[.?!;](?=\s)|[。；！？]")
_CLAUSE_END = re.compile(r"[,:，：(]")


def last_claim(markers: re.Pattern[str], text: str) -> int:
    """Where the value begins behind the last marker that counts.

    Markers that the words before them deny are passed over. UNSURE_CLAIM where the words before the last other marker are not known
    to affirm it, or its line takes it back; NO_CLAIM where there is no marker.
    """
    found = [match.span() for match in markers.finditer(text)]
    for start, end in reversed(found[-MAX_MARKERS:]):
        sentence, clause = _context(text, start)
        if not unaffirming(clause) and not _DOUBTED.search(sentence):
            return UNSURE_CLAIM if _TAKEN_BACK.search(_line(text, end)) else end
        if not UNSURE.search(sentence):
            return UNSURE_CLAIM
    return NO_CLAIM


def _context(text: str, end: int) -> tuple[str, str]:
    """The sentence and the clause of it that lead up to `end`; a clause with `that` takes the one before with it."""
    before = text[max(end - MAX_CONTEXT, 0) : end]
    sentence = before[_last_end(_SENTENCE_END, before) :]
    clause = sentence[_last_end(_CLAUSE_END, sentence) :]
    return sentence, sentence if clause.lstrip().lower().startswith("that ") else clause


def unaffirming(words: str) -> str:
    """The text from the first word on that is not known to affirm what follows."""
    match = _AFFIRMED.match(words)
    return words[match.end() :] if match else words


def _last_end(pattern: re.Pattern[str], text: str) -> int:
    return max((match.end() for match in pattern.finditer(text)), default=0)


def _line(text: str, start: int) -> str:
    return text[start : start + MAX_CONTEXT].lstrip().partition("\n")[0]
