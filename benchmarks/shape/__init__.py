"""`make shape`: how much code a reader meets, in toolkeep and in packages that are read with ease.

`trace` records what one operation runs, `operations` says which operations are compared, `graph`
reads the source files, `__main__` prints the table. Nothing here is a gate.
"""
