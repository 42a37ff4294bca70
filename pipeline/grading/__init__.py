"""Grading: a response and the right answer in, a typed outcome out; `grade` is the one entrance.

extract (with claims) -> wrappers, wording, notation -> forms -> equivalence (with quantities, relations, exact Fractions), or
primemath (PRIME's rules) -> symbolic (killable workers). docs/grading.md says which policy decides what.
Importing this package or `pipeline.grading.grade` imports neither sympy nor math-verify.
"""
