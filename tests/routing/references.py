"""The routings written out from their publications: one position at a time, one index at a time, in plain numbers.

Nothing here is shared with the package: no tensor, no broadcast, no rearranged sum. ``REFERENCES`` has a row for every
row of ``ROUTINGS``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from overlaycaps.routing.base import Capsules, Routing, RoutingOptions

Numbers = list[float]
"""A pose, row by row, as its D numbers; h counts them."""


@dataclass(frozen=True)
class Place:
    """All that the parents at one position of one sample are made of.

    Attributes:
        votes: ``votes[i][j][h]``.
        activations: ``activations[i]`` of the children.
        parameters: what the routing learns, by name, as nested lists.
        options: of the routing.
        iterations: passes t.
    """

    votes: list[list[Numbers]]
    activations: Numbers
    parameters: Mapping[str, Any]
    options: RoutingOptions
    iterations: int

    @property
    def sizes(self) -> tuple[range, range, range]:
        """Children i, parents j, numbers h."""
        return range(len(self.votes)), range(len(self.votes[0])), range(len(self.votes[0][0]))


Result = tuple[list[Numbers], Numbers | None]
"""Poses of the parents and, where the routing has such a thing, their activations."""


@dataclass(frozen=True)
class Reference:
    """A row.

    Attributes:
        route: the procedure.
        recover: from a pass's capsules back to the sums of coefficient x vote, shaped like the poses; undoes whatever
            comes after the sums. Takes the routing, its capsules and the number of the pass.
    """

    route: Callable[[Place], Result]
    recover: Callable[[Routing, Capsules, int], Tensor]


def dot(a: Numbers, b: Numbers) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def softmax(logits: Numbers) -> Numbers:
    exponentials = [math.exp(logit) for logit in logits]
    return [e / sum(exponentials) for e in exponentials]


def sum_votes(place: Place, coefficients: list[Numbers]) -> list[Numbers]:
    children, parents, numbers = place.sizes
    return [[sum(coefficients[i][j] * place.votes[i][j][h] for i in children) for h in numbers] for j in parents]


def normalize(place: Place, pose: Numbers) -> Numbers:
    """LayerNorm (Ba et al. 2016), or nothing where the options say so."""
    if not place.options.layer_norm:
        return pose
    mean = sum(pose) / len(pose)
    variance = sum((x - mean) ** 2 for x in pose) / len(pose)
    gains = [gain for row in place.parameters["norm.weight"] for gain in row]
    biases = [bias for row in place.parameters["norm.bias"] for bias in row]
    return [
        (x - mean) / math.sqrt(variance + 1e-5) * gain + bias for x, gain, bias in zip(pose, gains, biases, strict=True)
    ]


def route_by_attention(place: Place) -> Result:
    """Tsai et al. 2020 (arXiv 2002.04764), procedure 1, t times; poses of zeros before."""
    children, parents, numbers = place.sizes
    scale = 1 / math.sqrt(len(numbers)) if place.options.scale_agreement else 1.0
    poses = [[0.0 for _ in numbers] for _ in parents]
    for _ in range(place.iterations):
        agreements = [[scale * dot(poses[j], place.votes[i][j]) for j in parents] for i in children]
        poses = [normalize(place, s) for s in sum_votes(place, [softmax(row) for row in agreements])]
    return poses, None


def route_uniformly(place: Place) -> Result:
    """Equal coefficients, whatever the number of passes."""
    children, parents, _ = place.sizes
    equal = [[1 / len(parents) for _ in parents] for _ in children]
    return [normalize(place, s) for s in sum_votes(place, equal)], None


def squash(pose: Numbers) -> Numbers:
    """Sabour et al. 2017 (arXiv 1710.09829), eq. 1."""
    squared = dot(pose, pose)
    return [squared / (1 + squared) * x / math.sqrt(squared) for x in pose]


def route_dynamically(place: Place) -> Result:
    """Sabour et al. 2017 (arXiv 1710.09829), procedure 1, with a logit b_ij for every child and parent."""
    children, parents, numbers = place.sizes
    logits = [[0.0 for _ in parents] for _ in children]
    poses = [[0.0 for _ in numbers] for _ in parents]
    for _ in range(place.iterations):
        poses = [squash(s) for s in sum_votes(place, [softmax(row) for row in logits])]
        for i in children:
            for j in parents:
                logits[i][j] += dot(place.votes[i][j], poses[j])
    return poses, None


def route_by_em(place: Place) -> Result:
    """Hinton et al. 2018, procedure 1; inverse temperature as stated in the paper's public review."""
    children, parents, numbers = place.sizes
    beta_u, beta_a = place.parameters["beta_use"], place.parameters["beta_activate"]
    shares = [[1 / len(parents) for _ in parents] for _ in children]
    means = [[0.0 for _ in numbers] for _ in parents]
    variances = [[0.0 for _ in numbers] for _ in parents]
    activations = [0.0 for _ in parents]
    for iteration in range(place.iterations):
        inverse_temperature = 0.01 * (1 - 0.95 ** (iteration + 1))
        if iteration > 0:
            for i in children:  # E-step, for one child
                densities = []
                for j in parents:
                    density = 1.0
                    for h in numbers:
                        distance = (place.votes[i][j][h] - means[j][h]) ** 2
                        density *= math.exp(-distance / (2 * variances[j][h]))
                        density /= math.sqrt(2 * math.pi * variances[j][h])
                    densities.append(density)
                evidence = sum(activations[j] * densities[j] for j in parents)
                shares[i] = [activations[j] * densities[j] / evidence for j in parents]
        for j in parents:  # M-step, for one parent
            assigned = [shares[i][j] * place.activations[i] for i in children]
            cost = 0.0
            for h in numbers:
                mean = sum(assigned[i] * place.votes[i][j][h] for i in children) / sum(assigned)
                spread = sum(assigned[i] * (place.votes[i][j][h] - mean) ** 2 for i in children)
                means[j][h], variances[j][h] = mean, spread / sum(assigned)
                cost += (beta_u[j] + math.log(math.sqrt(variances[j][h]))) * sum(assigned)
            activations[j] = 1 / (1 + math.exp(-inverse_temperature * (beta_a[j] - cost)))
    return means, activations


