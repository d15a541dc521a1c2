"""Training is the plain loop it says it is: schedules, averaging, stopping, rates; and it ends clearly."""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_pipelines import QUIET, BatchCallback, build_parts, load_tagger, train_run

from seqpipe.config.loader import Config
from seqpipe.config.run_layout import HISTORY
from seqpipe.errors import TrainingError
from seqpipe.runs import train as training
from seqpipe.training.optim import make_optimizer, rate_factor
from seqpipe.training.progress import TrainingProgress
from seqpipe.training.trainer import Trainer

Weights = dict[str, torch.Tensor]
PATIENT = ("train.epochs=9", "train.patience=2", "train.batch_tokens=9999")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    yield
    torch.set_num_threads(1)


@pytest.mark.parametrize(("encoder", "available", "threads"), [("lstm", 8, 1), ("wide", 8, 5), ("wide", 2, 2)])
def test_a_small_model_trains_on_one_thread_and_others_on_one_more_for_every_half_million_weights(
    encoder: str, available: int, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "cores", lambda: available)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 16)
    pipeline, _ = build_parts(load_tagger(tmp_path))
    table = torch.nn.Embedding(1_000_000, 10)  # which does not count
    layer = torch.nn.Linear(2_000, 1_000 if encoder == "wide" else 10)
    assert training.thread_count(torch.nn.ModuleList([pipeline, table, layer])) == threads  # type: ignore[arg-type]


def test_a_run_leaves_the_number_of_threads_as_it_was(folder: Path) -> None:
    torch.set_num_threads(3)
    seen: list[int] = []
    console = BatchCallback(lambda count: seen.append(torch.get_num_threads()))
    train_run(load_tagger(folder, "train.epochs=1", "train.threads=2"), console)
    assert {*seen} == {2}
    assert torch.get_num_threads() == 3


def trained(config: Config, folder: Path, *scores: Any) -> tuple[Weights, TrainingProgress]:
    """The weights and progress after training with these dev scores, one an epoch; an exception is raised."""
    pipeline, batches = build_parts(config)
    left = iter(scores)

    def evaluate(check_interrupt: Callable[[], None]) -> Mapping[str, Any]:
        score = next(left)
        if isinstance(score, Exception):
            raise score
        return score if isinstance(score, dict) else {"f1": score, "labels": {}}

    progress = Trainer(pipeline, config, batches, evaluate if scores else None, folder / "checkpoints", QUIET).train()
    return pipeline.state_dict(), progress


