"""The processes that train one run together, as torchrun (or a launcher like it) started them; usually one alone.

Each is called by its rank, counted from 0. All hold the whole model and take equal steps: of every batch each computes
a share, and gradients are summed. Rank 0 speaks and writes for all.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from overlaycaps.errors import LostRankError, ToldElsewhereError, UsageError, UserError

_T = TypeVar("_T")

# How the libraries below call it when another process is gone; torch has no class of error for all of them.
_LOST_WORDS = ("gloo", "nccl", "peer", "socket", "timed out", "timeout", "tcpstore", "connection")


@dataclass(frozen=True)
class Ranks:
    """This process among those of the job.

    Attributes:
        rank: of this process, from 0.
        size: number of processes.
        local_rank: of this process among those on its machine.
        local_size: number of processes on this machine.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this process speaks and writes for all."""
        return self.rank == 0

    def share(self, rows: Tensor) -> Tensor:
        """Return this process's rows: shares are disjoint, as equal as can be, and together all of them, in order."""
        return rows.tensor_split(self.size)[self.rank]

    def sum(self, values: Tensor) -> Tensor:
        """Return the elementwise sum over the processes, on the CPU; every process gets it."""
        if self.size == 1:
            return values
        with explain_lost_ranks(self):
            total = values.cpu()
            dist.all_reduce(total)
        return total

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process."""
        return self.any_of_each(flag)[0]

    def any_of_each(self, *flags: bool) -> list[bool]:
        """Return for each of several flags whether it is set in any process; all processes decide alike by it."""
        return list(flags) if self.size == 1 else (self.sum(torch.tensor(flags, dtype=torch.int32)) > 0).tolist()

    def gather(self, value: _T) -> list[_T]:
        """Return every process's value (plain data), by rank."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        with explain_lost_ranks(self):
            dist.all_gather_object(values, value)
        return values

    def together(self, action: Callable[[], _T]) -> _T:
        """Do something in every process; if it fails in one, it fails in all, and one of them says why.

        Raises:
            Exception: of the action, in the first process where it failed.
            ToldElsewhereError: in the others.
        """
        if self.size == 1:
            return action()
        try:
            value = action()
        except (Exception, KeyboardInterrupt) as error:
            self._agree(getattr(error, "exit_code", UserError.exit_code))
            raise
        self._agree(None)
        return value

    def on_first(self, action: Callable[[], _T]) -> _T:
        """Do something in rank 0 only and return its value (plain data) in every process.

        Raises:
            Exception: of the action, in rank 0.
            ToldElsewhereError: in the others.
        """
        values: list[Any] = [self.together(lambda: action() if self.is_first else None)]
        if self.size > 1:
            with explain_lost_ranks(self):
                dist.broadcast_object_list(values, src=0)
        first: _T = values[0]
        return first

    def _agree(self, exit_code: int | None) -> None:
        codes = self.gather(exit_code)
        first = next((rank for rank, code in enumerate(codes) if code is not None), None)
        if first is not None and first != self.rank:
            raise ToldElsewhereError(codes[first] or UserError.exit_code)


ALONE = Ranks()


def read_ranks(environment: Mapping[str, str]) -> Ranks:
    """Return which process of the job this is, by the variables that torchrun sets.

    Raises:
        UsageError: if they do not fit each other.
    """
    size = environment.get("WORLD_SIZE", "1")
    if "RANK" not in environment or size == "1":
        return ALONE
    try:
        rank, local_rank, local_size = (
            int(environment.get(name, default))
            for name, default in (("RANK", ""), ("LOCAL_RANK", environment["RANK"]), ("LOCAL_WORLD_SIZE", size))
        )
        if not (0 <= rank < int(size) and 0 <= local_rank < local_size <= int(size)):
            raise ValueError
        if not {"MASTER_ADDR", "MASTER_PORT"} <= set(environment):
            raise ValueError
    except ValueError:
        found = ", ".join(
            f"{name}={environment.get(name, '')[:20]!r}"
            for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        )
        raise UsageError(
            f"{found} in the environment do not name a process of a job; unset them, or use torchrun."
        ) from None
    return Ranks(rank, int(size), local_rank, local_size)


@contextmanager
def join_ranks(environment: Mapping[str, str] | None = None) -> Iterator[Ranks]:
    """Connect with the other processes of the job, if there are any, while the block runs.

    Raises:
        UsageError: if the environment does not name a process.
        LostRankError: if the others cannot be reached.
    """
    ranks = read_ranks(os.environ if environment is None else environment)
    if ranks.size == 1:
        yield ranks
        return
    with explain_lost_ranks(ranks):
        # Numbers that processes agree on lie on the CPU, gradients where the model does.
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield ranks
    finally:
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()


@contextmanager
def explain_lost_ranks(ranks: Ranks) -> Iterator[None]:
    """Turn torch's error about a connection that broke into one that a user understands.

    Raises:
        LostRankError: in its place.
    """
    try:
        yield
    except RuntimeError as error:
        reason = (str(error).strip().splitlines() or [""])[0]
        if ranks.size == 1 or not any(word in str(error).lower() for word in _LOST_WORDS):
            raise
        raise LostRankError(
            f"another of the {ranks.size} processes of this job is gone, so that rank {ranks.rank} ends too "
            f"({reason[:120]})."
        ) from error
