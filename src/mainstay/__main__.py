"""`python -m mainstay`: the command line, where its script is not on the path."""

from mainstay.cli import main

main()
