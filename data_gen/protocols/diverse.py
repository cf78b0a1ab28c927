"""DiverseMultiMNIST: one or two digits per image."""

from __future__ import annotations

from data_gen.protocols.base import Protocol

DIVERSE = Protocol(
    name="diverse",
    summary="one digit with probability 1/6, else two digits of different classes",
    reference="Tsai et al., Capsules with Inverted Dot-Product Attention Routing, ICLR 2020, arXiv 2002.04764",
    single_fraction=1 / 6,
    max_shift_px=4,
    canvas_px=36,
    merge="clip",
)
