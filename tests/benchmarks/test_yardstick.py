"""The yardstick computes what the package's own network computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks.yardstick import Yardstick
from overlaycaps.config import CapsuleConfig
from overlaycaps.models.caps import CapsuleNet


@pytest.mark.parametrize("pose", ["vector", "matrix"])
@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_the_yardstick_is_the_same_network(pose: Any, iterations: int) -> None:
    torch.manual_seed(0)
    config = CapsuleConfig(num_channels=4, num_capsules=3, pose_size=4, pose=pose, iterations=iterations)
    model = CapsuleNet(config)
    images = torch.randint(0, 256, (3, 36, 36), dtype=torch.uint8)
    own, literal = model(images), Yardstick(model)(images)
    torch.testing.assert_close(literal, own)
    direction = torch.randn_like(own)
    parameters = list(model.parameters())
    for gradient, expected in zip(
        torch.autograd.grad(own, parameters, direction, allow_unused=True),
        torch.autograd.grad(literal, parameters, direction, allow_unused=True),
        strict=True,
    ):
        assert gradient is not None
        assert expected is not None
        torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-4 * expected.abs().max().item())
