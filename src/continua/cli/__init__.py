"""Floor 6: the command line, one module for each command of `continua`."""
