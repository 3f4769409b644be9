"""What the servers offer: one immutable snapshot, the names in it, and the search through it.

This floor is data. It opens nothing, waits for nothing and asks no server; who refreshes it and
who may see it is decided above. The SDK's types are held, never imported: they cost 0.3 s.
"""
