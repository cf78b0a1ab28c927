"""Errors that a user can act on; each becomes one line and an exit code, in one place of the command line."""

from __future__ import annotations


class UserError(Exception):
    """The work failed for a reason that the message names, with the remedy."""

    exit_code = 1


class UsageError(UserError):
    """The command was asked for something that it cannot do: an unknown name, a value out of range."""

    exit_code = 2


class Interrupted(UserError):
    """The user or the system stopped the work; the state is saved."""

    exit_code = 130


class LostRankError(UserError):
    """Another process of the job is gone, so that this one cannot go on."""


class ToldElsewhereError(UserError):
    """The work failed in another process of the job, which tells the user why."""

    def __init__(self, exit_code: int) -> None:
        super().__init__("another process of the job says why")
        self.exit_code = exit_code
