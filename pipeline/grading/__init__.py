"""Grading: a response and the right answer in, a typed outcome out; `grade` is the one entrance.

extract -> exact (Fractions, here) -> equivalence (structure) or primemath (PRIME's rules) -> symbolic (killable workers).
Importing this package or `pipeline.grading.grade` imports neither sympy nor math-verify.
"""
