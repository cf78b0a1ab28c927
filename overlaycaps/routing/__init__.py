"""Routing algorithms: one a file, one table of names.

To add one, write ``routing/<name>.py`` with a subclass of :class:`overlaycaps.routing.base.Routing` and add its row
here.
"""

from overlaycaps.tables import Row, make_table

ROUTINGS = make_table(
    Row(
        name="attention",
        summary="inverted dot-product attention: parents attend to votes, softmax over parents",
        reference="Tsai et al. 2020, arXiv 2002.04764, procedure 1",
        target="overlaycaps.routing.attention:AttentionRouting",
    ),
    Row(
        name="uniform",
        summary="the control: every child votes for all parents equally; no agreement, one pass",
        reference="Paik et al. 2019, arXiv 1907.13327",
        target="overlaycaps.routing.uniform:UniformRouting",
    ),
)
