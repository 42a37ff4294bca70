"""One spelling for mathematical text: LaTeX, Unicode and plain text become one short notation, with one sign for each operator.

canonical() keeps \\frac, \\sqrt, \\binom, \\text and matrix environments and turns the rest into signs (≤ ∪ ∞ π ° ± ∈ ...), braces
of sets into ⦃ ⦄, and every kind of blank into one space. It never decides anything: two answers that differ still differ.
"""

from __future__ import annotations

import re
from functools import lru_cache

MAX_LENGTH = 1000  # longer answers are compared as strings only

_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿ", "0123456789+-()n")
_SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_UNICODE = str.maketrans(
    {
        **{code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)},  # full-width forms
        **dict.fromkeys(
            map(ord, "\u00a0\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"), " "
        ),
        **dict.fromkeys(map(ord, "\u200b\u200c\u200d\u2060\ufeff"), ""),
        **dict.fromkeys(map(ord, "−–—‐‑‒﹣"), "-"),
        **dict.fromkeys(map(ord, "×·⋅∙∗•"), "*"),
        **dict.fromkeys(map(ord, "÷∕⁄"), "/"),
        **dict.fromkeys(map(ord, "€£¥￥₹"), ""),
        **dict.fromkeys(map(ord, "≤⩽≦"), "≤"),
        **dict.fromkeys(map(ord, "≥⩾≧"), "≥"),
        **dict.fromkeys(map(ord, "≈≅≃"), "≈"),
        **dict.fromkeys(map(ord, "º˚"), "°"),
        **dict.fromkeys(map(ord, "，、"), ","),
        **dict.fromkeys(map(ord, "∶："), ":"),
        **dict.fromkeys(map(ord, "⟨〈"), "("),
        **dict.fromkeys(map(ord, "⟩〉"), ")"),
        **dict.fromkeys(map(ord, "′’"), "'"),
        **{
            ord(sign): text
            for sign, text in {"½": "\\frac12", "¼": "\\frac14", "¾": "\\frac34", "⅓": "\\frac13", "⅔": "\\frac23"}.items()
        },
        **{
            ord(sign): text
            for sign, text in {"⅕": "\\frac15", "⅙": "\\frac16", "⅛": "\\frac18", "√": "\\sqrt", "∛": "\\sqrt[3]"}.items()
        },
        **{
            ord(sign): text
            for sign, text in {"θ": "\\theta ", "α": "\\alpha ", "β": "\\beta ", "λ": "\\lambda ", "φ": "\\phi "}.items()
        },
        **{
            ord(sign): text
            for sign, text in {"∑": "\\sum", "∏": "\\prod", "∫": "\\int", "。": ".", "％": "%", "…": "...", "ℝ": "ℝ"}.items()
        },
    }
)
_SIGNS = {
    **dict.fromkeys(("le", "leq", "leqslant", "leqq"), "≤"),
    **dict.fromkeys(("ge", "geq", "geqslant", "geqq"), "≥"),
    **dict.fromkeys(("ne", "neq"), "≠"),
    **dict.fromkeys(("approx", "thickapprox", "simeq", "cong", "doteq"), "≈"),
    **dict.fromkeys(("cdot", "times", "ast", "bullet"), "*"),
    **dict.fromkeys(("langle",), "("),
    **dict.fromkeys(("rangle",), ")"),
    **dict.fromkeys(("lbrace",), "⦃"),
    **dict.fromkeys(("rbrace",), "⦄"),
    **dict.fromkeys(("lvert", "rvert", "vert", "mid"), "|"),
    **dict.fromkeys(("emptyset", "varnothing"), "∅"),
    **dict.fromkeys(("setminus", "backslash"), "∖"),
    **dict.fromkeys(("lor", "vee", "land", "wedge"), ","),
    **dict.fromkeys(("quad", "qquad", "enspace", "thinspace", "space"), " "),
    **dict.fromkeys(("dots", "ldots", "cdots"), "..."),
    **dict.fromkeys(("lbrack",), "["),
    **dict.fromkeys(("rbrack",), "]"),
    **{
        "lt": "<",
        "gt": ">",
        "div": "/",
        "pm": "±",
        "mp": "∓",
        "cup": "∪",
        "bigcup": "∪",
        "cap": "∩",
        "bigcap": "∩",
        "equiv": "≡",
        "in": "∈",
        "infty": "∞",
        "pi": "π",
        "degree": "°",
        "deg": "°",
        "surd": "\\sqrt",
    },
    **{
        "colon": ":",
        "lfloor": "⌊",
        "rfloor": "⌋",
        "lceil": "⌈",
        "rceil": "⌉",
        "pounds": "",
        "euro": "",
        "prime": "'",
        "cr": "\\cr ",
    },
    **dict.fromkeys(
        ("left", "right", "middle", "big", "Big", "bigg", "Bigg", "bigl", "bigr", "Bigl", "Bigr", "biggl", "biggr"), ""
    ),
    **dict.fromkeys(
        ("displaystyle", "textstyle", "limits", "nolimits", "rm", "bf", "it", "boldsymbol", "bm", "hfill", "hline"), ""
    ),
    **dict.fromkeys(("dfrac", "tfrac", "cfrac"), "\\frac"),
    **dict.fromkeys(("dbinom", "tbinom"), "\\binom"),
}
_TEXT = r"\\(?:text(?:bf|it|rm|sf|tt|normal)?|[mh]box|math(?:rm|bf|it|sf|tt)|operatorname\*?)(?![a-zA-Z])"
_TEXT_MACRO = re.compile(_TEXT)
_DECORATION = re.compile(
    r"\\(?:tiny|small|normalsize|large|Large|LARGE|huge|Huge|bfseries|square|blacksquare|Box|qed|checkmark|ensuremath)(?![a-zA-Z])"
    r"|\\(?:[hv]phantom|tag\*?)\s*\{[^{}]*\}|[∎□■◻◼✓✔✅]"
)
_FONT_OF_FORMULA = re.compile(_TEXT + r"\s*(?=\{[^{}a-zA-Z]*\\[a-zA-Z]+ ?[\[{\d])")  # \mathrm{\frac12}
_CURRENCIES = {"\\$": "USD", "\\pounds": "GBP", "\\euro": "EUR", "€": "EUR", "£": "GBP", "¥": "CNYJPY", "￥": "CNYJPY", "₹": "INR"}
_CURRENCY = re.compile(r"\\text ?\{(\\\$|[€£¥￥₹])\}|(\\\$|[€£¥￥₹]|\\(?:pounds|euro)(?![a-zA-Z]))")
_OVER = re.compile(r"\{([^{}]*)\\over(?![a-zA-Z])([^{}]*)\}|^([^{}]*)\\over(?![a-zA-Z])([^{}]*)$")  # TeX's own fraction
_OPERATOR = re.compile(
    r"\\(?:operatorname\*?|text|mathrm)\s*\{\s*(sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|ln|log|exp|(?:min|max|gcd|lcm)(?=\s*\}\s*\\?[({\[\\]))\s*\}"
)
_TIMES_TEN = re.compile(r"(?<=\d) ?[xX] ?(?=10 ?\^)")  # 5x10^3
_TEXT_GROUP = re.compile(r"\\text\s*\{([^{}]*)\}")
_BASIS_VECTOR = re.compile(r"\\(?:mathbf|boldsymbol|vec|hat)\s*\{\s*(?:\\(?:hat|vec|mathbf)\s*)?\{?\s*([ijk])\s*\}?\s*\}")
_POWER_IN_TEXT = re.compile(r"(\\text\s*\{[^{}]*\^) ?\{ ?(-?\d) ?\}")
_JOINING_TEXT = re.compile(r",?\s*(?:and|or)|,")
_JOINED_NUMBER = re.compile(r",?\s*(?:and|or)\s+([-+]?\d[\d.,/]*)")
_PLAIN_TO = re.compile(r"(?<=\d) +to +(?=\d)")
_COMMAND = re.compile(r"\\([a-zA-Z]+)(?=( ?))")
_SPACING = re.compile(r"\\[,;:> ]|~|\\hspace\*?\{[^{}]*\}|\\phantom\{[^{}]*\}|\\(?:hline)\b")
_DEGREE = re.compile(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![a-zA-Z]))|\\circ(?![a-zA-Z])")
_JOINING_WORD = re.compile(r"(?<![A-Za-z\\{])(?:and|or)(?![A-Za-z}])")
_FACTORIAL_EQUALS = re.compile(r"(?<=[\w)}])!\s*=")
_BLANKS = re.compile(r"\s+")
_TIGHT = re.compile(r"(\\[A-Za-z]+ )(?=[A-Za-z])|(?<!\d) | (?!\d)")
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?!\d|,\d)")
_THIN_THOUSANDS = re.compile(r"(?<![\d.,/] )(?<![\d.,/])\d{1,3}(?: \d{3})+(?![\d/])")
_MODULUS = re.compile(r"\(?\\[pb]?mod(?![a-zA-Z]) ?(?:\{ ?(\d+) ?\}|(\d+))\)?|\( ?mod +(\d+) ?\)")
_OUTWARD_BRACKETS = re.compile(r"(?<![^\s∪∈=,])([\[\]])([^\[\](){}⦃⦄,;]+[,;][^\[\](){}⦃⦄,;]+)([\[\]])(?![^\s∪,.])")
_DOTTED_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:\.\d{3}){2,}(?![\d.,])")


