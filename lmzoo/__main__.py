"""`python -m lmzoo` is `lmzoo`."""

from lmzoo_cli.main import app

app(prog_name="lmzoo")
