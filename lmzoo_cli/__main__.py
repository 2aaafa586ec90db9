"""`python -m lmzoo_cli` is `lmzoo`."""

from lmzoo_cli.main import main

main()
