"""Command line of lmzoo: `lmzoo`, or `python -m lmzoo_cli`.

`main`, `messages`, `options`, `output`, `registered` and the modules of commands do not import `lmzoo` at the top
level, so that help texts do not wait for Keras. A command imports `lmzoo` and all other modules when it runs.
"""
