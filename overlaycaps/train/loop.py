"""The training loop, from the first image to the scored run; read it from top to bottom."""

from __future__ import annotations

import functools
import time
from typing import Any

from overlaycaps.errors import Interrupted, ToldElsewhereError, UserError
from overlaycaps.metrics.multilabel import MultilabelScores
from overlaycaps.train.checkpoint import save_checkpoint
from overlaycaps.train.evaluate import Watch, evaluate
from overlaycaps.train.feed import draw_batches
from overlaycaps.train.finite import describe_broken_layer, has_finite_weights
from overlaycaps.train.interrupt import StopFlag
from overlaycaps.train.observer import Evaluation, Observer, Progress, Scoring, SilentObserver
from overlaycaps.train.plan import PreparedRun
from overlaycaps.train.result import describe_result
from overlaycaps.train.run_folder import RunFolder
from overlaycaps.train.state import Position, Weights, read_state, restore_state, save_state
from overlaycaps.train.step import DivergedError, TrainStep, connect_step, make_step


def train(run: PreparedRun, observer: Observer, stop: StopFlag) -> dict[str, Any]:  # noqa: PLR0912 - one loop, whole
    """Train to the end, score the best checkpoint once on the test split, and write ``result.json``.

    Continues from the state in the folder where there is one; on the CPU the outcome is the same, bit for bit. Several
    processes (``run.runtime.ranks``) call it together; the first of them writes and is observed.

    Returns:
        The result, as written.

    Raises:
        Interrupted: when ``stop`` asks for it; the state is saved and the message says how to continue.
        UserError: if a number is not finite, another process is gone, or a file cannot be written.
    """
    config, data, folder, runtime = run.config, run.data, run.folder, run.runtime
    ranks = runtime.ranks
    if not ranks.is_first:
        observer = SilentObserver()
    plan = run.plan_batches()
    step = make_step(run)
    model = step.model
    at = Position()
    best: Weights = {}
    state, warnings = ranks.on_first(lambda: read_state(folder))
    if state is not None:
        at, best = ranks.together(lambda: restore_state(folder, state, step))
    ranks.on_first(lambda: _undo_what_no_state_knows(folder, best, at))
    failure = connect_step(step, run)
    for warning in [*warnings, *([failure] if failure else [])]:
        observer.on_warning(warning)

    saved_s = time.monotonic()

    def save() -> None:
        nonlocal saved_s
        at.peak_memory_mib = _find_larger(at.peak_memory_mib, runtime.measure_peak_memory_mib())
        _check_weights(step, at, folder)
        # All go on when it is written, or none: a process that ends has the launcher end the others.
        ranks.on_first(lambda: save_state(folder, step, at, best))
        saved_s = time.monotonic()

    def stop_here() -> Exception:
        left = f"stopped after {at.images_seen:,} of {plan.num_images:,} images; the state is saved. Continue with "
        error = Interrupted(f"{left}`{folder.describe_resume()}`.")
        return error if ranks.is_first else ToldElsewhereError(error.exit_code)

    def watch_scoring(split: str, *, is_saved: bool) -> Watch:
        def watch(done: int, total: int) -> None:
            observer.on_scoring(Scoring(split, done, total))
            if ranks.any(stop.requested):
                if not is_saved:
                    save()
                raise stop_here()

        return watch

    train_split = data.train.to(runtime.device)
    resumed_images, resumed_time_s = at.images_seen, at.train_time_s
    while at.epochs_done < plan.num_epochs and not _is_given_up(at, config.patience):
        epoch = at.epochs_done
        batches = plan.split_epoch(epoch)[at.step - epoch * plan.steps_per_epoch :]
        shares = [ranks.share(batch) for batch in batches]
        model.train()
        started_s = time.perf_counter()
        for batch, (images, labels) in zip(
            batches, draw_batches(train_split, epoch, shares, runtime.device), strict=True
        ):
            try:
                loss = step.take(images, labels, len(batch), at.step + 1)
            except DivergedError as error:
                raise _say_what_is_kept(error, folder, ranks.is_first) from error
            at.step += 1
            at.images_seen += len(batch)
            at.loss_sum += loss * len(batch)
            at.loss_images += len(batch)
            if at.step == plan.last_step(epoch):
                runtime.synchronize()
            at.train_time_s += time.perf_counter() - started_s
            speed = (at.images_seen - resumed_images) / (at.train_time_s - resumed_time_s)
            observer.on_progress(
                Progress(
                    epoch=epoch + 1,
                    num_epochs=plan.num_epochs,
                    images_seen=at.images_seen,
                    num_images=plan.num_images,
                    step=at.step,
                    loss=loss,
                    lr=step.lr,
                    images_per_s=speed,
                    remaining_s=(plan.num_images - at.images_seen) / speed,
                )
            )
            if at.step < plan.last_step(epoch):
                # The clocks of processes differ; the first's decides.
                is_due = ranks.is_first and time.monotonic() - saved_s >= run.checkpoint_s
                is_stopped, is_due = ranks.any_of_each(stop.requested, is_due)
                if is_stopped or is_due:
                    save()
                if is_stopped:
                    raise stop_here()
            started_s = time.perf_counter()

        _check_weights(step, at, folder)
        scores = evaluate(model, data.valid, runtime, watch_scoring("validation", is_saved=False))
        at.epochs_done += 1
        is_best = _note_evaluation(at, scores)
        if is_best:
            best = {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}
        train_loss = at.loss_sum / at.loss_images
        entry = {
            "epoch": at.epochs_done,
            "step": at.step,
            "images_seen": at.images_seen,
            "train_loss": train_loss,
            "lr": step.lr,
            "train_time_s": at.train_time_s,
            "validation": scores.to_dict(),
        }
        at.loss_sum, at.loss_images = 0.0, 0
        if is_best:
            ranks.on_first(functools.partial(_save_best, folder, best, at))
        ranks.on_first(functools.partial(folder.append_metrics, entry))
        save()
        observer.on_evaluation(
            Evaluation(
                epoch=at.epochs_done,
                num_epochs=plan.num_epochs,
                images_seen=at.images_seen,
                train_loss=train_loss,
                exact_match=scores.exact_match.ratio,
                is_best=is_best,
                step=at.step,
                images_per_s=at.images_seen / at.train_time_s,
                num_left=None if config.patience is None else config.patience - at.stale_evaluations,
            )
        )
        if ranks.any(stop.requested):
            raise stop_here()

    # The only place that touches the test split.
    model.load_state_dict(best)
    test = evaluate(model, data.test, runtime, watch_scoring("test", is_saved=True))
    peaks = ranks.gather(_find_larger(at.peak_memory_mib, runtime.measure_peak_memory_mib()))
    at.peak_memory_mib = max((peak for peak in peaks if peak is not None), default=None)
    result = describe_result(run, model, at, test, step.is_compiled)
    ranks.on_first(lambda: folder.write_result(result))
    return result


