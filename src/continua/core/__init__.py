"""Floor 0: what every room may use - shape words, errors that teach, seeds, slopes."""
