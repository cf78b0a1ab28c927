"""``--config FILE``: options from a file, as if they had been typed; those that are typed win.

A TOML file names options of the command, without their dashes. A JSON file is the ``config.json`` of a run, and stands
for the options that make that run again. Neither may choose code to import, since a file may be someone else's.
"""

from __future__ import annotations

import inspect
import json
import os
import shlex
import sys
from collections import UserDict
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from overlaycaps.cli.errors import exit_on_error
from overlaycaps.config import SIZES, CapsuleConfig, ExecutionConfig, TrainConfig
from overlaycaps.errors import UsageError, UserError
from overlaycaps.models import MATCHED_MODELS
from overlaycaps.schemas import RUN_SCHEMA, RUN_VERSION
from overlaycaps.tables import is_target, look_up, refuse_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_MAX_BYTES = 2**20
_META = "overlaycaps.cli.config_file"

# They say what to do this time, or might do harm unseen.
_NOT_IN_A_FILE = ("config", "resume", "force", "dry-run", "help")

# Options that exclude each other: one that is typed takes the place of the other in the file.
_RIVALS = (("epochs", "images"), ("seed", "seeds"), ("model", "models"), ("gpu", "cpu"))

# A name is for one run, so that several which are typed take its place; a name that is typed is for the command to
# refuse.
_SEVERAL = {"name": ("seeds", "models")}

# Where a run's `config.json` says it, by the name of the option's parameter; the training part has the same names but
# for the number of images.
_MODEL_FIELDS = {
    "routing": "routing",
    "routing_iterations": "iterations",
    "schedule": "schedule",
    "agreement_scale": "scale_agreement",
    "layer_norm": "layer_norm",
}
_EXECUTION_FIELDS = ("precision", "threads", "accumulate")

_Kind = type[bool] | type[int] | type[float] | type[str] | type[Path]
_WANTED: dict[_Kind, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: 'text in quotes, as in "x"',
    Path: 'a path in quotes, as in "x"',
}
_GIVEN = {bool: "a truth value", int: "a whole number", float: "a number with a point", str: "text", list: "a list"}


@dataclass(frozen=True)
class _Loaded:
    """What is kept of a file until the other options are known.

    Attributes:
        path: of the file.
        code: by the parameter's name, the place of the code that the file names for it.
        digest: of the data of the run whose file it is.
    """

    path: Path
    code: Mapping[str, str]
    digest: str | None


def load_config_file(context: typer.Context, value: Path | None) -> Path | None:
    """Take the defaults of the command's other options from a file; the callback of ``--config``.

    Click handles it before the options that are not typed, whose defaults it then looks up. What is wrong with the
    file ends the program here, since a callback runs outside of the command.

    Args:
        context: of the command.
        value: the file, or None if the option is not given.

    Returns:
        The file.

    Raises:
        typer.Exit: if the file cannot be read or says what it must not; the error is printed.
    """
    if value is None or context.resilient_parsing:  # a shell that completes a word wants no message
        return value
    with exit_on_error():
        kinds = _find_kinds(context)
        values, digest = _load(value, context, kinds)
        context.default_map = _FileValues(context, values)
        code = {name: _find_code(text) for name, text in values.items() if kinds.get(name) is str and name != "name"}
        context.meta[_META] = _Loaded(value, {name: place for name, place in code.items() if place}, digest)
    return value


ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Options from FILE: TOML, or the config.json of a run, to make it again. Options given here win.",
        is_eager=True,
        callback=load_config_file,
    ),
]


def check_config_code(context: typer.Context) -> None:
    """Refuse code that only the file names; the command calls it before it looks anything up.

    A model or routing may be given by its place (``package.module:attribute``). It is used only if the user names it
    too, and then the file's word for it no longer counts.

    Raises:
        UsageError: if an option has such a value from the file.
    """
    loaded = _get_loaded(context)
    if loaded is None:
        return
    for parameter in context.command.params:
        name = str(parameter.name)
        if name in loaded.code and _is_from_file(context, name):
            place = loaded.code[name]
            raise UsageError(
                f"{loaded.path} names code, {place}; if you trust it, say so with "
                f"`{_name_option(parameter.opts)} {shlex.quote(place)}`."
            )


def expected_digest(context: typer.Context) -> str | None:
    """Return the digest that the data must have: that of the run whose ``config.json`` was given.

    None if there is no such file, or the user chose other data.
    """
    loaded = _get_loaded(context)
    return loaded.digest if loaded is not None and _is_from_file(context, "data") else None


