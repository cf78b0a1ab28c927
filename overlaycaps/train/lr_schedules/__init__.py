"""How the learning rate goes with the steps: one table of names.

To add one, write ``lr_schedules/<name>.py`` with a function ``(step, num_steps, warm_up) -> factor on the peak rate``
and add its row here.
"""

from __future__ import annotations

from overlaycaps.tables import Row, Table

LR_SCHEDULES = Table(
    Row(
        name="one-cycle",
        summary="from 1/25 to the peak and down to 0, both along a cosine",
        reference="Smith and Topin 2019, arXiv 1708.07120",
        target="overlaycaps.train.lr_schedules.one_cycle:scale_lr",
    ),
    Row(
        name="cosine",
        summary="from 0 to the peak along a line, and down to 0 along a cosine",
        reference="Loshchilov and Hutter 2017, arXiv 1608.03983; the warm-up: Goyal et al. 2017, arXiv 1706.02677",
        target="overlaycaps.train.lr_schedules.cosine:scale_lr",
    ),
)
DEFAULT_LR_SCHEDULE = "one-cycle"
DEFAULT_WARM_UP = 0.2
"""Share of the steps in which the learning rate rises."""
