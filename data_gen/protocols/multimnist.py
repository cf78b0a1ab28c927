"""MultiMNIST: always two digits per image."""

from __future__ import annotations

from data_gen.protocols.base import Protocol

MULTIMNIST = Protocol(
    name="multimnist",
    summary="always two digits of different classes",
    reference="Sabour, Frosst, Hinton, Dynamic Routing Between Capsules, NeurIPS 2017, arXiv 1710.09829",
    single_fraction=0.0,
    max_shift_px=4,
    canvas_px=36,
    merge="clip",
)
