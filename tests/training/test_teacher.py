"""Students of a teacher: which distributions and texts they learn, on which records, and runs without their teacher."""

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from gallery import train_settings, write_pipeline
from test_token_corpus import yaml as write_language_model
from tiny_pipelines import (
    QUIET,
    BatchCallback,
    begin_run,
    labelled_texts,
    plugins,
    succeed,
    tagged_sentences,
    toy_heads,
    train_run,
    write_classifier,
    write_jsonl,
    write_seq2seq,
    write_tagger,
)
from torch.nn import functional as F

from seqpipe.config.loader import Config, load_config, resolved
from seqpipe.errors import ConfigError, DataError, UsageError
from seqpipe.nn import crf
from seqpipe.runs.check import build_trial
from seqpipe.training import checkpoint
from seqpipe.training.data_forms import data_form
from seqpipe.training.fit import fit_artifacts
from seqpipe.training.network import Network
from seqpipe.training.teacher import teacher_answers

LABEL = {"use": "label", "pool": "mean"}
TAUGHT = {"path": "runs/teacher", "weight": 0.75, "temperature": 3.0}


pytestmark = pytest.mark.usefixtures("folder")


def teach(yaml: Path, *overrides: str) -> Path:
    """The folder of a teacher's run of one epoch."""
    train_run(load_config(yaml, ["name=teacher", "train.epochs=1", *overrides]))
    return Path("runs/teacher").absolute()


def student(yaml: Path, *overrides: str, **keys: Any) -> Config:
    return load_config(yaml, [f"train.teacher={json.dumps(TAUGHT | keys)}", *overrides])


def lesson(config: Config) -> tuple[Network, Any, list[Any]]:
    """A student's pipeline, its training data, and the answers that it learns."""
    form = data_form(config)
    records = list(form.read(config.data.train))
    unlabelled = form.read(config.data.unlabelled) if config.data.unlabelled else []
    artifacts = fit_artifacts(config, records)
    answers = teacher_answers(config, artifacts, [*records, *unlabelled], None, QUIET, "cpu")
    form.soft_targets, form.unlabelled = answers, unlabelled
    data = form.load(artifacts, records)
    torch.manual_seed(2)  # not that of the teacher
    return Network(config, artifacts).eval(), data.batches, answers


def multi_labelling(folder: Path) -> Path:
    def records(count: int, seed: int) -> list[dict[str, Any]]:
        return [{"text": row["text"], "labels": [row["label"], row["text"][-5]]} for row in labelled_texts(count, seed)]

    head = {**LABEL, "multi": True}
    return write_pipeline(
        folder, records, "moods", (24, 12, 12), tokenizer="words", head=head, train=train_settings(6, 0.05)
    )


def language_model(folder: Path) -> Path:
    train = {"batch_size": 3, "optimizer": {"use": "adamw", "lr": 0.05}}
    return write_language_model(folder, head={"use": "lm", "packed": False}, train=train)


HEADS = {
    "label": lambda folder: write_classifier(folder, {"head": LABEL}),
    "labels": multi_labelling,
    "tags": lambda folder: write_tagger(folder, {"head": "tags"}),
    "crf": write_tagger,
    "lm": language_model,
}


@pytest.mark.parametrize("kind", HEADS)
def test_a_student_with_the_weights_of_its_teacher_has_nothing_to_learn_from_it(tmp_path: Path, kind: str) -> None:
    yaml = HEADS[kind](tmp_path)
    run = teach(yaml, "train.epochs=4")
    network, batches, answers = lesson(student(yaml, weight=1.0))
    assert all(torch.allclose(row[""].sum(-1), torch.tensor(1.0)) for row in answers) or kind == "labels"
    batch = batches(batches.order(0)[0])
    fresh = network.loss(batch).item()
    network.load_state_dict(checkpoint.load_best(run / "checkpoints"))
    assert abs(network.loss(batch).item()) < 1e-5 < fresh / 50
    without_teacher = Network(load_config(yaml), network.artifacts).eval()
    without_teacher.load_state_dict(network.state_dict())
    assert without_teacher.loss(batch).item() > 0.1  # the labels still have something to teach


