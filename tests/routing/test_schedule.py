"""The concurrent schedule against the plain procedure that updates every layer in every pass."""

from __future__ import annotations

import itertools

import pytest
import torch

from overlaycaps.models.layers import CapsuleLayer
from overlaycaps.routing.attention import AttentionRouting
from overlaycaps.routing.base import Capsules, PoseShape, RoutingOptions, Votes
from overlaycaps.routing.schedule import route_concurrently, route_sequentially


def make_attention(pose: PoseShape, num_children: int, num_parents: int) -> AttentionRouting:
    return AttentionRouting(pose, num_children, num_parents, RoutingOptions())


def make_primary(batch_size: int) -> Capsules:
    return Capsules(torch.randn(3, 2, 2, batch_size, 5, 5, dtype=torch.double))


def make_layers() -> list[CapsuleLayer]:
    torch.manual_seed(0)
    pose = PoseShape(2, 2)
    return [
        CapsuleLayer(number_in, number_out, pose, kernel, make_attention).double()
        for number_in, number_out, kernel in [(3, 4, 2), (4, 2, 2), (2, 5, 3)]
    ]


def route_every_layer_in_every_pass(layers: list[CapsuleLayer], primary: Capsules, iterations: int) -> Capsules:
    states = [primary]
    for layer in layers:
        states.append(layer.route(layer.vote(states[-1])))
    for _ in range(iterations - 1):
        new = [primary]
        for index, layer in enumerate(layers):
            new.append(layer.route(layer.vote(states[index]), states[index + 1], 2))
        states = new
    return states[-1]


@pytest.mark.parametrize("iterations", [1, 2, 3, 4, 5])
def test_skipped_updates_change_neither_result_nor_gradient(iterations: int) -> None:
    layers = make_layers()
    primary = make_primary(2)
    weights = [layer.weight for layer in layers]
    own = route_concurrently(layers, primary, iterations).pose
    plain = route_every_layer_in_every_pass(layers, primary, iterations).pose
    torch.testing.assert_close(own, plain, rtol=0, atol=1e-12)
    for a, b in zip(
        torch.autograd.grad(own.sin().sum(), weights), torch.autograd.grad(plain.sin().sum(), weights), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


def test_each_further_iteration_changes_the_result() -> None:
    layers = make_layers()
    primary = make_primary(1)
    results = [route_concurrently(layers, primary, iterations).pose for iterations in (1, 2, 3, 4)]
    for a, b in itertools.pairwise(results):
        assert (a - b).abs().max() > 1e-4


def test_only_updates_that_reach_the_class_capsules_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    attended = []
    again = AttentionRouting.again

    def note(self: AttentionRouting, votes: Votes, parents: Capsules, number: int) -> Capsules:
        attended.append((self, number))
        return again(self, votes, parents, number)

    monkeypatch.setattr(AttentionRouting, "again", note)
    layers = make_layers()
    route_concurrently(layers, make_primary(1), 3)
    assert attended == [(layers[1].routing, 2), (layers[2].routing, 2), (layers[2].routing, 3)]


def test_sequential_routing_finishes_each_layer_first() -> None:
    layers, primary = make_layers(), make_primary(2)
    below = primary
    for layer in layers:
        votes = layer.vote(below)
        below = layer.route(votes)
        for number in (2, 3):
            below = layer.route(votes, below, number)
    sequential = route_sequentially(layers, primary, 3).pose
    torch.testing.assert_close(sequential, below.pose, rtol=0, atol=0)
    assert (sequential - route_concurrently(layers, primary, 3).pose).abs().max() > 1e-4


def test_schedules_agree_when_there_is_no_agreement() -> None:
    layers, primary = make_layers(), make_primary(1)
    torch.testing.assert_close(route_sequentially(layers, primary, 1).pose, route_concurrently(layers, primary, 1).pose)
