"""Routed passes over votes, behind one function each; the backend is an inner matter.

Shapes (the legend holds in every module of this package):

    n  capsules at each position below    k  height and width of the kernel
    I  children that vote, n k k          J  parents voted for
    R  rows of a child's pose             Q  rows of a parent's pose
    C  columns of both poses (1 for a vector pose, sqrt(D) for a matrix pose)
    B H W  batch and space                T  positions: batch x space, the innermost axis
"""

from overlaycaps.kernels.backends import FallbackWarning, attention_pass, choose_backend
from overlaycaps.kernels.torch_backend import gather_children, map_votes, uniform_pass

__all__ = ["FallbackWarning", "attention_pass", "choose_backend", "gather_children", "map_votes", "uniform_pass"]