def test_the_probability_of_a_tag_is_the_sum_over_all_sequences_with_it() -> None:
    torch.manual_seed(1)
    emissions, steps = torch.randn(1, 3, 2), torch.randn(2, 2)
    start, end = torch.randn(2), torch.randn(2)
    sums = torch.zeros(3, 2)
    for path in itertools.product(range(2), repeat=3):
        score = start[path[0]] + end[path[-1]] + sum(emissions[0, t, tag] for t, tag in enumerate(path))
        score += sum(steps[a, b] for a, b in itertools.pairwise(path))
        for t, tag in enumerate(path):
            sums[t, tag] += score.exp()
    bounded = crf.bounded(emissions, torch.ones(1, 3, dtype=torch.bool)).requires_grad_()
    log_p = crf.tag_log_probabilities(bounded, crf.chain(start, end, steps))
    torch.testing.assert_close(log_p[:, :2, 0].exp(), sums / sums.sum(1, keepdim=True))
    log_p[0, 0].sum().backward()
    assert bounded.grad[2].abs().sum() > 0  # the first tag depends on the last token


def test_the_loss_is_the_weighted_sum_of_labels_and_teacher_or_of_the_teacher_alone(tmp_path: Path) -> None:
    yaml = write_classifier(tmp_path, {"head": {**LABEL, "class_weights": {"bad": 3.0}}})
    teach(yaml)
    write_jsonl(tmp_path / "more.jsonl", [{**row, "label": "unknown"} for row in labelled_texts(9, 5)])
    network, batches, answers = lesson(student(yaml, "data.unlabelled=more.jsonl"))
    assert len(answers) == 60 + 9
    order = batches.order(0)
    assert sorted(i for rows in order for i in rows) == [*range(69)]
    assert {"label" in batches(rows) for rows in order} == {True, False}
    labels, weight, T = network.artifacts.tasks[0].labels, TAUGHT["weight"], TAUGHT["temperature"]
    for rows in order:
        batch = batches(rows)
        with torch.no_grad():
            z = network.head.distribution(network(batch)["x"], batch["mask"], temperature=1.0)
        p = torch.stack([answers[i][""][0] for i in rows])
        expected = weight * T**2 * F.kl_div((z / T).log_softmax(1), p, reduction="batchmean")
        if "label" in batch:
            weights = torch.tensor([3.0 if label == "bad" else 1.0 for label in labels])[batch["label"]]
            expected += (1 - weight) * (weights * F.cross_entropy(z, batch["label"], reduction="none")).mean()
        torch.testing.assert_close(network.loss(batch).detach(), expected)


def test_labels_are_matched_by_name(tmp_path: Path) -> None:
    yaml = write_classifier(tmp_path, {"head": LABEL})
    run = teach(yaml)
    _, _, before = lesson(student(yaml))
    learned = json.loads((run / "learned.json").read_text())
    names = learned["tasks"][0]["labels"]
    rotated = [*names[1:], names[0]]  # the same columns under other names
    learned["tasks"][0]["labels"] = learned["tasks"][0]["answer"]["labels"] = rotated
    (run / "learned.json").write_text(json.dumps(learned))
    _, _, after = lesson(student(yaml))
    for old, new in zip(before, after, strict=True):
        assert new[""][0].tolist() == [old[""][0][rotated.index(name)].item() for name in names]
    assert len({tuple(row[""][0].tolist()) for row in after}) > 3


