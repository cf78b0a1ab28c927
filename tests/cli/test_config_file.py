"""``--config FILE``: a file's options are as good as typed ones, those that are typed win, and no file chooses code."""

from __future__ import annotations

import inspect
import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer

from overlaycaps.cli.config_file import ConfigOption, check_config_code, expected_digest
from overlaycaps.cli.errors import report_errors
from overlaycaps.cli.train import train as real_train
from overlaycaps.config import SIZES, CapsuleConfig, ExecutionConfig, TrainConfig
from overlaycaps.models import MATCHED_MODELS, MODELS, build_model
from overlaycaps.schemas import RUN_SCHEMA, RUN_VERSION
from overlaycaps.train.lr_schedules import DEFAULT_LR_SCHEDULE, DEFAULT_WARM_UP
from overlaycaps.train.optimizers import DEFAULT_OPTIMIZER
from tests.cli.conftest import Outcome

DIGEST = "sha256:0123"
Give = Callable[..., Outcome]
Edit = Callable[[dict[str, Any]], object]


@report_errors
def small_train(
    context: typer.Context,
    model: Annotated[str, typer.Option("--model")] = "caps",
    models: Annotated[str | None, typer.Option("--models")] = None,
    size: Annotated[str, typer.Option("--size")] = "small",
    data: Annotated[Path, typer.Option("--data", "-d")] = Path("data.h5"),
    gpu: Annotated[int | None, typer.Option("--gpu")] = None,
    cpu: Annotated[bool, typer.Option("--cpu")] = False,
    threads: Annotated[int | None, typer.Option("--threads", min=1)] = None,
    seed: Annotated[int, typer.Option("--seed")] = 0,
    seeds: Annotated[str | None, typer.Option("--seeds")] = None,
    epochs: Annotated[int | None, typer.Option("--epochs")] = None,
    images: Annotated[int | None, typer.Option("--images")] = None,
    batch_size: Annotated[int, typer.Option("--batch-size")] = 64,
    lr: Annotated[float | None, typer.Option("--lr")] = None,
    routing: Annotated[str, typer.Option("--routing")] = "attention",
    routing_iterations: Annotated[int, typer.Option("--routing-iterations", "--iterations")] = 2,
    agreement_scale: Annotated[bool, typer.Option()] = True,
    name: Annotated[str | None, typer.Option("--name")] = None,
    force: Annotated[bool, typer.Option("--force")] = False,
    resume: Annotated[Path | None, typer.Option("--resume")] = None,
    config: ConfigOption = None,
) -> None:
    """Say what the options came to, where that is not the default."""
    check_config_code(context)
    show_choices(context)


@report_errors
def every_option(
    context: typer.Context,
    model: str = typer.Option("caps"),
    size: str = typer.Option("small"),
    data: Annotated[Path, typer.Option()] = Path("data.h5"),
    threads: int = typer.Option(None),
    seed: int = typer.Option(0),
    epochs: int = typer.Option(None),
    images: int = typer.Option(None),
    batch_size: int = typer.Option(64),
    lr: float = typer.Option(None),
    weight_decay: float = typer.Option(None),
    optimizer: str = typer.Option(DEFAULT_OPTIMIZER),
    lr_schedule: str = typer.Option(DEFAULT_LR_SCHEDULE),
    warm_up: float = typer.Option(DEFAULT_WARM_UP),
    clip_norm: float = typer.Option(None),
    patience: int = typer.Option(None),
    fresh: bool = typer.Option(False),
    precision: str = typer.Option("auto"),
    accumulate: int = typer.Option(1),
    compile: bool = typer.Option(False),
    routing: str = typer.Option("attention"),
    routing_iterations: int = typer.Option(2),
    schedule: str = typer.Option("concurrent"),
    agreement_scale: bool = typer.Option(True),
    layer_norm: bool = typer.Option(True),
    config: ConfigOption = None,
) -> None:
    """Have all options that a run's configuration speaks of, declared in the other way that typer knows."""
    check_config_code(context)
    show_choices(context)


