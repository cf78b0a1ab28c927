"""State on disk: plain tensors and numbers, written whole or not at all, read as data only."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from overlaycaps.errors import UserError
from overlaycaps.files import describe_failure, describe_write_failure, write_atomically
from overlaycaps.schemas import CHECKPOINT_SCHEMA, CHECKPOINT_VERSION

_WRAPPERS = ("module.", "_orig_mod.")
_REMEDY = "train the run again with --force"


def save_checkpoint(path: Path, state: dict[str, Any], former: Path | None = None) -> None:
    """Write ``state`` (nested dicts and lists of tensors, numbers and text) to ``path``.

    What was there is kept as ``former``, if that is given.

    Tensors are moved to the CPU first, so that the file names no device and opens anywhere.

    Raises:
        UserError: if the file cannot be written; what was at ``path`` is still there.
    """
    content = {"schema": CHECKPOINT_SCHEMA, "schema_version": CHECKPOINT_VERSION, **_move_to_cpu(state)}
    try:
        write_atomically(path, lambda file: torch.save(content, file), former)
    except RuntimeError as error:
        # torch's zip writer reports a full disk in its own words; the system's are in the context.
        if isinstance(error.__context__, OSError):
            raise UserError(describe_write_failure(path, error.__context__)) from error
        raise UserError(f"{path} could not be written: {_first_line(error)}; is the disk full?") from error


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read what :func:`save_checkpoint` wrote, onto the CPU; nothing in the file is ever executed.

    The file is a zip archive, and every byte of its content is compared with the checksum that it has there.

    Raises:
        UserError: if the file is missing, damaged, not a checkpoint, or of a newer version.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on a damaged file torch also wonders about its version
            content = torch.load(path, map_location="cpu", weights_only=True)
        with zipfile.ZipFile(path) as archive:  # torch does not look at the checksums
            damaged = archive.testzip()
        if damaged is not None:
            raise ValueError(f"the checksum of {damaged} does not fit")
    except FileNotFoundError as error:
        raise UserError(f"{path} does not exist; {_REMEDY}.") from error
    except OSError as error:
        raise UserError(describe_failure(error)) from error
    except Exception as error:  # of what kind depends on the byte that is wrong
        raise UserError(f"{path} is damaged or not a checkpoint ({_first_line(error)}); {_REMEDY}.") from error
    if not isinstance(content, dict) or content.get("schema") != CHECKPOINT_SCHEMA:
        raise UserError(f"{path} is not a checkpoint of overlaycaps; {_REMEDY}.")
    version = content.get("schema_version")
    if version != CHECKPOINT_VERSION:
        is_older = isinstance(version, int) and version < CHECKPOINT_VERSION
        remedy = _REMEDY.capitalize() if is_older else "Upgrade overlaycaps"
        raise UserError(f"{path} has version {version}; this program reads {CHECKPOINT_VERSION}. {remedy}.")
    return content


def load_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Put weights into a model, also those that another program saved from a wrapper around it.

    DistributedDataParallel and torch.compile put a prefix before every name; it is dropped where the model has none.

    Raises:
        RuntimeError: if they are not the model's.
    """
    wanted = model.state_dict().keys()
    model.load_state_dict({name if name in wanted else _drop_wrappers(name): value for name, value in weights.items()})


def _drop_wrappers(name: str) -> str:
    while name.startswith(_WRAPPERS):
        name = name.partition(".")[2]
    return name


def _move_to_cpu(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if isinstance(value, dict):
        return {key: _move_to_cpu(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_move_to_cpu(item) for item in value)
    return value


def _first_line(error: Exception) -> str:
    # torch explains at length, and an empty file it does not explain at all.
    return (str(error).splitlines() or [type(error).__name__])[0][:100]
