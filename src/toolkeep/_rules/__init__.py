"""Pure rules: what a failure means and what to do about it.

No await, clock, randomness, logging, HTTP or SDK: time and chance come in as arguments,
decisions go out as values. No other package decides what a failure means.
"""
