"""The command line: `lmzoo`, or `python -m lmzoo_cli`.

`main`, `messages`, `options`, `output`, `registered` and the modules of commands import nothing of `lmzoo` at their
top, so that help does not wait for Keras. A command imports `lmzoo`, and the other modules here, when it runs.
"""
