"""Which part of a response is its answer: decided once, before anything is compared.

In this order: the last balanced \\boxed or \\fbox (boxes joined only by "and", "or" or a comma form one list); the last
"Answer:" line; and, unless the response was cut off, the last "the answer is ..." or "... is the answer", or a closing statement
that ends in a value. A last box that is empty or never closed is no answer: an earlier box is not revived.
Time is linear in the length of the response.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pipeline.grading.stated import NO_CLAIM, UNSURE, UNSURE_CLAIM, last_claim, unaffirming
from pipeline.grading.wording import in_notation
from pipeline.grading.wrappers import visible

MAX_STATEMENT = 4000  # characters of a statement in prose that are looked at
MAX_BOXES = 32  # boxes looked at backwards from the last one: nested, or members of one list


@dataclass(frozen=True)
class Extraction:
    """The answer's text (None: no answer) and which rule found it: Extraction("42", "box")."""

    text: str | None
    rule: str


_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_BARE_BOX = re.compile(r"[-+]?\d+(?:[.,/]\d+)*|\\[a-zA-Z]+|[A-Za-z](?![A-Za-z])")
_CONNECTOR = re.compile(
    r"(?:[\s$,;&*]|\\[()\[\],;:! ]|\\q?quad|\\(?:text|mbox|textrm|mathrm)\{\s*(?:and|or|,)?\s*\}|\band\b|\bor\b|[，、和或]"
    r"|[a-z](?:_\w)?\s*=)*+"
)
_LINK = re.compile(r"and|or|[,，、和或]")
_END_TOKEN = re.compile(
    r"<\|[\w-]{2,24}\|>|<｜[^｜\n]{2,40}｜>|</?s>|<(?:eos|bos|pad|end_of_turn|end_of_text)>|\[/?(?:EOS|INST|END|BOS|PAD)\]"
)
_ANSWER_TAG = re.compile(r"<answer>", re.IGNORECASE)
_ANSWER_LINE = re.compile(r"(?:\banswers?|答案|(?<![解回作])答)[*_\s]*(?:(?:is|are|[是为])\s*)?[:：][*_]*", re.IGNORECASE)
_ANSWER_IS = re.compile(
    r"(?:\banswers?(?:\s+to\s+(?:the|this)\s+(?:problem|question))?|答案)[*_]*\s*(?:is|are|应该是|应为|是|为|=)[*_]*(?:\s+(?:therefore|thus|simply|just|indeed|equal\s+to))?"
    r"|(?<!不)选(?=\s*[:：(（]?\s*[A-H])[:：]?|\bcorrect\s+(?:choice|option)\s+is|\banswer(?=\s*(?:\$|\\\(|\\\[))"
    r"|\banswer[*_]*\s*\n+(?=\s*[\d$\\-])",
    re.IGNORECASE,
)
_IS_ANSWER = re.compile(
    r"(?<=\S)\s{1,4}(?:is|are)\s{1,4}(?:(?:the|our|my)\s{1,4})?(?:(?:final|correct|required|desired)\s{1,4})?answers?"
    r"(?=(?:\s+to\s+(?:the|this)\s+(?:problem|question))?[*_ ]*(?:[.!。]|\n|$))",
    re.IGNORECASE,
)
_OPENING_WORDS = re.compile(
    r"^(?:(?:so|thus|hence|therefore|then|we\s+(?:see|find|conclude)\s+that|and|finally)\b[\s,]*)+", re.IGNORECASE
)
_STATEMENT_END = re.compile(r"(?<!\.)(?<!\bi\.e)(?<!\be\.g)[.?](?=\s|$)|[。；？]|!(?=\s+[A-Z][a-z])|;\s(?=[a-z]+\s[a-z])")
_EXPLANATION = re.compile(
    r",?\s[(\[]?(?:because|since|as\s+(?:required|claimed|desired|needed|expected)|I\s+hope|see\s|checked|verified|and\s+nothing\s+else)\b"
    r"|,?\s\(?(?:which|where)\b|,\s(?:so|as|and\s+we|obtained|found|using|by)\s"
)
_REPEATED = re.compile(r"^(?:(?:the|our|my)\s+)?(?:final|correct)?\s*answer\s*(?:is|=|:)+", re.IGNORECASE)
_DISPLAY = {"$$": "$$", "$": "$", "\\(": "\\)", "\\[": "\\]"}
_NUMBER = r"[-+−]?[$€£]?\d[\d.,/ ]*(?<=\d)(?:\s*\\?%|\s*°|[€£]|\s+[A-Za-z]{2,12})?"
_FORMULA = r"\$\$?[^$]+\$\$?|\\\([^\n]+?\\\)|\\\[[^\n]+?\\\]|\\d?frac\{[^{}]+\}\{[^{}]+\}"
_CLOSING = re.compile(
    rf"(?P<verb>^|[=≈]|\b(?:(?:is\s+|are\s+)?equal\s+to|equals?|is|are|get|gives?|obtain|find|have|yields?|so|thus|hence|therefore)"
    rf"(?:\s+(?:therefore|thus|simply|just|exactly|then))?)[\s:*,]*(?P<value>{_FORMULA}|{_NUMBER})[\s*]*[.。!]?\s*$",
    re.IGNORECASE,
)
_NAME = re.compile(r"(?:\\[a-zA-Z]+|(?<![A-Za-z])[A-Za-z]{1,2}(?![A-Za-z])|[\d\W_])*+")  # of a value: x, $m+n$, f(2)
_SUBJECT = re.compile(r"(?:the|its|our|it|this|that|there|\$|\\\(|[a-z]\b)", re.IGNORECASE)
_RESTATED = re.compile(  # 42 (forty-two), 1024 (= 2^{10}), 1/3 (about 0.333)
    r"^(.*\S)\s*\((?:(?:(?:=|i\.e\.,?|or equivalently)|(?P<about>≈|(?:or )?(?:approximately|about)))"
    r"\s*(?P<value>[^()]*(?:\([^()]*\))?[^()]*)|(?P<words>[a-z][a-z -]*))\)$"
)
_DOLLAR = re.compile(r"(?<!\\)\$")
_BOXED_WORD = re.compile(r"\s*\\f?boxed\s*$")


