r"""The text of a prompt: what each source wraps around a problem is stripped, then one template is put on.

A template has two layers, both text: an instruction that says how to answer, and the chat markup of the policy's own tokenizer
(chat.py). They are applied once, when problems are prepared: `Problem.prompt` is exactly the text that every engine encodes.
"""

# pyright: reportAttributeAccessIssue=false
# pyarrow.compute makes its functions when it is imported
from __future__ import annotations

import re
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

Instruction = Literal["answer_line", "boxed", "none"]

# {problem} is replaced; answer_line is the wording of DAPO-Math-17k's own prompts, so that they come out as they were published
INSTRUCTIONS: dict[Instruction, str] = {
    "answer_line": (
        "Solve the following math problem step by step. The last line of your response should be of the form Answer: $Answer "
        "(without quotes) where $Answer is the answer to the problem.\n\n{problem}\n\n"
        'Remember to put your answer on its own line after "Answer:".'
    ),
    "boxed": "{problem}\n\nPlease reason step by step, and put your final answer within \\boxed{}.",
    "none": "{problem}",
}

# What sources put before and after a problem, as RE2 expressions; wordings differ in letter case and in a few words.
PREFIXES = (
    r"user:",
    r"(?:Solve the following math problem step by step\.\s*)The last line of your response should be[^\n]*?answer to the problem\.",
)
SUFFIXES = (
    r'Remember to put your answer on its own line after "Answer:"(?:, and you do not need to use a \\boxed command)?\.?',
    r"(?:Please reason|Let's think) step by step,? and (?:put|output) (?:your|the) final answer within \\boxed\{\}\.",
)
STRIPPED = rf"(?is)\A\s*(?:(?:{'|'.join(PREFIXES)})\s*)*(.*?)(?:\s*(?:{'|'.join(SUFFIXES)}))*\s*\z"


def strip_templates(prompts: pa.Array) -> pa.Array:
    r"""The bare problems in `prompts` (string [n] -> string [n]): known instructions and outer white space removed, \r\n as \n."""
    return pc.replace_substring_regex(pc.replace_substring(prompts, "\r\n", "\n"), STRIPPED, r"\1")


def instruct(problem: str, instruction: Instruction) -> str:
    """The problem with its instruction around it. ValueError if the problem is one already: it would be instructed twice."""
    if re.match(r"(?i)\s*(solve the following math problem step by step\.|user:)", problem):
        raise ValueError(f"template.py lacks the wording of this prompt's template, which would be put on twice: {problem[:200]!r}")
    return INSTRUCTIONS[instruction].replace("{problem}", problem)
