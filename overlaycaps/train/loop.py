"""The training loop, from the first image to the scored run; read it from top to bottom."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from overlaycaps.errors import Interrupted, UserError
from overlaycaps.metrics.multilabel import MultilabelScores
from overlaycaps.models import build_model
from overlaycaps.train.checkpoint import load_checkpoint, save_checkpoint
from overlaycaps.train.compilation import Forward, compile_forward
from overlaycaps.train.evaluate import evaluate
from overlaycaps.train.feed import draw_batches
from overlaycaps.train.interrupt import StopFlag
from overlaycaps.train.observer import Evaluation, Observer, Progress
from overlaycaps.train.optimizer import make_optimizer
from overlaycaps.train.order import BatchPlan
from overlaycaps.train.plan import PreparedRun
from overlaycaps.train.result import describe_result
from overlaycaps.train.run_folder import RunFolder


@dataclass
class Position:
    """How far a run is; with weights, optimiser and schedule it is all that resuming needs.

    The order of the images is a function of seed and epoch, and nothing in the loop draws random numbers.
    """

    step: int = 0
    images_seen: int = 0
    loss_sum: float = 0.0
    loss_images: int = 0
    train_time_s: float = 0.0
    best_exact_match: float = -1.0
    best_epoch: int = 0
    best_scores: dict[str, Any] = field(default_factory=dict)


def train(run: PreparedRun, observer: Observer, stop: StopFlag) -> dict[str, Any]:
    """Train to the end, score the best checkpoint once on the test split, and write ``result.json``.

    Continues from ``last.pt`` where the folder has one; on the CPU the outcome is the same, bit for bit.

    Returns:
        The result, as written.

    Raises:
        Interrupted: when ``stop`` asks for it; the state is saved and the message says how to continue.
        UserError: if the loss is not finite, or a file cannot be written.
    """
    config, data, folder, runtime = run.config, run.data, run.folder, run.runtime
    runtime.prepare()
    torch.manual_seed(config.seed)
    model = build_model(config.model, run.model_config).to(runtime.device)
    plan = run.plan_batches()
    optimizer, schedule = make_optimizer(model, config, plan.num_steps)
    at = Position()
    if folder.last_file.is_file():
        state = load_checkpoint(folder.last_file)
        try:
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            schedule.load_state_dict(state["schedule"])
            at = Position(**state["position"])
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise UserError(f"{folder.last_file} is not a state of this run; train it again with --force.") from error
        folder.keep_metrics_until(at.images_seen)

    def save_last() -> None:
        save_checkpoint(
            folder.last_file,
            {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "schedule": schedule.state_dict(),
                "position": vars(at),
            },
        )

    train_split = data.train.to(runtime.device)
    forward: Forward = model
    is_compiled = False
    if config.compile:
        shape = (data.spec.canvas_px, data.spec.canvas_px)
        examples = [torch.zeros(n, *shape, dtype=torch.uint8, device=runtime.device) for n in plan.batch_sizes]
        forward, failure = compile_forward(model, examples, runtime)
        is_compiled = failure is None
        if failure:
            observer.on_warning(failure)
    resumed_images, resumed_time_s = at.images_seen, at.train_time_s
    # The last epoch may be cut, so that a run with all its steps behind it has not the steps of whole epochs.
    first_epoch = at.step // plan.steps_per_epoch if at.step < plan.num_steps else plan.num_epochs
    for epoch in range(first_epoch, plan.num_epochs):
        first_batch = at.step - epoch * plan.steps_per_epoch
        model.train()
        started = time.perf_counter()
        time_before_s = at.train_time_s
        for images, labels in draw_batches(train_split, epoch, plan.split_epoch(epoch)[first_batch:], runtime.device):
            with runtime.autocast():
                logits = forward(images)
            loss = binary_cross_entropy_with_logits(logits.float(), labels.float())
            loss_value = loss.item()
            if not math.isfinite(loss_value):
                kept = f" The last good state is in {folder.last_file}." if folder.last_file.is_file() else ""
                raise UserError(
                    f"the loss is {loss_value} at step {at.step + 1}; lower --lr (it is {config.lr:g}).{kept}"
                )
            loss.backward()
            optimizer.step()
            schedule.step()
            # Now, and not before the next backward pass: until then their memory serves the forward pass.
            optimizer.zero_grad(set_to_none=True)

            at.step += 1
            at.images_seen += len(images)
            at.loss_sum += loss_value * len(images)
            at.loss_images += len(images)
            at.train_time_s = time_before_s + time.perf_counter() - started
            speed = (at.images_seen - resumed_images) / (at.train_time_s - resumed_time_s)
            observer.on_progress(
                Progress(
                    epoch=epoch + 1,
                    num_epochs=plan.num_epochs,
                    images_seen=at.images_seen,
                    num_images=plan.num_images,
                    loss=loss_value,
                    images_per_s=speed,
                    remaining_s=(plan.num_images - at.images_seen) / speed,
                )
            )
            if stop.requested and at.step < plan.last_step(epoch):
                save_last()
                raise Interrupted(_describe_stop(at, plan, folder))

        scores = evaluate(model, data.valid, runtime)
        is_best = _note_evaluation(at, epoch + 1, scores)
        if is_best:
            save_checkpoint(folder.best_file, {"model": model.state_dict(), "images_seen": at.images_seen})
        train_loss = at.loss_sum / at.loss_images
        at.loss_sum, at.loss_images = 0.0, 0
        folder.append_metrics(
            {
                "epoch": epoch + 1,
                "step": at.step,
                "images_seen": at.images_seen,
                "train_loss": train_loss,
                "lr": schedule.get_last_lr()[0],
                "train_time_s": at.train_time_s,
                "validation": scores.to_dict(),
            }
        )
        save_last()
        observer.on_evaluation(
            Evaluation(
                epoch=epoch + 1,
                num_epochs=plan.num_epochs,
                images_seen=at.images_seen,
                train_loss=train_loss,
                exact_match=scores.exact_match.ratio,
                is_best=is_best,
            )
        )
        if stop.requested:
            raise Interrupted(_describe_stop(at, plan, folder))

    # The only place that touches the test split.
    model.load_state_dict(load_checkpoint(folder.best_file)["model"])
    result = describe_result(run, model, vars(at), evaluate(model, data.test, runtime), is_compiled)
    folder.write_result(result)
    return result


def _describe_stop(at: Position, plan: BatchPlan, folder: RunFolder) -> str:
    return (
        f"stopped after {at.images_seen:,} of {plan.num_images:,} images; the state is saved. Continue with "
        f"`{folder.describe_resume()}`."
    )


def _note_evaluation(at: Position, epoch: int, scores: MultilabelScores) -> bool:
    """Remember the scores if they are the best so far; of equals, the later."""
    if scores.exact_match.ratio < at.best_exact_match:
        return False
    at.best_exact_match = scores.exact_match.ratio
    at.best_epoch = epoch
    at.best_scores = scores.to_dict()
    return True
