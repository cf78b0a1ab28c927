"""The optimisers that a run may use: one table of names.

To add one, write ``optimizers/<name>.py`` with a function ``(groups, lr, fused) -> Optimizer`` and add its row here.
"""

from __future__ import annotations

from dataclasses import dataclass

from overlaycaps.tables import Row


@dataclass(frozen=True)
class OptimizerRow(Row):
    """An optimiser, with the learning rate and the weight decay that it has by default."""

    lr: float
    weight_decay: float


OPTIMIZERS = {
    row.name: row
    for row in (
        OptimizerRow(
            name="adamw",
            summary="AdamW with betas 0.9 and 0.99",
            reference="Loshchilov and Hutter 2019, arXiv 1711.05101",
            target="overlaycaps.train.optimizers.adamw:build",
            lr=8e-3,
            weight_decay=0.01,
        ),
        OptimizerRow(
            name="sgd",
            summary="SGD with Nesterov momentum 0.9",
            reference="Sutskever et al. 2013, ICML 28:1139",
            target="overlaycaps.train.optimizers.sgd:build",
            lr=0.4,
            weight_decay=5e-4,
        ),
    )
}
DEFAULT_OPTIMIZER = "adamw"
