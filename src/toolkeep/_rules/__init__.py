"""The rules, and nothing but the rules.

No await, no clock, no randomness, no logging, no HTTP, no SDK client: time and chance come in as
arguments, verdicts go out as values. What a failure means is decided here and nowhere else.
"""