def show_choices(context: typer.Context) -> None:
    chosen = {
        parameter.name: context.params[str(parameter.name)]
        for parameter in context.command.params
        if parameter.name != "config" and context.params[str(parameter.name)] != parameter.default
    }
    typer.echo(json.dumps({**chosen, "digest": expected_digest(context)}, default=str))


@pytest.fixture
def give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Give:
    """Return a function that types a command line for a command; the folder is empty."""
    monkeypatch.chdir(tmp_path)
    for variable in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "NO_COLOR", "COLUMNS"):
        monkeypatch.delenv(variable, raising=False)

    def type_line(line: str, command: Callable[..., None] = small_train) -> Outcome:
        app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
        app.command("train")(command)
        app.command("other")(lambda: None)
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            typer.main.get_command(app).main(["train", *shlex.split(line)], prog_name="overlaycaps")
        assert isinstance(end.value.code, int)
        return Outcome(end.value.code, *capsys.readouterr())

    return type_line


def read(outcome: Outcome) -> dict[str, Any]:
    """Return the options that differ from their defaults, without the digest if none is wanted."""
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    chosen = json.loads(outcome.stdout)
    if chosen["digest"] is None:
        del chosen["digest"]
    assert isinstance(chosen, dict)
    return chosen


def check_refused(outcome: Outcome, exit_code: int, *parts: str) -> None:
    assert (outcome.exit_code, outcome.stdout) == (exit_code, "")
    assert outcome.stderr == outcome.error + "\n"  # one line and nothing beside it
    for part in parts:
        assert part in outcome.error


# --- TOML ---


def test_a_file_of_options_is_as_good_as_typing_them(give: Give) -> None:
    Path("my.toml").write_text(
        """
        # what we agreed on
        model = "cnn"
        data = 'other data.h5'
        batch-size = 32
        lr = 2e-3
        iterations = 3   # another name of routing-iterations
        agreement_scale = false
        cpu = true
        name = "a:b"
        """
    )
    assert read(give("--config my.toml")) == {
        "model": "cnn",
        "data": "other data.h5",
        "batch_size": 32,
        "lr": 0.002,
        "routing_iterations": 3,
        "agreement_scale": False,
        "cpu": True,
        "name": "a:b",
    }


def test_without_a_file_nothing_changes(give: Give) -> None:
    assert read(give("--seed 3")) == {"seed": 3}


@pytest.mark.parametrize("line", ["--seed 3 --config my.toml", "--config my.toml --seed 3"])
def test_what_is_typed_wins_wherever_it_stands(give: Give, line: str) -> None:
    Path("my.toml").write_text("seed = 1\nbatch-size = 32\nagreement-scale = false\n")
    assert read(give(line)) == {"seed": 3, "batch_size": 32, "agreement_scale": False}
    # Also where that is the default.
    assert read(give(f"{line} --batch-size 64 --agreement-scale")) == {"seed": 3}


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "with a byte order mark"])
@pytest.mark.parametrize("name", ["my.toml", "MY.TOML"])
def test_files_of_other_systems_are_read(give: Give, mark: bytes, name: str) -> None:
    Path(name).write_bytes(mark + b"seed = 1\r\nlr = 1\r\n")
    assert read(give(f"--config {name}")) == {"seed": 1, "lr": 1.0}


def test_an_empty_file_says_nothing(give: Give) -> None:
    Path("my.toml").touch()
    assert read(give("--config my.toml")) == {}