def extract_answer(response: str, *, truncated: bool = False) -> Extraction:
    """The answer of a response; `truncated` says that it was cut off at the length limit, where prose proves nothing."""
    if "<think>" in response or "</think>" in response:
        _, closed, tail = response.rpartition("</think>")
        truncated = truncated or not closed
        response = tail if closed else response
    response = visible(response)
    if "<" in response or "[" in response:
        response = _END_TOKEN.sub("", response)
    boxed = _last_boxes(response, truncated)
    if boxed is not None:
        return boxed
    if "<answer>" in response.lower():
        content, closed, _ = _ANSWER_TAG.split(response)[-1].partition("</answer>")
        if closed or not truncated:
            return _statement(content, "answer_tag")
    start = last_claim(_ANSWER_LINE, response)
    if start >= 0:
        return _statement(response[start:], "answer_line")
    return Extraction(None, "no_answer") if truncated or start == UNSURE_CLAIM else _from_prose(response)


def _last_boxes(response: str, truncated: bool) -> Extraction | None:
    """The last outermost box, with the boxes that it forms a list with; None when there is no box at all."""
    start = _rfind_box(response, len(response))
    for _ in range(MAX_BOXES):
        if start < 0 or not _is_mention(response, start, truncated):
            break
        start = _rfind_box(response, start)
    if start < 0:
        return None
    box = _box_at(response, start)
    if box is None:
        return Extraction(None, "unclosed_box")
    content, end = box
    contents = [content]
    for _ in range(MAX_BOXES):
        previous = _rfind_box(response, start)
        before = _box_at(response, previous) if previous >= 0 else None
        if before is None:
            break
        if before[1] >= end:  # it encloses the one found so far
            contents, start, end = [before[0]], previous, before[1]
            continue
        between = response[before[1] : start]
        joined = len(between) <= 48 and _CONNECTOR.fullmatch(between) and ("\n\n" not in between or _LINK.search(between))
        if not joined:
            break
        contents.insert(0, before[0])
        start = previous
    contents = [_unbox(content).strip() for content in contents]
    if not contents[-1]:
        return Extraction(None, "empty_box")
    distinct = list(dict.fromkeys(content for content in contents if content))
    return Extraction(", ".join(distinct), "box" if len(distinct) == 1 else "boxes")


def _rfind_box(response: str, before: int) -> int:
    return max(response.rfind("\\boxed", 0, before), response.rfind("\\fbox", 0, before))


def _is_mention(response: str, start: int, truncated: bool) -> bool:
    """Whether the macro at `start` is only spoken of (`write it in \\boxed form`): what follows is neither a brace nor a value."""
    end = start + (6 if response.startswith("\\boxed", start) else 5)
    rest = response[end : end + 40].lstrip()
    return not rest.startswith("{") and not _BARE_BOX.match(rest) and bool(rest or not truncated)


