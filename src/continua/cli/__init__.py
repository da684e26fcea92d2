"""Floor 6: the command line, `continua demo` and `continua bench`."""
