"""The models of the comparison: one table of names.

To add one, write ``models/<name>.py`` with a builder ``(CapsuleConfig) -> OverlayModel`` and add its row here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlaycaps.errors import UsageError
from overlaycaps.tables import Row, Table, look_up

if TYPE_CHECKING:
    from overlaycaps.config import CapsuleConfig
    from overlaycaps.models.base import OverlayModel

MODELS = Table(
    Row(
        name="caps",
        summary="capsules with vector poses, inverted dot-product attention routing",
        reference="Tsai et al. 2020, arXiv 2002.04764",
        target="overlaycaps.models.caps:build_vector",
    ),
    Row(
        name="caps-matrix",
        summary="the same with matrix poses, which need fewer parameters",
        reference="Tsai et al. 2020, arXiv 2002.04764",
        target="overlaycaps.models.caps:build_matrix",
    ),
    Row(
        name="cnn",
        summary="CNN with the same layers and neurons per layer; flattens its last feature map",
        reference="the baseline of Tsai et al. 2020, arXiv 2002.04764",
        target="overlaycaps.models.cnn:build_flat",
    ),
    Row(
        name="cnn-pool",
        summary="the same CNN; averages its last feature map over space",
        reference="the baseline of Tsai et al. 2020, arXiv 2002.04764",
        target="overlaycaps.models.cnn:build_pooled",
    ),
    Row(
        name="resnet18",
        summary="ResNet-18 for small images; a reference, matched to nothing and the same at every size",
        reference="He et al. 2016, arXiv 1512.03385",
        target="overlaycaps.models.resnet:build",
    ),
    Row(
        name="efficient-capsnet",
        summary="Efficient-CapsNet for MultiMNIST; a reference, matched to nothing and the same at every size",
        reference="Mazzia et al. 2021, arXiv 2101.12491",
        target="overlaycaps.models.efficient_capsnet:build",
    ),
    Row(
        name="caps-resnet",
        summary="matrix capsules on a residual backbone; a reference, matched to nothing",
        reference="Tsai et al. 2020, arXiv 2002.04764, its CIFAR models",
        target="overlaycaps.models.caps_resnet:build",
    ),
    group="overlaycaps.models",
)

# Made from one capsule configuration, with equal layers and neurons per layer; the others are references.
MATCHED_MODELS = ("caps", "caps-matrix", "cnn", "cnn-pool")


def build_model(name: str, config: CapsuleConfig) -> OverlayModel:
    """Build a model by its name, its convolutions ready for images whose channels lie innermost.

    Raises:
        UsageError: if there is no such model, or the configuration does not fit it.
    """
    # These import torch, which listing the names does not need.
    from overlaycaps.models.base import OverlayModel  # noqa: PLC0415
    from overlaycaps.models.layers import use_channels_last  # noqa: PLC0415

    model = look_up(MODELS, name, "--model").load()(config)
    if not isinstance(model, OverlayModel):
        raise UsageError(f"--model {name} built a {type(model).__name__}; it must build an OverlayModel.")
    use_channels_last(model)
    return model
