"""Ports for servers that are started with a number, or that come back where they were."""

import random
import socket

FIRST, LAST = 20_000, 32_000
"""Below the range that systems give to sockets by themselves, so none is taken before its server
starts. Redis Cluster also uses the port plus 10,000."""


def free_port(last: int = LAST) -> int:
    while True:
        port = random.randrange(FIRST, last)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
