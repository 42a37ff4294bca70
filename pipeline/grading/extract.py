"""Which part of a response is its answer: decided once, before anything is compared.

In this order: the last balanced \\boxed or \\fbox (boxes joined only by "and", "or" or a comma form one list); the last
"Answer:" line; and, unless the response was cut off, the last "the answer is ..." or "... is the answer", or a closing statement
that ends in a value. A last box that is empty or never closed is no answer: an earlier box is not revived.
Time is linear in the length of the response.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_STATEMENT = 4000  # characters of a statement in prose that are looked at
MAX_BOXES = 32  # boxes looked at backwards from the last one: nested, or members of one list


@dataclass(frozen=True)
class Extraction:
    """The answer's text (None: no answer) and which rule found it: Extraction("42", "box")."""

    text: str | None
    rule: str


_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_BARE_BOX = re.compile(r"[-+]?\d+(?:[.,/]\d+)*|\\[a-zA-Z]+|[A-Za-z]")
_CONNECTOR = re.compile(
    r"(?:[\s$,;&*]|\\[()\[\],;:! ]|\\q?quad|\\(?:text|mbox|textrm|mathrm)\{\s*(?:and|or|,)?\s*\}|\band\b|\bor\b|[，、和或]"
    r"|[a-z](?:_\w)?\s*=)*+"
)
_LINK = re.compile(r"and|or|[,，、和或]")
_END_TOKEN = re.compile(r"<\|[a-z_]{2,24}\|>|</s>|<eos>")
_ANSWER_LINE = re.compile(r"(?:answers?|答案|(?<![解回作])答)[*_\s]*(?:(?:is|are|是|为)\s*)?[:：][*_]*", re.IGNORECASE)
_ANSWER_IS = re.compile(
    r"(?:answers?|答案)[*_]*\s*(?:is|are|应该是|应为|是|为|=)[*_]*(?:\s+(?:therefore|thus|simply|just|equal\s+to))?"
    r"|故选[:：]?|correct\s+(?:choice|option)\s+is|answer(?=\s*(?:\$|\\\(|\\\[))|answer[*_]*\s*\n+(?=\s*[\d$\\-])",
    re.IGNORECASE,
)
_IS_ANSWER = re.compile(
    r"(?<=\S)\s{1,4}(?:is|are)\s{1,4}(?:(?:the|our|my)\s{1,4})?(?:(?:final|correct|required|desired)\s{1,4})?answers?\b",
    re.IGNORECASE,
)
_OPENING_WORDS = re.compile(
    r"^(?:(?:so|thus|hence|therefore|then|we\s+(?:see|find|conclude)\s+that|and|finally)\b[\s,]*)+", re.IGNORECASE
)
_SENTENCE_END = re.compile(
    r"[.?](?=\s|$)|[。；]|;\s|!(?=\s+[A-Z][a-z])|\s\(?(?:because|since|which|where|as\s+required|I\s+hope)\b|,\s(?:so|as|and\s+we|obtained|found|using|by)\s"
)
_REPEATED = re.compile(r"^(?:(?:the|our|my)\s+)?(?:final|correct)?\s*answer\s*(?:is|=|:)+", re.IGNORECASE)
_DISPLAY = {"$$": "$$", "$": "$", "\\(": "\\)", "\\[": "\\]"}
_NUMBER = r"[-+−]?[$€£]?\d[\d.,/ ]*(?<=\d)(?:\s*\\?%|\s*°|[€£]|\s+[A-Za-z]{2,12})?"
_FORMULA = r"\$\$?[^$]+\$\$?|\\\([^\n]+?\\\)|\\\[[^\n]+?\\\]|\\d?frac\{[^{}]+\}\{[^{}]+\}"
_CLOSING = re.compile(
    rf"(?:^|[=≈]|\b(?:equals?|is|are|be|get|gives?|obtain|find|have|to|yields?|so|thus|hence|therefore)(?:\s+(?:therefore|thus|simply|just|exactly|then))?)[\s:*,]*(?P<value>{_FORMULA}|{_NUMBER})[\s*]*[.。!]?\s*$",
    re.IGNORECASE,
)


def extract_answer(response: str, *, truncated: bool = False) -> Extraction:
    """The answer of a response; `truncated` says that it was cut off at the length limit, where prose proves nothing."""
    if "<think>" in response or "</think>" in response:
        _, closed, tail = response.rpartition("</think>")
        truncated = truncated or not closed
        response = tail if closed else response
    if "<" in response:
        response = _END_TOKEN.sub("", response)
    boxed = _last_boxes(response)
    if boxed is not None:
        return boxed
    match = _last(_ANSWER_LINE, response)
    if match:
        return _statement(response[match.end() :], "answer_line")
    return Extraction(None, "no_answer") if truncated else _from_prose(response)


def _last_boxes(response: str) -> Extraction | None:
    """The last outermost box, with the boxes that it forms a list with; None when there is no box at all."""
    start = _rfind_box(response, len(response))
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


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    found = None
    for found in pattern.finditer(text):  # noqa: B007 - the last match is what is wanted
        pass
    return found


def _from_prose(response: str) -> Extraction:
    stated, named = _last(_ANSWER_IS, response), _last(_IS_ANSWER, response)
    if named and (stated is None or named.end() >= stated.end()):
        clause = re.split(r"\n|[.。:](?=\s)", response[: named.start()])[-1]
        return _statement(_OPENING_WORDS.sub("", clause.strip()), "is_the_answer")
    if stated:
        return _statement(response[stated.end() :], "answer_is")
    line = response.rstrip().rpartition("\n")[2].strip()
    sentence = re.split(r"(?<=[a-z\d)}$])[.。]\s+", line)[-1] if len(line) < 2000 else ""
    closing = _CLOSING.search(sentence)
    return _statement(closing.group("value"), "closing_value") if closing else Extraction(None, "no_answer")


def _statement(text: str, rule: str) -> Extraction:
    """The value that a statement begins with: one formula in its delimiters, or the text up to the end of the sentence."""
    text = _REPEATED.sub("", text.lstrip(" \t\n*_:：")).lstrip(" \t\n*_:：")
    opening = next((opening for opening in _DISPLAY if text.startswith(opening)), None)
    if opening:
        end = text.find(_DISPLAY[opening], len(opening))
        line_end = text.find("\n", end if end > 0 else 0)
        rest = text[end + len(opening) : line_end if line_end >= 0 else None] if end > 0 else ""
        continues = re.match(r"\s*(?:,|and\b|or\b|[=≈]|\\?%|[a-z]+)", rest, re.IGNORECASE) and _DISPLAY[opening] in rest
        if end > 0 and not continues:
            return _cleaned(text[len(opening) : end], rule)
    line = text[:MAX_STATEMENT].partition("\n")[0]
    end_match = _SENTENCE_END.search(line)
    return _cleaned(line[: end_match.start()] if end_match else line, rule)


def _cleaned(text: str, rule: str) -> Extraction:
    text = re.sub(r"(?<!\\)\$|\\[()\[\]]|\*\*|`", "", text).strip(" \t\n*_,")
    text = re.sub(r"\s+[(\[][a-z][a-z ]{3,}[)\]]$", "", text)
    return Extraction(text, rule) if text else Extraction(None, "empty_answer")