@pytest.mark.parametrize(
    ("text", "typed", "chosen"),
    [
        ("images = 500", "--epochs 2", {"epochs": 2}),
        ("epochs = 2", "--images 500", {"images": 500}),
        ("seed = 7", "--seeds 0-4", {"seeds": "0-4"}),
        ("seeds = '0-4'", "--seed 0", {}),
        ("model = 'cnn'", "--models caps,cnn", {"models": "caps,cnn"}),
        ("models = 'caps,cnn'", "--model cnn", {"model": "cnn"}),
        ("gpu = 0", "--cpu", {"cpu": True}),
        ("cpu = true", "--gpu 0", {"gpu": 0}),
        ("name = 'mine'", "--seeds 0-4", {"seeds": "0-4"}),
        ("name = 'mine'", "--models caps,cnn", {"models": "caps,cnn"}),
        ("gpu = 0\ncpu = false", "", {"gpu": 0}),
        ("seed = 7\nmodel = 'cnn'\nimages = 5", "", {"seed": 7, "model": "cnn", "images": 5}),
    ],
)
def test_what_is_typed_drives_out_what_it_excludes(give: Give, text: str, typed: str, chosen: dict[str, Any]) -> None:
    Path("my.toml").write_text(text)
    for line in (f"--config my.toml {typed}", f"{typed} --config my.toml"):
        assert read(give(line)) == chosen


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("batchsize = 32", ["option batchsize: no such name", "Did you mean batch-size?"]),
        ("learning_rat = 32", ["option learning_rat: no such name; choose one of model, models"]),
        ("d = 'x.h5'", ["option d: no such name"]),
        ("'two words' = 1", ["option 'two words'"]),
        ("config = 'x.toml'", ["config belongs on the command line, as --config"]),
        ("resume = 'x'", ["resume belongs on the command line"]),
        ("force = true", ["force belongs on the command line"]),
        ("dry_run = true", ["dry_run belongs on the command line, as --dry-run"]),
        ("help = true", ["help belongs on the command line"]),
        ("no-agreement-scale = true", ["write `agreement-scale = false`"]),
        ("batch-size = 32\nbatch_size = 64", ["batch-size and batch_size are the same option"]),
        ("iterations = 2\nrouting-iterations = 2", ["iterations and routing-iterations are the same option"]),
        ("[train]\nseed = 1", ["train is a table", "without a [header]"]),
        ("[[train]]\nseed = 1", ["train is a table"]),
        ("lr.peak = 1", ["lr is a table"]),
        ("lr = [1e-3, 2e-3]", ["lr is a list; it must be a number"]),
        ("seed = 2026-01-01", ["seed is a date or time; it must be a whole number"]),
        ("seed = 1.0", ["seed is a number with a point; it must be a whole number"]),
        ("seed = '1'", ["seed is text; it must be a whole number"]),
        ("seed = true", ["seed is a truth value; it must be a whole number"]),
        ("lr = true", ["lr is a truth value; it must be a number"]),
        ("lr = '1e-3'", ["lr is text; it must be a number"]),
        (f"lr = 1{'0' * 400}", ["lr is too large"]),
        ("model = 5", ["model is a whole number; it must be text in quotes"]),
        ("data = 5", ["data is a whole number; it must be a path in quotes"]),
        ("model = false", ["model is a truth value; it must be text"]),
        ("cpu = 1", ["cpu is a whole number; it must be true or false"]),
        ("cpu = 'yes'", ["cpu is text; it must be true or false"]),
        ('data = "x\\u0000y"', ["data has characters that no option can have"]),
        ("epochs = 1\nimages = 500", ["epochs and images exclude each other"]),
        ("seeds = '0-4'\nseed = 0", ["exclude each other"]),
        ("gpu = 0\ncpu = true", ["exclude each other"]),
        ("name = 'x'\nseeds = '0-4'", ["name and seeds exclude each other"]),
        ("seed = 1\nmodel = caps", ["not valid TOML", "line 2", "text in quotes"]),
        ("seed 1", ["not valid TOML", "line 1"]),
        ("seed = 1\nseed = 2\n", ["not valid TOML", "line 2"]),
        (f"seed = {'[' * 50_000}", ["my.toml is "]),
        (f"seed = 1{'0' * 5000}", ["not valid TOML"]),
    ],
)
def test_a_slip_in_a_file_of_options_is_named(give: Give, text: str, parts: list[str]) -> None:
    Path("my.toml").write_text(text)
    check_refused(give("--config my.toml"), 2, "my.toml", *parts)


def test_a_number_out_of_range_is_refused_as_when_it_is_typed(give: Give) -> None:
    Path("my.toml").write_text("threads = 0")
    outcome = give("--config my.toml")
    assert outcome.exit_code == 2
    assert "--threads" in outcome.stderr


