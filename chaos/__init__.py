"""A soak: a `Runtime` in front of servers that get into every trouble, judged by what they ran.

`python -m chaos --calls N --seed S` makes N calls. Which calls, which troubles and which edits is a
pure function of the seed; when exactly they meet is not. Whether a call ran is never taken from the
client's word: each server writes down what it runs, before it runs it, in a file that survives it.
"""
