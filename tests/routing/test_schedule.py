"""The concurrent schedule against the plain procedure that updates every layer in every pass."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from overlaycaps.models.layers import CapsuleLayer
from overlaycaps.routing.attention import AttentionRouting
from overlaycaps.routing.base import PoseShape, Votes
from overlaycaps.routing.schedule import route_concurrently


def make_layers() -> list[CapsuleLayer]:
    torch.manual_seed(0)
    pose = PoseShape(2, 2)
    return [
        CapsuleLayer(number_in, number_out, pose, kernel, AttentionRouting(pose)).double()
        for number_in, number_out, kernel in [(3, 4, 2), (4, 2, 2), (2, 5, 3)]
    ]


def route_every_layer_in_every_pass(layers: list[CapsuleLayer], primary: Tensor, iterations: int) -> Tensor:
    states = [primary]
    for layer in layers:
        states.append(layer.route(layer.vote(states[-1])))
    for _ in range(iterations - 1):
        new = [primary]
        for index, layer in enumerate(layers):
            new.append(layer.route(layer.vote(states[index]), states[index + 1]))
        states = new
    return states[-1]


@pytest.mark.parametrize("iterations", [1, 2, 3, 4, 5])
def test_skipped_updates_change_neither_result_nor_gradient(iterations: int) -> None:
    layers = make_layers()
    primary = torch.randn(3, 2, 2, 2, 5, 5, dtype=torch.double)
    weights = [layer.weight for layer in layers]
    own = route_concurrently(layers, primary, iterations)
    plain = route_every_layer_in_every_pass(layers, primary, iterations)
    torch.testing.assert_close(own, plain, rtol=0, atol=1e-12)
    for a, b in zip(
        torch.autograd.grad(own.sin().sum(), weights), torch.autograd.grad(plain.sin().sum(), weights), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


def test_each_further_iteration_changes_the_result() -> None:
    layers = make_layers()
    primary = torch.randn(3, 2, 2, 1, 5, 5, dtype=torch.double)
    results = [route_concurrently(layers, primary, iterations) for iterations in (1, 2, 3, 4)]
    for a, b in itertools.pairwise(results):
        assert (a - b).abs().max() > 1e-4


def test_only_updates_that_reach_the_class_capsules_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    attended = []
    again = AttentionRouting.again

    def note(self: AttentionRouting, votes: Votes, parents: Tensor) -> Tensor:
        attended.append(self)
        return again(self, votes, parents)

    monkeypatch.setattr(AttentionRouting, "again", note)
    layers = make_layers()
    route_concurrently(layers, torch.randn(3, 2, 2, 1, 5, 5, dtype=torch.double), 3)
    assert attended == [layers[1].routing, layers[2].routing, layers[2].routing]
