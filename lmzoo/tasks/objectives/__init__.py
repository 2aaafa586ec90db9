"""Training objectives on tokens: masked, permuted and replaced."""