def _is_given_up(at: Position, patience: int | None) -> bool:
    return patience is not None and at.stale_evaluations >= patience


def _note_evaluation(at: Position, scores: MultilabelScores) -> bool:
    """Remember the scores if they are the best so far; of equals, the later."""
    ratio = scores.exact_match.ratio
    at.stale_evaluations = 0 if ratio > at.best_exact_match else at.stale_evaluations + 1
    if ratio < at.best_exact_match:
        return False
    at.best_exact_match = ratio
    at.best_epoch = at.epochs_done
    at.best_images_seen = at.images_seen
    at.best_scores = scores.to_dict()
    return True


def _undo_what_no_state_knows(folder: RunFolder, best: Weights, at: Position) -> None:
    """Take back what a process that was killed wrote after its last state."""
    folder.keep_metrics_until(at.epochs_done)
    if best:
        _save_best(folder, best, at)


def _save_best(folder: RunFolder, best: Weights, at: Position) -> None:
    save_checkpoint(folder.best_file, {"model": best, "images_seen": at.best_images_seen})


def _check_weights(step: TrainStep, at: Position, folder: RunFolder) -> None:
    """Refuse weights that are not finite before they replace a sound state.

    Raises:
        DivergedError: if they are.
    """
    if has_finite_weights(step.model):
        return
    images = next(step.model.parameters()).new_zeros(1, 1, 1)  # looked at only where the weights are sound
    where = describe_broken_layer(step.model, images, step.runtime)
    error = DivergedError(
        f"the weights are not finite after step {at.step}, at a learning rate of {step.lr:.3g}: the first number that "
        f"is not is in {where}; lower --lr."
    )
    raise _say_what_is_kept(error, folder, step.runtime.ranks.is_first)


def _say_what_is_kept(error: UserError, folder: RunFolder, is_first: bool) -> UserError:
    if not is_first:
        return ToldElsewhereError(error.exit_code)
    kept = f" The last good state is in {folder.last_file}." if folder.last_file.is_file() else ""
    return DivergedError(f"{error}{kept}")


def _find_larger(known: float | None, new: float | None) -> float | None:
    return max((value for value in (known, new) if value is not None), default=None)
