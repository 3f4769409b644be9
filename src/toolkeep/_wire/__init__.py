"""Bytes: how requests reach a server and how answers come back.

Each wire is an SDK `Dispatcher`. It works in the caller's task, and everything that goes wrong
leaves as a `WireFault` with its evidence. What that evidence means is not decided here.
"""
