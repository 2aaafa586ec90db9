"""Entry point of `python -m lmzoo_cli`, which is the same as `lmzoo`."""

from lmzoo_cli.main import main

main()
