"""The command line. Its modules import nothing heavy at the top: `lmzoo_script` runs them before Keras is loaded."""