def test_a_bundle_without_its_run_teaches_labels_as_its_run_does(tmp_path: Path) -> None:
    yaml = write_classifier(tmp_path, {"head": LABEL})
    succeed("run", yaml, "name=teacher", "train.epochs=1")
    of_run = student(yaml, path="runs/teacher/bundle")
    assert of_run == student(yaml)
    _, _, by_run = lesson(of_run)
    shutil.copytree(tmp_path / "runs/teacher/bundle", tmp_path / "alone")
    _, _, by_bundle = lesson(load_config(yaml, ["train.teacher={path: alone, temperature: 3.0}"]))
    for first, second in zip(by_run, by_bundle, strict=True):
        torch.testing.assert_close(first[""], second[""], atol=1e-5, rtol=0)
    with pytest.raises(UsageError, match="alone answers with label, and the head 'tags' with tags"):
        lesson(
            load_config(write_tagger(tmp_path, {"head": {"use": "tags", "scheme": "none"}}), ["train.teacher=alone"])
        )


def test_the_texts_of_a_beam_search_are_targets_beside_those_of_the_records(tmp_path: Path) -> None:
    yaml = write_seq2seq(tmp_path)
    teach(yaml, "train.epochs=3", "data.dev=null")
    write_jsonl(tmp_path / "more.jsonl", [{"text": "abc"}, {"text": "fed"}])
    network, batches, answers = lesson(student(yaml, "data.unlabelled=more.jsonl", beams=2))
    tokenizer, texts = network.artifacts.tasks[0].target_tokenizer, 0
    for rows in batches.order(0):
        batch = batches(rows)
        for place, i in enumerate(rows):
            text = answers[i][""].strip()
            if text:
                ids = batch["teacher.target_ids"][place][batch["teacher.target_mask"][place]]
                assert tokenizer.decode(ids[:-1].tolist()).replace(" ", "") == text.replace(" ", "")
                texts += 1
        assert ("target_ids" in batch) == (rows[0] < 40)
        expected = torch.zeros(())
        for prefix, weight in (("", 0.25), ("teacher.", 0.75)):
            if prefix + "target_ids" in batch:
                targets = {name: batch[prefix + name] for name in ("target_ids", "target_mask")}
                expected = expected + weight * network.head_stages[0].loss({**network(batch), **targets})
        torch.testing.assert_close(network.loss(batch), expected)
    assert texts > 20


def test_several_heads_and_parts_of_long_texts_keep_the_answers_about_their_words(tmp_path: Path) -> None:
    heads = [{"use": "label", "multi": True, "weight": 0.5}, {"use": "crf"}]
    yaml = write_tagger(tmp_path, {"data": {"reader": "jsonl", "train": "train.jsonl"}, "head": heads})
    records = [{"words": words, "tags": tags, "labels": [tags[0]]} for words, tags in tagged_sentences(12, 1)]
    write_jsonl(tmp_path / "train.jsonl", records)
    write_jsonl(tmp_path / "more.jsonl", [{"words": words} for words, _ in tagged_sentences(6, 2)])
    teach(yaml)
    cut = ["train.max_tokens=5", "train.too_long=truncate", "data.unlabelled=more.jsonl", "train.precision=bf16"]
    network, batches, answers = lesson(student(yaml, *cut))
    assert max(len(row["crf"]) for row in answers) > 5
    for example, answer in zip(batches.data, answers, strict=True):
        assert torch.equal(example.soft_targets["label.teacher.p"], answer["label"])
        assert torch.equal(example.soft_targets["crf.teacher.p"], answer["crf"][: len(example.doc)])
    for rows in batches.order(0):
        with torch.autocast("cpu", torch.bfloat16):
            network.loss(batches(rows)).backward()
    assert all(parameter.grad is not None for parameter in network.heads.parameters())


