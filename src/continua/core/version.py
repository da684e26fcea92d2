"""The version, in the one place that the package, its metadata (`pyproject.toml`) and every run read it from.

Not from the installed metadata: these are filed under the name of the distribution, which is not that of the package.
"""

__version__ = "0.1.0"