def squash_exponentially(pose: Numbers) -> Numbers:
    """Mazzia et al. 2021 (arXiv 2101.12491): length 1 - e^-|s|."""
    length = math.sqrt(dot(pose, pose))
    return [(1 - math.exp(-length)) * x / length for x in pose]


def route_by_self_attention(place: Place) -> Result:
    """Mazzia et al. 2021 (arXiv 2101.12491), with all I x I agreements between the votes for a parent."""
    children, parents, numbers = place.sizes
    prior = place.parameters["log_prior"]
    agreements = [[[0.0 for _ in children] for _ in children] for _ in parents]
    for j in parents:
        for i in children:
            for k in children:
                agreements[j][i][k] = dot(place.votes[i][j], place.votes[k][j]) / math.sqrt(len(numbers))
    coefficients = [softmax([sum(agreements[j][i]) for j in parents]) for i in children]
    weights = [[coefficients[i][j] + prior[i][j] for j in parents] for i in children]
    return [squash_exponentially(s) for s in sum_votes(place, weights)], None


def recover_from_poses(routing: Routing, capsules: Capsules, number: int) -> Tensor:
    assert not routing.options.layer_norm, "a LayerNorm cannot be undone"
    return capsules.pose


def recover_from_squashed(routing: Routing, capsules: Capsules, number: int) -> Tensor:
    length = capsules.pose.square().sum((1, 2), keepdim=True).sqrt()  # |s|^2 / (1 + |s|^2)
    return capsules.pose / length * (length / (1 - length)).sqrt()


