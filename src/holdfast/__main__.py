"""`python -m holdfast` is the command line."""

from .cli.main import main

main()
