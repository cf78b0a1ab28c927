"""How this program was started; needs no torch."""

from __future__ import annotations

from collections.abc import Mapping


def describe_launcher(environment: Mapping[str, str]) -> list[str]:
    """Return the words by which this program was started: alone, or by torchrun as so many processes."""
    size, local_size = (environment.get(name, "1") for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    if not (size.isdecimal() and local_size.isdecimal()) or int(size) <= 1:
        return ["overlaycaps"]
    nodes = int(size) // max(1, int(local_size))
    several = ["--nnodes", str(nodes), "..."] if nodes > 1 else []
    return ["torchrun", *several, "--nproc-per-node", local_size, "-m", "overlaycaps"]
