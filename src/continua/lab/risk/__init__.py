"""Mean-field control under cross-entropy: paths, laws, adjoints, samples and optimal values (arXiv 2606.23235)."""
