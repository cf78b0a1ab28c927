"""Routed passes over votes, behind one function each; the backend is an inner matter.

Shapes (the legend holds in every module of this package):

    I  children that vote          J  parents voted for
    R  rows of a child's pose      Q  rows of a parent's pose
    C  columns of both poses (1 for a vector pose, sqrt(D) for a matrix pose)
    B H W  batch and space    T  positions: batch x space, the innermost axis
"""

from overlaycaps.kernels.torch_backend import attention_pass, gather_children, map_votes, uniform_pass

__all__ = ["attention_pass", "gather_children", "map_votes", "uniform_pass"]
