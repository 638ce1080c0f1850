"""opfuse inside the user's process. `opfuse tune -- python main.py` is the way in; see README.md.

Importing this package imports nothing else: torch least of all.
"""

__version__ = "0.1.0"
__all__ = ["__version__"]
