"""Do capsule networks read overlaid digits better than CNNs with the same layers and neurons per layer?"""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("overlaycaps")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"
