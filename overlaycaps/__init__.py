"""Do capsule networks read overlaid digits better than CNNs with the same layers and neurons per layer?"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from overlaycaps.data.dataset import OverlayDataset

__all__ = ["OverlayDataset", "__version__"]

try:
    __version__ = version("overlaycaps")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"


def __getattr__(name: str) -> object:
    # Imported when it is asked for: it needs torch, which takes seconds that `--help` must not take.
    if name == "OverlayDataset":
        from overlaycaps.data.dataset import OverlayDataset  # noqa: PLC0415

        return OverlayDataset
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