class _FileValues(UserDict[str, Any]):
    """The values of a file by the names of their parameters, but for those whose rival is typed.

    Click handles the options that are typed first and looks up the values of the others after them; it is known by
    then which are typed, and not when the file is read.
    """

    def __init__(self, context: typer.Context, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self._context = context

    def __contains__(self, name: object) -> bool:
        return name in self.data and not any(self._is_typed(rival) for rival in _list_rivals(str(name)))

    def __getitem__(self, name: str) -> Any:
        if name not in self:
            raise KeyError(name)
        return self.data[name]

    def _is_typed(self, name: str) -> bool:
        source = self._context.get_parameter_source(name)
        return source is not None and source.name == "COMMANDLINE"


def _list_rivals(name: str) -> list[str]:
    pairs = [other for pair in _RIVALS if name in pair for other in pair if other != name]
    return [*pairs, *_SEVERAL.get(name, ())]


def _get_loaded(context: typer.Context) -> _Loaded | None:
    loaded = context.meta.get(_META)
    return loaded if isinstance(loaded, _Loaded) else None


def _is_from_file(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "DEFAULT_MAP"


def _find_code(text: str) -> str | None:
    """Return the first place of code in a value, which may be several names with commas between."""
    return next((part.strip() for part in text.split(",") if is_target(part.strip())), None)


def _find_kinds(context: typer.Context) -> dict[str, _Kind]:
    """Return what each option takes, by the annotations of the command's function."""
    function = context.command.callback
    hints = get_type_hints(inspect.unwrap(function)) if function is not None else {}
    kinds: dict[str, _Kind] = {}
    for parameter in context.command.params:
        hint = hints.get(str(parameter.name), str)
        # An option that may be left out is annotated `int | None`.
        parts = [part for part in get_args(hint) if part is not type(None)]
        kind = parts[0] if get_origin(hint) is not None and len(parts) == 1 else hint
        kinds[str(parameter.name)] = kind if kind in _WANTED else str
    return kinds


def _load(path: Path, context: typer.Context, kinds: Mapping[str, _Kind]) -> tuple[dict[str, Any], str | None]:
    """Return the values in a file by the names of their parameters, and the digest that the data must have."""
    ending = path.suffix.lower()
    if ending == ".toml":
        return _read_options(path, _read_text(path), context, kinds), None
    if ending == ".json":
        return _read_run(path, _read_text(path))
    raise UsageError(f"--config {path}: give a file of options that ends in .toml, or the config.json of a run.")


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise UserError(
            f"{path} could not be read: {error.strerror or error}; give --config a file that you may read."
        ) from error
    if len(content) > _MAX_BYTES:
        raise UserError(f"{path} is larger than 1 MiB and no configuration; give --config another file.")
    try:
        return content.decode("utf-8-sig")  # some editors put a mark at the beginning
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path} is not text in UTF-8 (line {line}); save it as UTF-8.") from error


def _read_options(path: Path, text: str, context: typer.Context, kinds: Mapping[str, _Kind]) -> dict[str, Any]:
    """Return what a TOML file says, checked."""
    try:
        content = tomllib.loads(text)
    except RecursionError as error:
        raise UsageError(f"{path} is nested too deep; write `option = value`, one a line.") from error
    except ValueError as error:
        raise UsageError(
            f"{path} is not valid TOML: {error}. Write `option = value`, one a line, and text in quotes."
        ) from error
    names, negations = _list_options(context)
    values: dict[str, Any] = {}
    keys: dict[str, str] = {}
    for key, value in content.items():
        spelling = key.replace("_", "-")
        if _is_table(value):
            raise UsageError(f"{path}: {shlex.quote(key)} is a table; options stand by themselves, without a [header].")
        if spelling in _NOT_IN_A_FILE:
            raise UsageError(f"{path}: {key} belongs on the command line, as --{spelling}; take it out of the file.")
        if spelling in negations:
            raise UsageError(f"{path}: {key}: write `{negations[spelling]} = false`, or true, instead.")
        if spelling not in names:
            raise refuse_name(key[:60], names, f"{path}: option")
        name = names[spelling]
        if name in keys:
            raise UsageError(f"{path}: {keys[name]} and {key} are the same option; keep one of them.")
        keys[name] = key
        values[name] = _check_value(path, key, value, kinds[name])
    chosen = {name for name, value in values.items() if value is not False}  # `cpu = false` excludes nothing
    for name in values:
        rivals = [rival for rival in _list_rivals(name) if rival in chosen]
        if name in chosen and rivals:
            raise UsageError(f"{path}: {keys[name]} and {keys[rivals[0]]} exclude each other; keep one of them.")
    return values


def _list_options(context: typer.Context) -> tuple[dict[str, str], dict[str, str]]:
    """Return the parameters by the long names of their options, and those names by their ``--no-`` forms."""
    names, negations = {}, {}
    for parameter in context.command.params:
        options = [option[2:] for option in parameter.opts if option.startswith("--")]
        names.update({option: str(parameter.name) for option in options if option not in _NOT_IN_A_FILE})
        if options:
            negations.update({option.lstrip("-"): options[0] for option in parameter.secondary_opts})
    return names, negations


def _name_option(spellings: list[str]) -> str:
    return next((spelling for spelling in spellings if spelling.startswith("--")), spellings[0])


def _is_table(value: object) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and any(isinstance(part, dict) for part in value))


