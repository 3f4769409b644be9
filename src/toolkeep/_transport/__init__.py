"""Transports: send JSON-RPC requests to a server and read the responses.

A transport works in the caller's task. Every failure leaves as a `WireFault` that carries its
evidence. This package never decides what a failure means (`_rules` does), never retries a call,
and knows nothing of `auth`. It is the only package that imports the HTTP library.
"""