# --- Any file ---


@pytest.mark.parametrize(
    ("name", "content", "exit_code", "parts"),
    [
        ("my.yaml", b"seed: 1", 2, ["ends in .toml", "config.json of a run"]),
        ("my", b"seed = 1", 2, ["ends in .toml"]),
        ("my.toml", b"seed = 1\nname = '\xff'", 1, ["not text in UTF-8 (line 2)", "save it"]),
        ("my.json", b"\xff", 1, ["not text in UTF-8 (line 1)"]),
        ("my.toml", b"#" * (2**20 + 1), 1, ["larger than 1 MiB"]),
        ("my.json", b" " * (2**20 + 1), 1, ["larger than 1 MiB"]),
    ],
)
def test_a_file_that_is_none_is_refused(
    give: Give, name: str, content: bytes, exit_code: int, parts: list[str]
) -> None:
    Path(name).write_bytes(content)
    check_refused(give(f"--config {name}"), exit_code, name, *parts)


def test_a_file_as_large_as_allowed_is_read(give: Give) -> None:
    Path("my.toml").write_bytes(b"seed = 1\n".ljust(2**20, b"#"))
    assert read(give("--config my.toml")) == {"seed": 1}


def test_a_file_that_cannot_be_read_is_named(give: Give) -> None:
    Path("folder.toml").mkdir()
    Path("plain").touch()
    for name in ("nowhere.toml", "nowhere.json", "folder.toml", "plain/my.toml", f"{'x' * 300}.toml"):
        check_refused(give(f"--config {name}"), 1, f"{name} could not be read: ", "a file that you may read")
    check_refused(give("--config ''"), 2, "ends in .toml")


