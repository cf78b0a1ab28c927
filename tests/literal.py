"""Slow, literal implementations, written from the papers, that the fast ones are held against.

They take poses as the papers index them, one capsule at one position at a time, and never reshape.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def layer_norm(pose: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Normalise one pose (R, C) over all its numbers (Ba et al. 2016)."""
    centred = pose - pose.mean()
    return centred / torch.sqrt((centred**2).mean() + 1e-5) * weight + bias


def route_position(
    votes: list[list[Tensor]], parents: list[Tensor] | None, scale: float, norm: tuple[Tensor, Tensor]
) -> tuple[list[Tensor], list[list[float]]]:
    """One pass of procedure 1 at one position.

    Args:
        votes: ``votes[i][j]``, the vote (Q, C) of child i for parent j.
        parents: poses (Q, C) of the pass before, or none in the first pass, where they are zero.
        scale: factor on the agreement.
        norm: weight and bias of the LayerNorm.

    Returns:
        The parents' new poses, and the coefficients ``r[i][j]``.
    """
    num_parents = len(votes[0])
    sums = [torch.zeros_like(vote) for vote in votes[0]]
    coefficients = []
    for child_votes in votes:
        agreements = []
        for j, vote in enumerate(child_votes):
            agreement = 0.0
            for q in range(vote.shape[0]):
                for c in range(vote.shape[1]):
                    agreement += 0.0 if parents is None else parents[j][q, c].item() * vote[q, c].item()
            agreements.append(math.exp(scale * agreement))
        row = [a / sum(agreements) for a in agreements]
        coefficients.append(row)
        for j in range(num_parents):
            sums[j] = sums[j] + row[j] * child_votes[j]
    return [layer_norm(s, *norm) for s in sums], coefficients


def vote_at(
    poses: Tensor, weight: Tensor, kernel_px: int, place: tuple[int, int, int], stride_px: int = 1
) -> list[list[Tensor]]:
    """Votes for the parents at one sample and position, by nested loops over capsule, kernel row and kernel column.

    Args:
        poses: (n, R, C, B, H, W).
        weight: (n k k, J, Q, R).
        kernel_px: k.
        place: sample, row, column of the parents.
        stride_px: step of the kernel.
    """
    b, y, x = place
    votes = []
    child = 0
    for capsule in range(poses.shape[0]):
        for ky in range(kernel_px):
            for kx in range(kernel_px):
                pose = poses[capsule, :, :, b, stride_px * y + ky, stride_px * x + kx]
                child_votes = []
                for j in range(weight.shape[1]):
                    vote = torch.zeros(weight.shape[2], pose.shape[1], dtype=pose.dtype)
                    for q in range(vote.shape[0]):
                        for c in range(vote.shape[1]):
                            for r in range(pose.shape[0]):
                                vote[q, c] += weight[child, j, q, r] * pose[r, c]
                    child_votes.append(vote)
                votes.append(child_votes)
                child += 1
    return votes


def route_layer(
    poses: Tensor,
    weight: Tensor,
    kernel_px: int,
    parents: Tensor | None,
    scale: float,
    norm: tuple[Tensor, Tensor],
    stride_px: int = 1,
) -> Tensor:
    """One pass of a whole layer: (n, R, C, B, H, W) -> (J, Q, C, B, H', W')."""
    height, width = ((size - kernel_px) // stride_px + 1 for size in poses.shape[4:])
    routed = torch.zeros(
        weight.shape[1], weight.shape[2], poses.shape[2], poses.shape[3], height, width, dtype=poses.dtype
    )
    for b in range(poses.shape[3]):
        for y in range(height):
            for x in range(width):
                before = None if parents is None else [parents[j, :, :, b, y, x] for j in range(weight.shape[1])]
                new, _ = route_position(vote_at(poses, weight, kernel_px, (b, y, x), stride_px), before, scale, norm)
                for j, pose in enumerate(new):
                    routed[j, :, :, b, y, x] = pose
    return routed
