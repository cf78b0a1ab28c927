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
