"""`python -m lmzoo` is `lmzoo`."""

from lmzoo.cli import app

app(prog_name="lmzoo")
