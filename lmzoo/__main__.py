"""`python -m lmzoo` is `lmzoo`."""

from lmzoo.cli.main import app

app(prog_name="lmzoo")
