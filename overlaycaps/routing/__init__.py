"""Routing algorithms: one a file, one table of names; and the schedules in which layers are routed.

To add one, write ``routing/<name>.py`` with a subclass of :class:`overlaycaps.routing.base.Routing` and add its row
here.
"""

from overlaycaps.tables import Row, Table

ROUTINGS = Table(
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
    Row(
        name="dynamic",
        summary="routing by agreement: squashed parents, accumulated logits, softmax over parents",
        reference="Sabour et al. 2017, arXiv 1710.09829, procedure 1",
        target="overlaycaps.routing.dynamic:DynamicRouting",
    ),
    Row(
        name="em",
        summary="expectation-maximisation: parents are Gaussians over votes, capsules have activations",
        reference="Hinton et al. 2018, ICLR 2018, procedure 1",
        target="overlaycaps.routing.em:EmRouting",
    ),
    Row(
        name="self-attention",
        summary="votes weighed by their agreement with all votes; one pass, no iterations",
        reference="Mazzia et al. 2021, arXiv 2101.12491",
        target="overlaycaps.routing.self_attention:SelfAttentionRouting",
    ),
    group="overlaycaps.routings",
)

SCHEDULES = Table(
    Row(
        name="concurrent",
        summary="every pass updates all layers at once from the pass before",
        reference="Tsai et al. 2020, arXiv 2002.04764, concurrent routing",
        target="overlaycaps.routing.schedule:route_concurrently",
    ),
    Row(
        name="sequential",
        summary="each layer makes all its passes before the next layer begins",
        reference="Sabour et al. 2017, arXiv 1710.09829",
        target="overlaycaps.routing.schedule:route_sequentially",
    ),
)
