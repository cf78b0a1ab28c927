"""A dataset in parts: which samples belong to which shard. Machines that share nothing can then each write one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from data_gen.errors import DataError, show_value
from data_gen.synthesis import BLOCK_SIZE

MAX_SHARDS = 100_000
_FORM = "write it as NUMBER/COUNT, the first being 1: 1/8 to 8/8 for eight shards"


@dataclass(frozen=True, order=True)
class Shard:
    """One of `count` parts of a dataset; `number` counts from 1.

    Raises:
        DataError: they do not fit each other.
    """

    number: int
    count: int

    def __post_init__(self) -> None:
        """Check both."""
        if not 1 <= self.count <= MAX_SHARDS:
            raise DataError(f"--shard {self}: {self.count} shards are out of range; use 1 to {MAX_SHARDS}")
        if not 1 <= self.number <= self.count:
            raise DataError(f"--shard {self}: there is no such shard; use 1/{self.count} to {self.count}/{self.count}")

    def __str__(self) -> str:
        """Return it as it is typed."""
        return f"{self.number}/{self.count}"

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Return the shard in a text such as `3/8`.

        Raises:
            DataError: the text has another form, or there is no such shard.
        """
        match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text, re.ASCII)
        if match is None:
            raise DataError(f"--shard {show_value(text)}: {_FORM}")
        return cls(int(match[1]), int(match[2]))

    def cut(self, num_samples: int) -> tuple[int, int]:
        """Return the samples [start, stop) of a split of `num_samples` that belong to the shard.

        Shards are cut between blocks of `BLOCK_SIZE`, as evenly as that allows; with more shards than blocks some
        are empty.
        """
        num_blocks = -(-num_samples // BLOCK_SIZE)
        first, last = (num_blocks * number // self.count for number in (self.number - 1, self.number))
        return min(first * BLOCK_SIZE, num_samples), min(last * BLOCK_SIZE, num_samples)

    def name_part(self, path: Path) -> Path:
        """Return the name of the part's file for a dataset that is to be called `path`: data.part-03-of-16.h5."""
        width = len(str(self.count))
        return path.with_name(f"{path.stem}.part-{self.number:0{width}}-of-{self.count}{path.suffix}")


WHOLE = Shard(1, 1)


def read_shard_from_environment(environment: Mapping[str, str]) -> Shard | None:
    """Return the shard of this process among those that torchrun, or a launcher like it, started together.

    Such launchers set RANK, from 0, and WORLD_SIZE. None where there is one process only.

    Raises:
        DataError: the two do not fit each other.
    """
    rank, world_size = environment.get("RANK"), environment.get("WORLD_SIZE")
    if rank is None or world_size is None or world_size == "1":
        return None
    try:
        return Shard(int(rank) + 1, int(world_size))
    except ValueError:
        raise DataError(
            f"RANK={rank[:20]!r} and WORLD_SIZE={world_size[:20]!r} in the environment do not name a process; unset "
            "them, or start with torchrun"
        ) from None


def choose_shard(out: Path, text: str | None, environment: Mapping[str, str]) -> tuple[Shard | None, Path]:
    """Return which shard this process writes, and where; None where it is to write the whole dataset by itself.

    What is typed goes before what a launcher says; a launcher's processes share one command line, so each writes a
    file of its own name.

    Args:
        out: the file that is asked for.
        text: the shard that is asked for, as typed; None if none is.
        environment: of the process.

    Raises:
        DataError: as `Shard.parse` and `read_shard_from_environment`.
    """
    if text is not None:
        return Shard.parse(text), out
    shard = read_shard_from_environment(environment)
    return (None, out) if shard is None else (shard, shard.name_part(out))
