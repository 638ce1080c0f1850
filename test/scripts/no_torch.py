"""A script without torch: prints which modules it has."""

import sys

print(len(sys.argv), "importlib.util" in sys.modules, "json" in sys.modules, sorted(sys.path))