def _box_at(response: str, start: int) -> tuple[str, int] | None:
    """Content and end of the box macro at `start`; None when its braces never close or nothing follows it."""
    position = start + (6 if response.startswith("\\boxed", start) else 5)
    while position < len(response) and response[position] in " \t\n":
        position += 1
    if not response.startswith("{", position):
        bare = _BARE_BOX.match(response, position)
        return (bare.group(), bare.end()) if bare else None
    depth = 0
    for match in _BRACE.finditer(response, position):
        brace = match.group()
        if brace == "{":
            depth += 1
        elif brace == "}":
            depth -= 1
            if depth == 0:
                return response[position + 1 : match.start()], match.end()
    return None


def _unbox(content: str) -> str:
    """The content without boxes inside it: `\\boxed{8}` -> `8`, `x=\\boxed{8}` -> `x=8`."""
    for _ in range(MAX_BOXES):
        start = _rfind_box(content, len(content))
        box = _box_at(content, start) if start >= 0 else None
        if box is None:
            break
        content = content[:start] + box[0] + content[box[1] :]
    return content


def _from_prose(response: str) -> Extraction:
    """The last `the answer is ...` or `... is the answer`; where no sentence speaks of an answer, the value that ends the last."""
    stated = last_claim(_ANSWER_IS, response)
    named = [match.start() for match in _IS_ANSWER.finditer(response)][-1:]
    if named and named[0] >= stated:
        clause = re.split(r"\n|[.。:](?=\s)", response[max(named[0] - MAX_STATEMENT, 0) : named[0]])[-1]
        return _statement(_OPENING_WORDS.sub("", clause.strip()), "is_the_answer")
    if stated >= 0:
        return _statement(response[stated:], "answer_is")
    line = response.rstrip().rpartition("\n")[2].strip()
    sentence = re.split(r"(?<=[a-z\d)}$])[.。]\s+", line)[-1] if len(line) < 2000 else ""
    closing = _CLOSING.search(sentence) if stated == NO_CLAIM else None
    if closing is None or not _is_concluded(sentence[: closing.start()], closing["verb"].lower()):
        return Extraction(None, "no_answer")
    return _statement(closing["value"], "closing_value")


def _is_concluded(before: str, verb: str) -> bool:
    """Whether a sentence claims the value that it ends in: `Thus, n =`, `So the total is`; not `We rule out n =`, `they get`."""
    if UNSURE.search(before) or "answer" in before:
        return False
    rest = unaffirming(before).strip()
    if verb in ("=", "≈"):
        return _NAME.fullmatch(rest) is not None
    subject = _OPENING_WORDS.sub("", before.strip())
    return not rest or (verb.startswith(("is", "are", "equal")) and _SUBJECT.match(subject) is not None)


def _statement(text: str, rule: str) -> Extraction:
    """The value that a statement begins with: its line or displayed formula, up to the end of the sentence or an explanation."""
    text = _REPEATED.sub("", text[: 2 * MAX_STATEMENT].lstrip(" \t\n*_:：")).lstrip(" \t\n*_:：")[:MAX_STATEMENT]
    opening = next((opening for opening in _DISPLAY if text.startswith(opening)), None)
    end = text.find(_DISPLAY[opening], len(opening)) if opening else -1
    formula, text = (text[: end + 2].replace("\n", " "), text[end + 2 :]) if end > 0 and opening != "$" else ("", text)
    line = text.partition("\n")[0]
    sentence_end = _STATEMENT_END.search(line)
    if sentence_end and sentence_end.group() in "?？":
        return Extraction(None, "question")
    line = line[: sentence_end.start()] if sentence_end else line
    explanation = _EXPLANATION.search(line)
    if explanation and (
        not UNSURE.search(line[explanation.start() :]) or re.search(r"because|since|as\s|else", explanation.group())
    ):
        line = line[: explanation.start()]
    return _cleaned(formula + line, rule)


def _cleaned(text: str, rule: str) -> Extraction:
    """The statement without delimiters of mathematics and Markdown; `42 (forty-two)` and `1024 (= 2^{10})` as equations."""
    text = re.sub(r"\\[()\[\]]|\*\*", "", _BOXED_WORD.sub("", text))
    if len(_DOLLAR.findall(text)) != 1 or text.rstrip(" .*_").endswith("$"):  # a single one before a number is a currency
        text = _DOLLAR.sub("", text)
    text = text.strip(" \t\n*_,:")
    restated = _RESTATED.fullmatch(text)
    if restated:
        value = restated["value"] or in_notation(restated["words"])
        if restated["value"] or re.fullmatch(r"-?\d+(?:/\d+)?", value):
            text = f"{restated[1]} {'≈' if restated['about'] else '='} {value}"
    return Extraction(text, rule) if text else Extraction(None, "empty_answer")