def metrics_of(folder: Path) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl, which are JSON: NaN is no number in it."""
    lines = (folder / "checkpoints" / HISTORY).read_text().splitlines()
    return [json.loads(line, parse_constant=pytest.fail) for line in lines]


def plain_loop(config: Config, optimizer: type[torch.optim.Optimizer], **options: Any) -> tuple[Weights, Weights]:
    """The last weights and their moving average, written plainly."""
    pipeline, batches = build_parts(config)
    settings, step = config.train, 0
    steps = optimizer(pipeline.parameters(), lr=settings.optimizer.lr, **options)
    average = {name: p.detach().clone() for name, p in pipeline.named_parameters()}
    for epoch in range(settings.epochs):
        order = [batches(rows) for rows in batches.order(epoch)]
        windows = [order[i : i + settings.accumulate] for i in range(0, len(order), settings.accumulate)]
        for i, window in enumerate(windows):
            share = (epoch + i / len(windows)) / settings.epochs
            steps.param_groups[0]["lr"] = settings.optimizer.lr * rate_factor(settings, share)
            tokens = sum(batch["mask"].sum() for batch in window)
            sum(pipeline.loss(batch) * batch["mask"].sum() / tokens for batch in window).backward()
            if settings.clip:
                torch.nn.utils.clip_grad_norm_(pipeline.parameters(), settings.clip)
            steps.step()
            steps.zero_grad()
            step += 1
            decay = min(settings.average or 0, (1 + step) / (10 + step))
            for name, p in pipeline.named_parameters():
                average[name] = decay * average[name] + (1 - decay) * p.detach()
    return {name: p.detach() for name, p in pipeline.named_parameters()}, average


def assert_close(first: Weights, second: Weights) -> None:
    assert all(torch.allclose(first[name], second[name], atol=2e-5) for name in first)


def same(first: Weights, second: Weights) -> bool:
    return all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    ("optimizer", "settings", "options"),
    [
        (torch.optim.AdamW, "{use: adamw, lr: 0.01, weight_decay: 0.1}", {"weight_decay": 0.1}),
        (torch.optim.Adam, "{use: adam, lr: 0.01, betas: [0.8, 0.99]}", {"betas": (0.8, 0.99)}),
        (torch.optim.SGD, "{use: sgd, lr: 0.2, momentum: 0.9, nesterov: true}", {"momentum": 0.9, "nesterov": True}),
    ],
)
def test_training_is_the_plain_loop(tmp_path: Path, optimizer: Any, settings: str, options: dict[str, Any]) -> None:
    config = load_tagger(tmp_path, f"train.optimizer={settings}", "train.clip=0.5")
    expected, _ = plain_loop(config, optimizer, **options)
    assert_close(expected, trained(config, tmp_path)[0])


def test_accumulated_batches_and_averaged_weights_are_those_of_the_plain_loop(tmp_path: Path) -> None:
    schedule = "train.schedule={use: linear, warmup_ratio: 0.3}"
    config = load_tagger(tmp_path, "train.accumulate=2", "train.average=0.9", schedule)
    last, average = plain_loop(config, torch.optim.AdamW)
    weights, progress = trained(config, tmp_path)
    assert_close(average, weights)
    assert any(not torch.allclose(last[name], weights[name], atol=2e-5) for name in last)
    batches = build_parts(config)[1]
    assert progress.step == sum(math.ceil(len(batches.order(epoch)) / 2) for epoch in range(2))


def test_the_seed_alone_decides_the_weights_dropout_included(tmp_path: Path) -> None:
    dropout = ("head.dropout=0.5", "embedding.0.rare_dropout=0.5")
    config = load_tagger(tmp_path, *dropout)
    weights, _ = trained(config, tmp_path / "first")
    torch.manual_seed(123)
    assert same(weights, trained(config, tmp_path / "second")[0])
    assert not same(weights, trained(load_tagger(tmp_path, *dropout, "train.seed=2"), tmp_path / "third")[0])


def test_dropout_masks_differ_by_step_and_epoch(tmp_path: Path) -> None:
    config = load_tagger(tmp_path, "head.dropout=0.5")
    pipeline, batches = build_parts(config)
    masks: list[tuple[bool, ...]] = []
    pipeline.head.dropout.register_forward_hook(
        lambda module, _, x: masks.append(tuple((x == 0).flatten()[:40].tolist())) if module.training else None
    )
    Trainer(pipeline, config, batches, None, tmp_path / "checkpoints", QUIET).train()
    assert len(masks) == sum(len(batches.order(epoch)) for epoch in range(2))
    assert len({*masks}) == len(masks)


def test_without_a_dev_set_the_weights_are_those_of_the_last_epoch(tmp_path: Path) -> None:
    config = load_tagger(tmp_path, "train.epochs=3")
    weights, progress = trained(config, tmp_path)
    assert progress.best_epoch == 2
    assert_close(plain_loop(config, torch.optim.AdamW)[0], weights)


def test_with_a_dev_set_the_weights_are_those_of_the_best_epoch_and_patience_ends_training(tmp_path: Path) -> None:
    scores = (0.1, 0.5, 0.4, 0.5, 0.6)
    weights, progress = trained(load_tagger(tmp_path, "train.epochs=9", "train.patience=2"), tmp_path / "a", *scores)
    assert (progress.epoch, progress.best_epoch, progress.best) == (4, 1, 0.5)  # an equal score is not a better one
    assert_close(trained(load_tagger(tmp_path, "train.epochs=2"), tmp_path / "b")[0], weights)
    _, patient = trained(load_tagger(tmp_path, "train.epochs=5", "train.patience=3"), tmp_path / "c", *scores)
    assert (patient.epoch, patient.best_epoch) == (5, 4)


def test_the_lowest_dev_loss_decides_between_equal_dev_scores_and_patience_is_counted_on(tmp_path: Path) -> None:
    scores = [{"f1": f1, "loss": loss} for f1, loss in ((0.5, 0.9), (0.4, 0.1), (0.5, 0.7), (0.5, 0.8))]
    _, progress = trained(load_tagger(tmp_path, "train.epochs=9", "train.patience=3"), tmp_path, *scores)
    assert (progress.epoch, progress.best_epoch, progress.best_loss) == (4, 2, 0.7)


@pytest.mark.parametrize(
    ("scores", "end", "best"),
    [
        ((0.0, 0.0, 0.0, 0.0, 0.1, 0.1, 0.05, 0.9), 7, 4),  # it stays at 0 for longer than the patience
        ((0.25,) * 9, 9, 0),  # one that never moves: the epochs end training
        ((0.5, 0.5, 0.5, 0.4, 0.4, 0.9), 5, 0),  # one that falls: counted from there
        ((math.nan, math.nan, math.nan, 0.2, 0.1, math.nan, 0.9), 6, 3),  # none is defined at first
        ((1.0, 1.0, 1.0), 3, 0),  # nothing better can come
    ],
)
def test_patience_starts_with_the_first_move(tmp_path: Path, scores: tuple[float, ...], end: int, best: int) -> None:
    _, progress = trained(load_tagger(tmp_path, *PATIENT), tmp_path, *scores)
    assert (progress.epoch, progress.best_epoch) == (end, best)


def test_a_resumed_run_still_knows_whether_the_score_had_moved(tmp_path: Path) -> None:
    config, scores = load_tagger(tmp_path, *PATIENT), (0.0, 0.0, 0.0, 0.1, 0.0, 0.0, 0.9)
    for killed in (2, 5):
        folder = tmp_path / f"killed-{killed}"
        with pytest.raises(ZeroDivisionError):
            trained(config, folder, *scores[:killed], ZeroDivisionError())
        _, progress = trained(config, folder, *scores[killed:])
        assert (progress.epoch, progress.best_epoch) == (6, 3)


def test_an_error_of_0_ends_training_after_the_patience(tmp_path: Path) -> None:
    config = load_tagger(tmp_path, *PATIENT, "train.metric=-f1")
    for error, epochs in ((0.0, 3), (1.0, 9)):
        assert trained(config, tmp_path / str(epochs), *[error] * epochs)[1].epoch == epochs


def test_the_best_weights_the_last_state_and_a_line_of_metrics_for_each_epoch_are_kept(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / ".last.ckpt.abc.part").write_bytes(b"half")  # of a process that was killed
    trained(load_tagger(tmp_path, "train.epochs=3"), tmp_path, 0.25, 0.5, 0.125)
    files = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert files == ["best-0002.safetensors", "last.ckpt", HISTORY]
    rows = metrics_of(tmp_path)
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    assert [row["dev"] for row in rows] == [{"f1": 0.25}, {"f1": 0.5}, {"f1": 0.125}]
    assert [row["best"] for row in rows] == [True, True, False]
    assert rows[0]["loss"] > rows[1]["loss"] > rows[2]["loss"] > 0


def test_on_a_plateau_the_rate_falls_each_time_the_patience_is_up(tmp_path: Path) -> None:
    config = load_tagger(tmp_path, "train.epochs=7", "train.schedule={use: plateau, factor: 0.1, patience: 2}")
    _, progress = trained(config, tmp_path, 0.5, 0.4, 0.4, 0.4, 0.6, 0.1, 0.1)
    rates = [row["lr"] for row in progress.history]
    assert rates == pytest.approx([0.02, 0.02, 0.02, 0.002, 0.002, 0.002, 0.002])
    assert progress.factor == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("{use: constant}", {0: 1, 0.5: 1, 1: 1}),
        ("{use: constant, warmup_ratio: 0.2}", {0: 0.0005, 0.1: 0.5, 0.2: 1, 0.9: 1}),
        ("{use: linear, warmup_ratio: 0.2}", {0.1: 0.5, 0.2: 1, 0.6: 0.5, 1: 0}),
        ("{use: linear, final_ratio: 0.5}", {0: 1, 0.5: 0.75, 1: 0.5}),
        ("{use: cosine}", {0: 1, 0.25: (1 + 2**-0.5) / 2, 0.5: 0.5, 1: 0}),
        ("{use: cosine, warmup_ratio: 0.5, final_ratio: 0.2}", {0.25: 0.5, 0.5: 1, 0.75: 0.6, 1: 0.2}),
    ],
)
def test_schedules_have_values_of_their_formulas(tmp_path: Path, schedule: str, expected: dict[float, float]) -> None:
    settings = load_tagger(tmp_path, f"train.schedule={schedule}").train
    assert {share: rate_factor(settings, share) for share in expected} == pytest.approx(expected)


def test_a_stage_with_another_rate_is_another_group(tmp_path: Path) -> None:
    config = load_tagger(tmp_path, "encoder.lr=0.5", "embedding.0.freeze=true")
    pipeline, _ = build_parts(config)
    groups = make_optimizer(pipeline, config).param_groups
    assert {group["lr"]: sum(p.numel() for p in group["params"]) for group in groups} == {
        0.02: sum(p.numel() for part in (pipeline.embedding[1], pipeline.head) for p in part.parameters()),
        0.5: sum(p.numel() for p in pipeline.encoder.parameters()),
    }


def test_the_schedule_keeps_the_ratio_of_the_stages_rates(tmp_path: Path) -> None:
    rates = ("train.optimizer={use: sgd, lr: 1e-9}", "encoder.lr=0.5", "train.schedule=linear")
    assert moved_stages(load_tagger(tmp_path, *rates, "train.epochs=1"), tmp_path, 1e-7) == {"encoder"}


def test_a_frozen_stage_keeps_its_weights(tmp_path: Path) -> None:
    config = load_tagger(tmp_path, "embedding.0.freeze=true", "encoder.freeze=true")
    assert moved_stages(config, tmp_path) == {"embedding.1", "heads"}


def moved_stages(config: Config, folder: Path, tolerance: float = 0) -> set[str]:
    """The stages whose weights differ by more than a tolerance after training."""
    before, (after, _) = build_parts(config)[0].state_dict(), trained(config, folder)
    moved = [name for name in after if (before[name] - after[name]).abs().max() > tolerance]
    return {re.sub(r"(embedding\.\d|\w+).*", r"\1", name) for name in moved}


def test_if_every_stage_is_frozen_there_is_nothing_to_train(tmp_path: Path) -> None:
    frozen = [f"{stage}.freeze=true" for stage in ("embedding.0", "embedding.1", "encoder", "head")]
    with pytest.raises(TrainingError, match="every stage is frozen"):
        trained(load_tagger(tmp_path, *frozen), tmp_path)


def test_a_loss_that_is_no_number_ends_training_with_its_place_and_a_cure(tmp_path: Path) -> None:
    config = load_tagger(tmp_path)
    pipeline, batches = build_parts(config)
    with torch.no_grad():
        pipeline.head.emissions.bias[0] = math.nan
    with pytest.raises(TrainingError, match=r"the loss became nan in epoch 1, step 1; lower train\.optimizer\.lr"):
        Trainer(pipeline, config, batches, None, tmp_path / "checkpoints", QUIET).train()


@pytest.mark.parametrize("dev", [False, True])
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("{use: sgd, lr: 1e30}", r"the weights diverged: their loss is (nan|inf) after the last step"),
        ("{use: sgd, lr: 1e38, momentum: 0.9, weight_decay: 1e10}", "the weights became NaN or infinite"),
    ],
)
def test_a_last_step_that_diverges_ends_training(tmp_path: Path, settings: str, message: str, dev: bool) -> None:
    config = load_tagger(tmp_path, f"train.optimizer={settings}", "train.epochs=1", "train.batch_tokens=9999")
    with pytest.raises(TrainingError, match=rf"{message} in epoch 1, step 1; lower train\.optimizer\.lr, or .*\("):
        trained(config, tmp_path, *[0.5] * dev)
    assert not list((tmp_path / "checkpoints").glob("best-*"))


def test_a_dev_score_of_nan_is_never_the_best(tmp_path: Path) -> None:
    config = load_tagger(tmp_path, "train.epochs=5")
    _, progress = trained(config, tmp_path / "a", math.nan, 0.2, math.nan, 0.4, 0.1)
    assert (progress.best_epoch, progress.best) == (3, 0.4)
    assert [row["best"] for row in progress.history] == [False, True, False, True, False]
    assert [row["dev"]["f1"] for row in metrics_of(tmp_path / "a")] == [None, 0.2, None, 0.4, 0.1]
    for _ in range(2):  # the second time nothing is trained, and the error is the same
        with pytest.raises(TrainingError, match=r"NaN or infinite in each of 5 epochs.*train\.metric"):
            trained(config, tmp_path / "b", *[math.nan] * 5)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_steps_of_an_epoch_are_those_that_are_asked_for(tmp_path: Path, accumulate: int) -> None:
    settings = ["train.epochs=3", "train.epoch_steps=2", f"train.accumulate={accumulate}"]
    _, progress = trained(load_tagger(tmp_path, *settings), tmp_path)
    assert [row["step"] for row in progress.history] == [2, 4, 6]


def test_a_finished_training_is_not_trained_again(tmp_path: Path) -> None:
    config = load_tagger(tmp_path)
    weights, _ = trained(config, tmp_path, 0.5, 0.4)
    written = (tmp_path / "checkpoints" / "last.ckpt").stat().st_mtime_ns
    loaded, progress = trained(config, tmp_path, 0.9)
    assert same(weights, loaded)
    assert progress.done
    assert (tmp_path / "checkpoints" / "last.ckpt").stat().st_mtime_ns == written