def undecorated(text: str) -> str:
    """The text without sizes, fonts around formulas, marks of a proof's end and the letter x for a sign of multiplication; with
    signs of currency as names, where canonical() would drop them.
    """
    text = text.replace("\\#", "\\text{#}")
    if "\\bmod" in text and "\\equiv" not in text:  # an operation, not a residue
        text = text.replace("\\bmod", "\\text{bmod}")
    text = _CURRENCY.sub(lambda match: "\\text{" + _CURRENCIES[match[1] or match[2]] + "}", text)
    if text.count("$") == 1:  # no delimiter
        text = text.replace("$", "\\text{USD}")
    if "\\over" in text:
        text = _OVER.sub(lambda m: f"\\frac{{{m[1] or m[3] or ''}}}{{{m[2] or m[4] or ''}}}", text)
    if "\\" in text or not text.isascii():
        text = _OPERATOR.sub(r"\\\1 ", text)
        text = _FONT_OF_FORMULA.sub("", _DECORATION.sub("", text))
    return _TIMES_TEN.sub("*", text)


@lru_cache(maxsize=8192)
def canonical(text: str) -> str:
    """The short notation of `text`; idempotent. Length at most a small multiple of the input's."""
    if not text.isascii():
        text = re.sub("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿ]+", _superscript, text)
        text = re.sub("[₀₁₂₃₄₅₆₇₈₉]+", lambda m: "_{" + m.group().translate(_SUBSCRIPTS) + "}", text)
        text = text.translate(_UNICODE)
    if "\\" in text:
        text = _without_latex(text)
    text = text.replace("**", "^").replace("{,}", ",").replace("{:}", ":").replace("$", "").replace("ℝ-⦃", "ℝ∖⦃")
    text = _FACTORIAL_EQUALS.sub("! =", text)
    text = text.replace("<=", "≤").replace(">=", "≥").replace("!=", "≠").replace("~=", "≈").replace("+/-", "±").replace("+-", "±")
    text = re.sub(r"(?<![A-Za-z])infinity(?![A-Za-z])", "∞", text)
    if "mod" in text:
        text = _MODULUS.sub(lambda m: f"\\pmod{{{m[1] or m[2] or m[3]}}}", text)
    text = _PLAIN_TO.sub(":", _JOINING_WORD.sub(",", text))
    if "[" in text or "]" in text:
        text = _OUTWARD_BRACKETS.sub(_round_brackets, text)
    text = _BLANKS.sub(" ", text).strip()
    if " " in text:
        text = _THIN_THOUSANDS.sub(lambda m: m.group().replace(" ", ""), text)
    text = _DOTTED_THOUSANDS.sub(lambda m: m.group().replace(".", ""), text)
    while text and text[-1] in ".,;\\" and not text.endswith("..."):
        text = text[:-1].rstrip()
    return text


