"""`python -m toolkeep`: the command line, where its script is not on the path."""

from toolkeep.cli import main

main()