def test_help_and_completion_need_no_good_file(
    give: Give, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = give("--help --config nowhere.toml")
    assert outcome.exit_code == 0
    assert "--config FILE" in outcome.stdout
    Path("my.toml").write_text("seed = 17\nagreement-scale = false\nmodel = 'my_code:build'\n")
    assert give("--config my.toml --help").exit_code == 0

    app = typer.Typer(rich_markup_mode=None)
    app.command("train")(small_train)
    context = typer.main.get_command(app).make_context("train", ["--config", "nowhere.toml"], resilient_parsing=True)
    assert context.params["seed"] == 0
    assert capsys.readouterr().err == ""


def test_the_module_never_imports_torch() -> None:
    code = "import overlaycaps.cli.config_file, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- A run's config.json ---


def make_run(**training: Any) -> dict[str, Any]:
    """Return the content of a run's ``config.json``, with these choices in its training part."""
    chosen = {"model": "caps", "size": "tiny", "seed": 3, "num_images": 5000, "batch_size": 32, "lr": 0.01, **training}
    config = TrainConfig(**{"weight_decay": 0.05, "precision": "auto", **chosen})
    return {
        "schema": RUN_SCHEMA,
        "schema_version": RUN_VERSION,
        "training": config.to_dict(),
        "model": SIZES["tiny"].to_dict(),
        "execution": ExecutionConfig("fp32", threads=2, processes=1, accumulate=4).to_dict(),
        "data": {"path": "the data.h5", "digest": DIGEST},
    }


def write_run(content: object) -> None:
    Path("config.json").write_text(json.dumps(content))


RUN_CHOICES = {
    "size": "tiny",
    "data": "the data.h5",
    "threads": 2,
    "seed": 3,
    "images": 5000,
    "batch_size": 32,
    "lr": 0.01,
    "weight_decay": 0.05,
    "precision": "fp32",
    "accumulate": 4,
    "digest": DIGEST,
}


def test_a_run_gives_the_options_that_make_it_again(give: Give) -> None:
    write_run(make_run())
    assert read(give("--config config.json", every_option)) == RUN_CHOICES


def test_every_choice_of_a_run_arrives(give: Give) -> None:
    run = make_run(
        model="cnn",
        compile=True,
        fresh=True,
        optimizer="sgd",
        lr_schedule="cosine",
        warm_up=0.1,
        clip_norm=2.5,
        patience=6,
    )
    model = CapsuleConfig.from_dict(run["model"])
    run["model"] = {
        **model.to_dict(),
        "routing": "dynamic",
        "iterations": 5,
        "schedule": "sequential",
        "scale_agreement": False,
        "layer_norm": False,
        "canvas_px": 48,
        "num_classes": 7,
    }
    write_run(run)
    assert read(give("--config config.json", every_option)) == RUN_CHOICES | {
        "model": "cnn",
        "compile": True,
        "fresh": True,
        "optimizer": "sgd",
        "lr_schedule": "cosine",
        "warm_up": 0.1,
        "clip_norm": 2.5,
        "patience": 6,
        "routing": "dynamic",
        "routing_iterations": 5,
        "schedule": "sequential",
        "agreement_scale": False,
        "layer_norm": False,
    }


def test_an_older_run_is_made_again_with_the_precision_that_was_asked_for(give: Give) -> None:
    run = make_run(precision="bf16")
    del run["execution"]
    for name in ("optimizer", "lr_schedule", "warm_up", "clip_norm", "patience"):
        del run["training"][name]
    write_run(run)
    chosen = read(give("--config config.json", every_option))
    assert chosen["precision"] == "bf16"
    assert not {"threads", "accumulate"} & set(chosen)


def test_the_data_must_be_the_run_s_unless_the_user_chose_others(give: Give) -> None:
    write_run(make_run())
    assert read(give("--config config.json --seed 9", every_option))["digest"] == DIGEST
    for line in ("--config config.json --data mine.h5", "--data mine.h5 --config config.json"):
        chosen = read(give(line, every_option))
        assert chosen["data"] == "mine.h5"
        assert "digest" not in chosen


def test_typed_options_drive_out_those_of_a_run_too(give: Give) -> None:
    write_run(make_run())
    chosen = read(give("--config config.json --epochs 2 --seeds 0-4 --models caps,cnn"))
    assert {"epochs": 2, "seeds": "0-4", "models": "caps,cnn"}.items() <= chosen.items()
    assert not {"images", "seed", "model"} & set(chosen)


@pytest.mark.parametrize("name", MODELS)
def test_a_run_of_every_model_can_be_made_again(give: Give, name: str) -> None:
    # The reference models note down sizes of their own.
    run = make_run(model=name)
    run["model"] = build_model(name, SIZES["tiny"]).config.to_dict()
    write_run(run)
    assert read(give("--config config.json", every_option)).get("model", "caps") == name


@pytest.mark.parametrize("name", MATCHED_MODELS)
@pytest.mark.parametrize("field", ["num_channels", "num_capsules", "pose_size"])
def test_a_run_of_another_size_of_the_same_name_is_refused(give: Give, name: str, field: str) -> None:
    run = make_run(model=name)
    run["model"][field] = 9
    write_run(run)
    check_refused(give("--config config.json"), 1, "config.json was made by another version", "size tiny", field, "9")


def damage(*keys: str, value: object) -> Edit:
    def edit(run: dict[str, Any]) -> None:
        for key in keys[:-1]:
            run = run[key]
        run[keys[-1]] = value

    return edit


@pytest.mark.parametrize(
    ("edit", "parts"),
    [
        (lambda run: run.pop("training"), ["damaged", "'training' is missing"]),
        (lambda run: run.pop("model"), ["damaged", "'model' is missing"]),
        (lambda run: run["data"].pop("digest"), ["damaged", "'digest' is missing"]),
        (lambda run: run["training"].pop("lr"), ["damaged", "lr are missing or unknown"]),
        (damage("training", "speed", value=1), ["damaged", "speed are missing or unknown"]),
        (damage("training", value=[]), ["damaged", "not of its type"]),
        (damage("training", value="words"), ["damaged"]),
        (damage("model", value=None), ["damaged", "not of its type"]),
        (damage("execution", value=None), ["damaged", "not of its type"]),
        (damage("execution", "threads", value=0), ["damaged", "--threads 0"]),
        (damage("data", value=[]), ["damaged", "not of its type"]),
        (damage("data", "path", value=5), ["damaged", "not the text"]),
        (damage("data", "path", value="x\0y"), ["damaged", "not the text"]),
        (damage("data", "path", value="\ud800"), ["damaged", "not the text"]),
        (damage("data", "digest", value=None), ["damaged", "not the text"]),
        (damage("training", "lr", value=True), ["damaged", "lr is True"]),
        (damage("training", "lr", value=float("nan")), ["damaged", "--lr nan"]),
        (damage("training", "lr", value=10**400), ["damaged"]),
        (damage("training", "seed", value=-1), ["damaged", "--seed -1"]),
        (damage("training", "size", value="huge"), ["damaged", "--size huge"]),
        (damage("model", "routing", value="none"), ["damaged", "--routing none"]),
        (damage("schema", value="overlaycaps.result"), ["not the config.json of a run"]),
        (damage("schema_version", value=99), ["has version 99", "Upgrade"]),
    ],
)
def test_a_damaged_run_is_refused(give: Give, edit: Edit, parts: list[str]) -> None:
    run = make_run()
    edit(run)
    write_run(run)
    check_refused(give("--config config.json"), 1, "config.json", *parts)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ["damaged", "line 1"]),
        ('{\n"schema": \n}', ["damaged", "line 3"]),
        ("[" * 100_000, ["damaged"]),
        ("1" * 5000, ["damaged"]),
        ("[]", ["not the config.json of a run"]),
        ("{}", ["not the config.json of a run", "ends in .toml"]),
    ],
)
def test_another_json_file_is_refused(give: Give, text: str, parts: list[str]) -> None:
    Path("x.json").write_text(text)
    check_refused(give("--config x.json"), 1, "x.json", *parts)


