"""`python -m acclimate`: the command line."""

from acclimate.cli import main

main()