def _without_latex(text: str) -> str:
    if "\\begin" in text:
        text = re.sub(r"\\\\(?:\[[^\]]*\])?", r"\\cr ", text)
    else:
        text = re.sub(r"\\\\(?=[a-zA-Z{}(),!;%$])", r"\\", text)
    text = re.sub(r",\\! *", ",", text).replace("\\!", "")
    text = re.sub(r"\\[()\[\]]", "", text)
    text = _DEGREE.sub("°", text)
    text = _SPACING.sub(" ", text)
    text = re.sub(r"\\(?:text)?color ?\{[^{}]*\}|\\underline(?![a-zA-Z])", "", text)
    text = (
        text.replace("\\$", "").replace("\\%", "%").replace("\\{", "⦃").replace("\\}", "⦄").replace("\\|", "|").replace("\\_", "_")
    )
    text = text.replace("\\&", "&").replace("\\#", "").replace("\\\n", " ")
    text = re.sub(r"\\mathbb\s*\{?\s*([A-Z])\s*\}?", lambda m: {"R": "ℝ"}.get(m.group(1), f"\\text{{{m.group(1)}}}"), text)
    text = _BASIS_VECTOR.sub(r"\1", text)
    text = _POWER_IN_TEXT.sub(r"\1\2", _TEXT_MACRO.sub(r"\\text", text))
    text = re.sub(r"\\text ([A-Za-z])", r"\\text{\1}", text)
    text = re.sub(r"\\text ?\{\s*\\text ?\{([^{}]*)\}\s*\}", r"\\text{\1}", text)
    text = _TEXT_GROUP.sub(_text_group, text)
    text = re.sub(r"\\not\s*(?:=|\\in(?![a-zA-Z]))", "≠", text)
    return _COMMAND.sub(_sign, text)