# --- Code ---


@pytest.mark.parametrize(
    ("text", "option", "place"),
    [
        ("model = 'my_code:build'", "--model", "my_code:build"),
        ("models = 'caps, my.code:build'", "--models", "my.code:build"),
        ("routing = 'my.code:Routing.Inner'", "--routing", "my.code:Routing.Inner"),
    ],
)
def test_a_file_of_options_chooses_no_code(give: Give, text: str, option: str, place: str) -> None:
    Path("my.toml").write_text(text)
    check_refused(
        give("--config my.toml"), 2, f"my.toml names code, {place}; if you trust it, say so with `{option} {place}`."
    )
    assert read(give(f"--config my.toml {option} {place}")) == {option[2:]: place}
    # Whatever is typed, it is not the file's choice.
    assert read(give(f"{option} cnn --config my.toml")) == {option[2:]: "cnn"}


@pytest.mark.parametrize("part", ["training", "model"])
def test_a_run_chooses_no_code(give: Give, part: str) -> None:
    option = {"training": "model", "model": "routing"}[part]
    run = make_run()
    run[part][option] = "my_code:thing"
    write_run(run)
    check_refused(
        give("--config config.json"), 2, f"names code, my_code:thing; if you trust it, say so with `--{option}"
    )
    assert read(give(f"--config config.json --{option} my_code:thing"))[option] == "my_code:thing"


def test_code_that_is_not_used_is_no_matter(give: Give) -> None:
    Path("my.toml").write_text("model = 'my_code:build'")
    assert read(give("--config my.toml --models cnn")) == {"models": "cnn"}


# --- The command itself ---


def test_every_choice_of_a_run_is_an_option_of_the_command() -> None:
    # What a later field of a run is called has to be an option's name, or be given one where the file is read.
    options = set(inspect.signature(real_train).parameters)
    fields = set(TrainConfig.__dataclass_fields__) - {"num_images"}
    assert fields | {"images", "data", "accumulate", "routing_iterations", "agreement_scale"} <= options


def test_the_command_takes_a_file(give: Give) -> None:
    Path("my.toml").write_text("model = 'my_code:build'")
    check_refused(give("--config my.toml", real_train), 2, "my.toml names code, my_code:build")
    Path("my.toml").write_text("learning-rate = 1")
    check_refused(give("--config my.toml", real_train), 2, "my.toml: option learning-rate: no such name")
