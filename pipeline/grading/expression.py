"""A reader of formulas in canonical notation: text in, a small tree out; nothing is evaluated and nothing is executed.

A node is a tuple whose first entry names it: ("num", Fraction), ("const", "π" | "e" | "i" | "∞"), ("var", name),
("+" | "-" | "*" | "/" | "^", a, b), ("neg" | "!" | "!!" | "abs" | "conj" | "floor" | "ceil", a), ("root", a, n), ("log", base, a),
("binom", n, k), ("min" | "max" | "gcd" | "lcm", a, b, ...), ("call", function, a), ("sum" | "prod", variable, low, high, body).
Caps: MAX_DEPTH levels, MAX_OPERATIONS, MAX_LENGTH characters. What the grammar does not know raises NotationError.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

from pipeline.grading.cursor import Cursor, NotationError
from pipeline.grading.notation import MAX_LENGTH

Node = tuple


FUNCTIONS = frozenset(
    re.findall(
        r"\w+",
        "sin cos tan cot sec csc arcsin arccos arctan arccot sinh cosh tanh coth ln log lg exp sqrt asin acos atan min max gcd lcm",
    )
)
_GREEK = frozenset(
    re.findall(
        r"\w+",
        "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma tau upsilon phi "
        "varphi chi psi omega Gamma Delta Theta Lambda Xi Sigma Phi Psi Omega ell",
    )
)
_PLAIN_WORDS = sorted(
    [*FUNCTIONS, "pi", "theta", "infinity", "infty", "inf", "oo", "alpha", "beta", "lambda"], key=len, reverse=True
)
_NUMBER = re.compile(r"(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,4}(?![\d.a-zA-Z]))?")
_REPEATING = re.compile(r"(\d*)\.(\d*)\\(?:overline|bar|dot)\s*\{?\s*(\d+)\s*\}?")
_MIXED = re.compile(r" ?(?:\\frac *(?:\{ ?(\d+) ?\}|(\d)) *(?:\{ ?(\d+) ?\}|(\d)))|(?<=\d) (\d+) ?/ ?(\d+)(?![\d.])")
_LETTERS = re.compile(r"[A-Za-z]+")
_COMMAND = re.compile(r"\\([A-Za-z]+) ?")
_TEXT = re.compile(r"\\text ?\{ ?([^{}]*?) ?\}")
_SUBSCRIPT = re.compile(r" ?_ ?(?:\{([^{}]*)\}|([A-Za-z0-9]))")
_CLOSING = {"(": ")", "[": "]", "{": "}", "⌊": "⌋", "⌈": "⌉"}


@lru_cache(maxsize=4096)
def read(text: str) -> Node:
    """The tree of a formula in canonical notation. Raises NotationError."""
    if len(text) > MAX_LENGTH:
        raise NotationError(f"a formula of {len(text)} characters; at most {MAX_LENGTH} are read")
    reader = _Reader(text)
    node = reader.sum()
    reader.blanks()
    if reader.at < len(text):
        raise reader.error("unexpected")
    return node


class _Reader(Cursor):
    """Recursive descent over the characters of one formula."""

    def sum(self) -> Node:
        node = self.product()
        while self.peek() in ("+", "-"):
            operator = self.text[self.at]
            self.at += 1
            self.count_operation()
            node = (operator, node, self.product())
        return node

    def product(self) -> Node:
        node = self.signed()
        while True:
            sign = self.peek()
            self.count_operation()
            if sign in ("*", "/"):
                self.at += 1
                node = (sign, node, self.signed())
            elif self.starts_factor(sign):
                if sign.isdigit() and self.text[: self.at].rstrip()[-1:].isdigit():
                    raise self.error("two numbers in a row")
                node = ("*", node, self.power())
            else:
                return node

    def starts_factor(self, sign: str) -> bool:
        if sign == "|":
            return not self.in_abs
        return bool(sign) and (sign.isalnum() or sign in "([{\\.⌊⌈π∞")

    def signed(self) -> Node:
        negative = False
        while self.peek() in ("+", "-"):
            negative ^= self.text[self.at] == "-"
            self.at += 1
        node = self.power()
        return ("neg", node) if negative else node

    def power(self) -> Node:
        node = self.atom()
        while True:
            self.count_operation()
            if self.take("^"):
                node = ("^", node, self.script())
            elif self.peek() == "!":
                double = self.text.startswith("!!", self.at)
                self.at += 2 if double else 1
                node = ("!!" if double else "!", node)
            elif self.take("°"):
                node = ("*", node, ("/", ("const", "π"), ("num", Fraction(180))))
            elif self.take("%"):
                node = ("/", node, ("num", Fraction(100)))
            else:
                return node

    def script(self) -> Node:
        """What follows ^ or _: a group, a signed number, or one atom; towers without braces are read from the right."""
        if self.peek() in ("+", "-"):
            negative = self.text[self.at] == "-"
            self.at += 1
            node = self.script()
            return ("neg", node) if negative else node
        node = self.group("{") if self.peek() == "{" else self.atom(mixed=False)
        if self.peek() == "^":
            self.descend()
            self.at += 1
            node = ("^", node, self.script())
            self.depth -= 1
        return node

    def group(self, opening: str) -> Node:
        self.expect(opening)
        in_abs, self.in_abs = self.in_abs, 0
        node = self.sum()
        self.in_abs = in_abs
        self.expect(_CLOSING[opening])
        return node

    def argument(self) -> Node:
        """An argument of \\frac, \\binom or \\sqrt: a group, one digit, or one atom."""
        sign = self.peek()
        if sign == "{":
            return self.group("{")
        if sign.isdigit():
            self.at += 1
            return ("num", Fraction(int(sign)))
        return self.atom(mixed=False)

    def atom(self, mixed: bool = True) -> Node:
        self.descend()
        node = self.bare_atom(mixed)
        self.depth -= 1
        return node

    def bare_atom(self, mixed: bool) -> Node:
        sign = self.peek()
        if sign.isdecimal() or sign == ".":
            return self.number(mixed)
        if sign in ("(", "["):
            return self.group(sign)
        if sign == "{":
            return self.chosen() or self.group("{")
        if sign in ("⌊", "⌈"):
            return ("floor" if sign == "⌊" else "ceil", self.group(sign))
        if sign == "|":
            self.at += 1
            self.in_abs += 1
            node = self.sum()
            self.in_abs -= 1
            self.expect("|")
            return ("abs", node)
        if sign in ("π", "∞"):
            self.at += 1
            return ("const", sign)
        if sign == "\\":
            return self.command()
        if sign.isascii() and sign.isalpha():
            return self.letters()
        raise self.error("a number, a name or a bracket expected")

    def chosen(self) -> Node | None:
        """{n \\choose k}"""
        match = re.compile(r"\{([^{}]*)\\choose ?([^{}]*)\}").match(self.text, self.at)
        if not match:
            return None
        self.at = match.end()
        return ("binom", read(match.group(1).strip()), read(match.group(2).strip()))

    def number(self, mixed: bool) -> Node:
        repeating = _REPEATING.match(self.text, self.at)
        if repeating:
            self.at = repeating.end()
            whole, head, period = repeating.groups()
            scale = 10 ** len(head)
            value = Fraction(int((whole or "0") + head), scale) + Fraction(int(period), scale * (10 ** len(period) - 1))
            return ("num", value)
        match = _NUMBER.match(self.text, self.at)
        if not match:
            raise self.error("a number expected")
        self.at = match.end()
        literal = match.group()
        node = ("num", Fraction(literal.rstrip(".") if "." in literal[-1:] else literal))
        if mixed and literal.isdigit():
            part = _MIXED.match(self.text, self.at)
            if part:
                top, bottom = int(part[1] or part[2] or part[5]), int(part[3] or part[4] or part[6])
                if bottom and (top < bottom or part[5]):
                    self.at = part.end()
                    return ("+", node, ("num", Fraction(top, bottom)))
        return node

    def letters(self) -> Node:
        match = _LETTERS.match(self.text, self.at)
        assert match is not None
        run = match.group()
        if run == "C":
            chosen = re.compile(r"C ?(?:_ ?\{?(\d+)\}? ?\^ ?\{?(\d+)\}?|\( ?(\d+) ?, ?(\d+) ?\))").match(self.text, self.at)
            if chosen:
                self.at = chosen.end()
                return ("binom", *(("num", Fraction(int(number))) for number in chosen.groups() if number))
        for word in _PLAIN_WORDS:
            if run.startswith(word):
                self.at += len(word)
                return self.word(word)
        self.at += 1
        return self.name(run[0])

    def word(self, word: str) -> Node:
        if word in FUNCTIONS:
            return self.function(word)
        if word == "pi":
            return ("const", "π")
        return ("const", "∞") if word in ("infinity", "infty", "inf", "oo") else self.name("\\" + word)

    def name(self, name: str) -> Node:
        """A variable with its subscript and primes; e and i are constants; f(...) with a literal argument is one name."""
        subscript = _SUBSCRIPT.match(self.text, self.at)
        if subscript:
            self.at = subscript.end()
            name += "_" + (subscript.group(1) or subscript.group(2) or "").replace(" ", "")
        while self.at < len(self.text) and self.text[self.at] == "'":
            name += "'"
            self.at += 1
        if name in ("e", "i"):
            return ("const", name)
        if name[0] in "fgh" and name.rstrip("'") in ("f", "g", "h"):
            applied = re.compile(r"\( ?([^()]*?) ?\)").match(self.text, self.at)
            if applied:
                self.at = applied.end()
                name += "(" + applied.group(1).replace(" ", "") + ")"
        return ("var", name)

    def command(self) -> Node:
        text = _TEXT.match(self.text, self.at)
        if text:
            self.at = text.end()
            words = text.group(1)
            return self.name(words) if len(words) == 1 else ("var", f"text:{words}")
        match = _COMMAND.match(self.text, self.at)
        if not match:
            raise self.error("unknown sign")
        word = match.group(1)
        self.at = match.end()
        if word == "frac":
            return ("/", self.argument(), self.argument())
        if word == "binom":
            return ("binom", self.argument(), self.argument())
        if word == "sqrt":
            index = self.group("[") if self.peek() == "[" else ("num", Fraction(2))
            return ("root", self.argument(), index)
        if word in ("sum", "prod"):
            return self.series(word)
        if word in FUNCTIONS:
            return self.function(word)
        if word in _GREEK:
            return self.name("\\" + word)
        if word in ("overline", "vec", "hat", "bar", "widehat", "overrightarrow"):
            inner = re.compile(r"\{([A-Za-z0-9_ ]+)\}|([A-Za-z])").match(self.text, self.at)
            if inner:
                self.at = inner.end()
                return ("var", f"{word}:{(inner.group(1) or inner.group(2)).replace(' ', '')}")
            if word in ("overline", "bar"):
                return ("conj", self.argument())
        raise self.error(f"unknown command \\{word}")

    def series(self, kind: str) -> Node:
        """\\sum or \\prod with its limits in either order."""
        low = high = None
        variable = ""
        while self.peek() in ("_", "^"):
            if self.take("_"):
                match = re.compile(r"\{ ?([A-Za-z]) ?= ?([^{}]*)\}").match(self.text, self.at)
                if not match:
                    raise self.error("limits expected")
                self.at = match.end()
                variable, low = match.group(1), read(match.group(2).strip())
            else:
                self.at += 1
                high = self.script()
        if low is None or high is None:
            raise self.error("limits expected")
        return (kind, variable, low, high, self.product())

    def function(self, name: str) -> Node:
        """A function with its exponent, base and argument: \\sin^2 x, \\log_2 8, \\cos a \\sin b (two factors)."""
        if name == "sqrt":
            return ("root", self.group(self.peek()) if self.peek() in ("(", "{") else self.argument(), ("num", Fraction(2)))
        if name in ("min", "max", "gcd", "lcm"):
            return (name, *self.listed())
        base = exponent = None
        while self.peek() in ("_", "^"):
            if self.take("_"):
                base = self.group("{") if self.peek() == "{" else self.argument()
            else:
                self.at += 1
                exponent = self.script()
        argument = self.function_argument()
        if name in ("log", "lg", "ln"):
            node = ("log", base or ("const", "e"), argument) if name != "lg" else ("log", ("num", Fraction(10)), argument)
        else:
            inverse = exponent in (("neg", ("num", Fraction(1))),) and not name.startswith("a")
            node = ("call", "arc" + name if inverse else name, argument)
            exponent = None if inverse else exponent
        return ("^", node, exponent) if exponent else node

    def listed(self) -> list[Node]:
        """The arguments of a function of several numbers: (12, 18)."""
        closing = ")" if self.take("(") else "⦄"
        if closing == "⦄":
            self.expect("⦃")
        arguments = [self.sum()]
        while self.take(","):
            arguments.append(self.sum())
        self.expect(closing)
        return arguments

    def function_argument(self) -> Node:
        if self.peek() in ("(", "{", "["):
            return self.group(self.peek())
        if self.peek() in ("+", "-"):
            return self.signed()
        node = self.power()
        while True:
            sign = self.peek()
            following = _COMMAND.match(self.text, self.at) if sign == "\\" else _LETTERS.match(self.text, self.at) if sign else None
            word = following.group(1) if following and sign == "\\" else following.group() if following else ""
            if sign in ("(", "[") or any(word.startswith(name) for name in FUNCTIONS) or not self.starts_factor(sign):
                return node
            node = ("*", node, self.power())