def test_a_run_resumes_bit_equal_without_its_teacher(tmp_path: Path) -> None:
    yaml = write_classifier(tmp_path, {"head": {**LABEL, "dropout": 0.3}})
    teach(yaml)
    write_jsonl(tmp_path / "more.jsonl", labelled_texts(20, 7))
    settings = ["data.unlabelled=more.jsonl", "train.epochs=2", "train.accumulate=2", "train.checkpoint_steps=1"]

    def stop(count: int) -> None:
        if count == 4:
            raise KeyboardInterrupt

    whole = train_run(student(yaml, *settings, "name=whole")).network
    with pytest.raises(KeyboardInterrupt):
        train_run(student(yaml, *settings, "name=cut"), BatchCallback(stop))
    shutil.rmtree("runs/teacher")
    resumed = train_run(student(yaml, *settings, "name=cut")).network
    for name, weights in whole.state_dict().items():
        assert torch.equal(weights, resumed.state_dict()[name]), name
    with pytest.raises(UsageError, match=r"train\.teacher: no such run"):
        train_run(student(yaml, *settings, "name=other"))
    config = student(yaml, *settings)
    assert load_config(resolved(config, tmp_path)).train == config.train  # a path of the file's folder


def test_a_teacher_that_does_not_fit_is_refused_with_the_fix(tmp_path: Path) -> None:
    yaml = write_classifier(tmp_path, {"head": LABEL})
    run = teach(yaml)
    write_jsonl(tmp_path / "train.jsonl", [*labelled_texts(20, 1), {"text": "so what", "label": "neutral"}])
    with pytest.raises(UsageError, match=r"runs/teacher has other labels: it lacks 1, 'neutral'; both need"):
        build_trial(student(yaml))  # as `seqpipe check` does
    changes = ["head={use: mean, order: [bad, fine, good]}", f"train.teacher={json.dumps(TAUGHT)}"]
    with pytest.raises(UsageError, match="cannot teach the head 'mean'; a head with a `distribution` can"):
        lesson(load_config(yaml, changes, plugins(**toy_heads())))
    with pytest.raises(ConfigError, match=r"data.unlabelled: nothing reads it; .*add train.teacher"):
        load_config(yaml, ["data.unlabelled=train.jsonl"])
    with pytest.raises(ConfigError, match=r"train.teacher.weigth: 'teacher' has no such key; did you mean 'weight'"):
        load_config(yaml, ["train.teacher={path: runs/teacher, weigth: 1.0}"])
    lm = language_model(tmp_path)
    train_run(load_config(lm, ["name=writer"]))
    with pytest.raises(UsageError, match=r"answers whole texts, .*; set head.packed: false"):
        lesson(load_config(lm, ["head.packed=true", "head.context=5", "train.teacher=runs/writer"]))
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(UsageError, match="the run runs/teacher is not trained yet; train it first"):
        lesson(student(yaml))


def test_a_damaged_teacher_the_run_itself_and_empty_texts_are_refused_by_name(tmp_path: Path) -> None:
    yaml = write_classifier(tmp_path, {"head": LABEL})
    run = teach(yaml)
    write_jsonl(tmp_path / "blank.jsonl", [{"text": " "}])
    with pytest.raises(DataError, match=r"blank\.jsonl: every text is empty"):
        lesson(student(yaml, "data.unlabelled=blank.jsonl"))
    with pytest.raises(UsageError, match=r"train\.teacher names this run's own folder, runs/teacher; give the YAML"):
        begin_run(student(yaml, "name=teacher"), fresh=True)
    tokenizer = run / "tokenizer.json"
    tokenizer.write_bytes(tokenizer.read_bytes()[:99])
    with pytest.raises(DataError, match=r"runs/teacher/tokenizer\.json: damaged: .*; run with --fresh"):
        lesson(student(yaml))


def test_a_teacher_that_reads_other_words_is_refused(tmp_path: Path) -> None:
    yaml = write_tagger(tmp_path, {"data": {"reader": "jsonl", "train": "train.jsonl"}, "head": "tags"})
    records = [{"text": "Ada-Bob ran", "spans": [{"start": 0, "end": 7, "label": "PER"}]}] * 4
    write_jsonl(tmp_path / "train.jsonl", records)
    teach(yaml, "tokenizer={use: words}", "data.misaligned=widen", "train.batch_tokens=48")
    message = r"train.jsonl:1: train.teacher: runs/teacher splits it into other words; write"
    with pytest.raises(DataError, match=message):
        lesson(student(yaml, "tokenizer=chars", "embedding={use: lookup, dim: 8}"))