def _superscript(match: re.Match[str]) -> str:
    signs = match.group().translate(_SUPERSCRIPTS)
    return "^" + (signs if len(signs) == 1 else "{" + signs + "}")


def _text_group(match: re.Match[str]) -> str:
    """\\text{ and } joins a list, \\text{ to } a ratio; \\mathrm{e}, \\mathrm{i} and \\mathrm{d} are letters of the formula."""
    words = match.group(1).strip()
    if _JOINING_TEXT.fullmatch(words):
        return ","
    if joined := _JOINED_NUMBER.fullmatch(words):
        return "," + joined[1]
    if words == "to":
        return ":"
    if not any(map(str.isalnum, words)):
        return words or " "
    return words if words in ("e", "i", "d") else f"\\text{{{match.group(1)}}}"


def _sign(match: re.Match[str]) -> str:
    return _SIGNS.get(match.group(1), match.group())


def _round_brackets(match: re.Match[str]) -> str:
    """]0,1[ and [0,1[, with brackets turned outwards, as (0,1) and [0,1)."""
    return ("(" if match[1] == "]" else "[") + match[2] + (")" if match[3] == "[" else "]")


def compact(text: str) -> str:
    """`text` in canonical notation without blanks, except between two digits ("2 2/3" is not "22/3") and after a command."""
    return _TIGHT.sub(r"\1", text) if " " in text else text


def has_thousands(text: str) -> bool:
    """Whether a comma in `text` may separate thousands rather than members of a list."""
    return "," in text and _THOUSANDS.search(text) is not None


def join_thousands(text: str) -> str:
    """1,234,567 -> 1234567; `1,2` and `1, 234` stay lists, and `(1,234)` a pair."""
    return _THOUSANDS.sub(lambda m: m.group() if _is_pair(m) else m.group().replace(",", ""), text)


def _is_pair(match: re.Match[str]) -> bool:
    """Whether brackets hold the match and nothing else: a tuple, an interval or a set."""
    around = match.string[max(match.start() - 1, 0) : match.start()] + match.string[match.end() : match.end() + 1]
    return around in ("()", "[]", "(]", "[)", "⦃⦄")
