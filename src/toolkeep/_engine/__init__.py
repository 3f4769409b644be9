"""The engine: connections with owners, a client that replaces them, calls that tell the truth."""
