"""Amounts in Chinese as formulas, and the words that may stand around a number in Chinese; no other may."""

from __future__ import annotations

import re

_DIGITS = {sign: number for number, sign in enumerate("零一二三四五六七八九")} | {"〇": 0, "两": 2}
_TENS = {"十": 10, "百": 100, "千": 1000}
_SCALES = {"百": "10^2", "千": "10^3", "万": "10^4", "萬": "10^4", "亿": "10^8", "億": "10^8"}
_NUMERAL = re.compile("(?<![\\d零〇一二两三四五六七八九十百千])[零〇一二两三四五六七八九十百千]+(?=$|[分万亿个種种次人元名只条米])")
_PER_CENT = re.compile(r"百分之\s*(-?[\d.]+)")
_QUOTIENT = re.compile(r"([\d.]+)\s*分之\s*(-?[\d.]+)")
_MINUS = re.compile(r"[负負]\s*(?=[\d.\\(√根])")
_ROOT = re.compile(r"根[号號]\s*(\d+)")
_SCALED = re.compile(r"(\d+(?:\.\d+)?)\s*((?:千(?![克米瓦卡])|百(?!分)|[万亿萬億])+)")
_NOUN = "解|方法|方案|情况|可能|选法|排法|取法|走法|不同的|不同|正?整数|自然数|实数|数|点|元素|根|零点|的|值"
BEFORE = "共计|共有|总共|一共|共|为|是|得|即|等于|约为?|大约|答案|答|有|:"  # what may stand before a number, a pattern
AFTER = rf"(?:[个個种種次人名只條条张張块项位组对页本支棵件台辆步局场颗枚段](?:{_NOUN})*+|倍|解)?"  # and behind it


def in_notation(text: str) -> str:
    """The text with numerals, 负, 万, 分之 and 根号 as formulas: 负七 is -7, 7万 7*10^4, 7分之3 3/7, 百分之5 5%."""
    if not any("\u4e00" <= sign <= "\u9fff" or sign == "〇" for sign in text):
        return text
    text = _PER_CENT.sub(r"\1%", _MINUS.sub("-", _NUMERAL.sub(_numeral, text)))
    text = _ROOT.sub(r"\\sqrt{\1}", _QUOTIENT.sub(r"\2/\1", text))
    return _SCALED.sub(lambda match: match[1] + "".join(f"*{_SCALES[sign]}" for sign in match[2]), text)


def _numeral(match: re.Match[str]) -> str:
    total, digit = 0, None
    if match.group() in ("百", "千", "万"):
        return match.group()
    for sign in match.group():
        if sign in _DIGITS:
            digit = _DIGITS[sign] if digit is None else 10 * digit + _DIGITS[sign]
        else:
            total, digit = total + (1 if digit is None else digit) * _TENS[sign], None
    return str(total + (digit or 0))