def recover_from_exponentially_squashed(routing: Routing, capsules: Capsules, number: int) -> Tensor:
    length = capsules.pose.square().sum((1, 2), keepdim=True).sqrt()  # 1 - exp(-|s|)
    return capsules.pose / length * -torch.log1p(-length)


def recover_from_gaussians(routing: Routing, capsules: Capsules, number: int) -> Tensor:
    """The mean is the sum over the mass; the mass is what the activation tells of the cost."""
    assert capsules.activation is not None and capsules.memory is not None
    beta_u, beta_a = (routing.get_parameter(name)[:, None, None, None] for name in ("beta_use", "beta_activate"))
    spread = capsules.memory.sqrt().log().sum((1, 2))
    cost = beta_a - torch.logit(capsules.activation) / (0.01 * (1 - 0.95**number))
    mass = cost / (routing.pose.size * beta_u + spread)
    return capsules.pose * mass[:, None, None]


REFERENCES = {
    "attention": Reference(route_by_attention, recover_from_poses),
    "uniform": Reference(route_uniformly, recover_from_poses),
    "dynamic": Reference(route_dynamically, recover_from_squashed),
    "em": Reference(route_by_em, recover_from_gaussians),
    "self-attention": Reference(route_by_self_attention, recover_from_exponentially_squashed),
}


def vote(matrix: list[Numbers], pose: list[Numbers]) -> Numbers:
    """``matrix @ pose``, row by row."""
    inner, columns = range(len(pose)), range(len(pose[0]))
    return [sum(row[r] * pose[r][c] for r in inner) for row in matrix for c in columns]


def route_layer(
    name: str, below: Capsules, weight: Tensor, kernel_px: int, stride_px: int, routing: Routing, iterations: int
) -> Capsules:
    """Route every position of every sample by the reference called ``name``; no padding.

    Args:
        name: a row.
        below: poses (n, R, C, B, H, W), activations (n, B, H, W) or none.
        weight: (n k k, J, Q, R).
        kernel_px: k.
        stride_px: step of the kernel.
        routing: the routing under test; only its options and the values of its parameters are read.
        iterations: passes.
    """
    num_capsules, rows, columns, batch_size, height, width = below.pose.shape
    _, num_parents, parent_rows, _ = weight.shape
    poses, matrices = below.pose.tolist(), weight.tolist()
    active = None if below.activation is None else below.activation.tolist()
    parameters = {key: value.tolist() for key, value in routing.named_parameters()}
    new_height, new_width = (height - kernel_px) // stride_px + 1, (width - kernel_px) // stride_px + 1
    pose = torch.empty(num_parents, parent_rows, columns, batch_size, new_height, new_width, dtype=torch.double)
    activation = torch.full((num_parents, batch_size, new_height, new_width), torch.nan, dtype=torch.double)
    for b in range(batch_size):
        for y in range(new_height):
            for x in range(new_width):
                votes: list[list[Numbers]] = []
                activations: list[float] = []
                for capsule in range(num_capsules):
                    for ky in range(kernel_px):
                        for kx in range(kernel_px):
                            v, u = stride_px * y + ky, stride_px * x + kx
                            child = [[poses[capsule][r][c][b][v][u] for c in range(columns)] for r in range(rows)]
                            votes.append([vote(matrices[len(votes)][j], child) for j in range(num_parents)])
                            activations.append(1.0 if active is None else active[capsule][b][v][u])
                place = Place(votes, activations, parameters, routing.options, iterations)
                new_poses, new_activations = REFERENCES[name].route(place)
                for j in range(num_parents):
                    pose[j, :, :, b, y, x] = torch.tensor(new_poses[j], dtype=torch.double).view(-1, columns)
                    if new_activations is not None:
                        activation[j, b, y, x] = new_activations[j]
    return Capsules(pose, None if activation.isnan().all() else activation)
