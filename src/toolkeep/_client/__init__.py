"""The private parts of a client: one server for one principal. Modules here never import
`toolkeep.client`, `toolkeep.group` or `toolkeep._runtime`.
"""
