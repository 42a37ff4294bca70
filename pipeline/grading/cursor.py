"""A position in a text, as the formula reader moves it."""

from __future__ import annotations

MAX_DEPTH = 40  # levels of brackets, fractions, roots and towers
MAX_OPERATIONS = 500  # steps of the reader after an operand; no tree is deeper than half of that


class NotationError(ValueError):
    """The text is not a formula that the reader knows."""


class Cursor:
    """The text, the place in it, and how deep the reader is nested at it."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.depth, self.in_abs, self.operations = text, 0, 0, 0, 0

    def count_operation(self) -> None:
        self.operations += 1
        if self.operations > MAX_OPERATIONS:
            raise self.error("too many operations")

    def descend(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.error("nested too deeply")

    def error(self, what: str) -> NotationError:
        return NotationError(f"{what} at {self.at}: {self.text[self.at : self.at + 20]!r}")

    def blanks(self) -> None:
        while self.text.startswith(" ", self.at):
            self.at += 1

    def peek(self) -> str:
        self.blanks()
        return self.text[self.at] if self.at < len(self.text) else ""

    def take(self, sign: str) -> bool:
        if self.peek() and self.text.startswith(sign, self.at):
            self.at += len(sign)
            return True
        return False

    def expect(self, sign: str) -> None:
        if not self.take(sign):
            raise self.error(f"{sign!r} expected")


def nesting(text: str) -> int:
    """How deep the brackets of a text are nested."""
    depth = deepest = 0
    for sign in text:
        if sign in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif sign in ")]}":
            depth = max(depth - 1, 0)
    return deepest
