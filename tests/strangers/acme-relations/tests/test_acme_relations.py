import json
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from acme_relations.head import Relations

from seqpipe.plugin import check_head

LABELS = {"relations": ["none", "lives-in", "works-for"], "topic": ["home", "work"]}
PEOPLE, FIRMS, TOWNS = ["Ada", "Ben", "Cleo", "Dan"], ["Acme", "Globex", "Initech"], ["Bern", "Oslo", "Lima"]

PIPELINE = """
name: relations
data: {reader: {use: jsonl}, train: train.jsonl, dev: dev.jsonl}
tokenizer: {use: words}
embedding: {use: lookup, dim: 32}
encoder: {use: lstm, hidden: 32}
head: {use: relations, hidden: 16}
train: {epochs: 15, batch_tokens: 128, optimizer: {use: adamw, lr: 0.02}, schedule: linear}
"""

# A machine with neither PyTorch nor this package.
DEPLOYMENT = """
import json, sys
sys.modules["torch"] = sys.modules["acme_relations"] = None
import seqpipe
model = seqpipe.load("runs/relations/bundle")
print(json.dumps(model("Cleo works for Acme and Dan lives in Oslo")))
"""


def record(facts: list[str], labels: list[str], topic: str) -> dict[str, Any]:
    """One fact or two; a fact has four words, from a person to a firm or a town."""
    text = " and ".join(facts)
    pairs = [{"from": 5 * i, "to": 5 * i + 3, "label": label} for i, label in enumerate(labels)]
    return {"text": text, "words": text.split(), "relations": pairs, "topic": topic}


def records() -> list[dict[str, Any]]:
    """Sentences of two facts and of one; the topic is that of the first."""
    facts = [(f"{who} works for {firm}", "works-for", "work") for who in PEOPLE for firm in FIRMS]
    facts += [(f"{who} lives in {town}", "lives-in", "home") for who in PEOPLE for town in TOWNS]
    double = [record([a, b], [label, other], topic) for (a, label, topic), (b, other, _) in product(facts, facts[::5])]
    return double + [record([fact], [label], topic) for fact, label, topic in facts]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run of a pipeline that ended in a verified bundle."""
    folder = tmp_path_factory.mktemp("relations")
    (folder / "relations.yaml").write_text(PIPELINE, encoding="utf-8")
    rows = records()
    for name, part in (("train", rows), ("dev", rows[::3])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part), encoding="utf-8")
    python(folder, "-m", "seqpipe", "run", "relations.yaml")
    return folder


def python(folder: Path, *arguments: str) -> str:
    process = subprocess.run([sys.executable, "-P", *arguments], cwd=folder, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


@pytest.mark.parametrize("outside", ["none", "unrelated"])
def test_it_keeps_the_contract_of_heads(outside: str) -> None:
    check_head(Relations, outside=outside, hidden=8, dropout=0.1)


def test_the_logits_of_a_pair_are_biaffine() -> None:
    head = Relations(5, LABELS, hidden=4).eval()
    x = torch.randn(1, 3, 5)
    with torch.no_grad():
        log_p = head._log_p(x, torch.ones(1, 3).bool())[0][0]
        for i in range(3):
            for j in range(3):
                u, v = head.source(x[0, i]), head.target(x[0, j])
                a, b, c = head.source_bias.weight, head.target_bias.weight, head.source_bias.bias
                logits = torch.stack([u @ head.product[k] @ v + a[k] @ u + b[k] @ v + c[k] for k in range(3)])
                torch.testing.assert_close(log_p[i, j], logits.log_softmax(0))


def test_relations_have_a_direction() -> None:
    head = Relations(5, LABELS, hidden=4).eval()
    log_p = head._log_p(torch.randn(1, 2, 5), torch.ones(1, 2).bool())[0][0]
    assert not torch.allclose(log_p[0, 1], log_p[1, 0])


def test_pair_recall_ignores_the_relation() -> None:
    first, second, third = (0, 3), (14, 18), (23, 27)
    gold = [{"relations": {(first, second): "works-for", (second, third): "lives-in"}, "topic": "work"}]
    answer = [{"relations": {(first, second): "lives-in", (third, first): "lives-in"}, "topic": "work"}]
    assert Relations.metrics({}, gold, answer) == {"pair_recall": 0.5}
    assert Relations.metrics({}, [{"relations": {}}], [{"relations": {}}]) == {"pair_recall": 0.0}


def test_the_bundle_answers_without_torch_and_without_this_package(folder: Path) -> None:
    answer = json.loads(python(folder, "-c", DEPLOYMENT))
    relations = {(pair["from"], pair["to"], pair["label"]) for pair in answer["relations"]}
    assert relations == {(0, 3, "works-for"), (5, 8, "lives-in")}
    assert all(pair["score"] > 0.5 for pair in answer["relations"])
    assert (answer["topic"], [word["word"] for word in answer["words"]][3]) == ("work", "Acme")


def test_the_bundle_is_verified_and_scored(folder: Path) -> None:
    python(folder, "-m", "seqpipe", "verify", "runs/relations/bundle")
    answered = python(folder, "-m", "seqpipe", "evaluate", "runs/relations/bundle", "--data", "dev.jsonl", "--json")
    scores = json.loads(answered)["dev.jsonl"]
    assert next(iter(scores)) == "relations_f1"  # what the first field is scored by is the headline
    assert min(scores["relations_f1"], scores["topic_accuracy"], scores["pair_recall"]) > 0.95