def _check_value(path: Path, key: str, value: object, kind: _Kind) -> Any:
    """Return a value if an option of this kind takes it."""
    accepted = {float: (int, float), Path: (str,)}.get(kind, (kind,))
    # In Python a truth value is a number; in a file it is not.
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        given = _GIVEN.get(type(value), "a date or time")
        raise UsageError(f"{path}: {key} is {given}; it must be {_WANTED[kind]}.")
    if isinstance(value, str) and not _is_typable(value):
        raise UsageError(f"{path}: {key} has characters that no option can have; take them out.")
    if isinstance(value, int) and kind is float:
        try:
            return float(value)
        except OverflowError as error:
            raise UsageError(f"{path}: {key} is too large; choose a smaller number.") from error
    return value


def _is_typable(text: str) -> bool:
    """Whether a text could be typed; what could not is no name of a file to the system."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def _read_run(path: Path, text: str) -> tuple[dict[str, Any], str]:
    """Return what a run's ``config.json`` says, checked, as values of options, and the digest of its data."""
    remedy = "Give the config.json that `overlaycaps train` wrote, or a file of options that ends in .toml."
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged: it is not valid JSON ({error}). {remedy}") from error
    if not isinstance(content, dict) or content.get("schema") != RUN_SCHEMA:
        raise UserError(f"{path} is not the config.json of a run. {remedy}")
    version = content.get("schema_version")
    if version != RUN_VERSION:
        raise UserError(f"{path} has version {version}; this program reads {RUN_VERSION}. Upgrade overlaycaps.")
    try:
        training = TrainConfig.from_dict(content["training"])
        model = CapsuleConfig.from_dict(content["model"])
        execution = ExecutionConfig.from_dict(content["execution"]) if "execution" in content else None
        size = look_up(SIZES, training.size, "--size")
        data_path, digest = content["data"]["path"], content["data"]["digest"]
    except KeyError as error:
        raise UserError(f"{path} is damaged: {error} is missing. {remedy}") from error
    except (TypeError, OverflowError) as error:
        raise UserError(f"{path} is damaged: a part is not of its type. {remedy}") from error
    except UsageError as error:
        raise UserError(f"{path} is damaged: {error} {remedy}") from error
    texts = (training.model, model.routing, data_path, digest)
    if not all(isinstance(part, str) and _is_typable(part) for part in texts):
        raise UserError(f"{path} is damaged: a part is not the text that it should be. {remedy}")
    _check_size(path, training, model, size)

    values = {
        "images" if field.name == "num_images" else field.name: getattr(training, field.name)
        for field in fields(TrainConfig)
    }
    values |= {option: getattr(model, name) for option, name in _MODEL_FIELDS.items()}
    if execution is not None:
        values |= {name: getattr(execution, name) for name in _EXECUTION_FIELDS}
    values["data"] = data_path
    return {name: value for name, value in values.items() if value is not None}, digest


def _check_size(path: Path, training: TrainConfig, model: CapsuleConfig, size: CapsuleConfig) -> None:
    # Only the matched models keep to the sizes; the others note down those of their own.
    if training.model in MATCHED_MODELS:
        for name in ("num_channels", "num_capsules", "pose_size"):
            if getattr(model, name) != getattr(size, name):
                raise UserError(
                    f"{path} was made by another version of overlaycaps, whose size {training.size} had {name} "
                    f"{getattr(model, name)}, not {getattr(size, name)}; use that version to make the run again."
                )
