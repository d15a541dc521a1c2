import json
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
import torch
from acme_parser.head import BiaffineParser
from acme_parser.reader import Dependencies
from acme_parser.tree import spanning_tree

from seqpipe.plugin import DataError, check_head, check_reader

PIPELINE = """
name: parser
data: {reader: {use: dependencies}, train: train.conllu, dev: dev.conllu}
tokenizer: {use: words, lowercase: true}
embedding: {use: lookup, dim: 32}
encoder: {use: lstm, hidden: 32}
head: {use: biaffine-parser, arc_dim: 32, relation_dim: 16, dropout: 0.0}
train: {epochs: 12, batch_tokens: 128, optimizer: {use: adamw, lr: 0.02}, schedule: linear}
"""

# A machine with neither PyTorch nor this package.
DEPLOYMENT = """
import json, sys
sys.modules["torch"] = sys.modules["acme_parser"] = None
import seqpipe
model = seqpipe.load("runs/parser/bundle")
print(json.dumps(model(["the dog sees a big cat", "dogs sleep"])))
"""


def is_tree(heads: tuple[int, ...]) -> bool:
    """Return whether one word is the root, and every other word is below it."""
    if heads.count(-1) != 1:
        return False
    for position in range(len(heads)):
        for _ in heads:
            position = heads[position] if position >= 0 else -1
        if position != -1:
            return False
    return True


def best_by_enumeration(arcs: torch.Tensor) -> tuple[int, ...]:
    """The best heads among all trees, of (T, 1 + T) scores."""
    length = len(arcs)
    choices = [[head for head in range(-1, length) if head != position] for position in range(length)]
    return max(
        filter(is_tree, product(*choices)),
        key=lambda heads: sum(arcs[i, head + 1].item() for i, head in enumerate(heads)),
    )


def line(identifier: str, word: str, head: str, relation: str) -> str:
    return "\t".join([identifier, word, "_", "_", "_", "_", head, relation, "_", "_"]) + "\n"


def sentence(text: str) -> str:
    """A sentence in CoNLL-U: the verb is the root, determiners and adjectives depend on the noun after them."""
    words, lines = text.split(), []
    root = next(i for i, word in enumerate(words) if word in ("sees", "likes", "sleep", "sleeps"))
    for i, word in enumerate(words):
        head, relation = root + 1, "nsubj" if i < root else "obj"
        if i == root:
            head, relation = 0, "root"
        elif word in ("the", "a", "big", "old"):
            head = next(j for j in range(i, len(words)) if words[j] in ("dog", "cat", "dogs", "cats")) + 1
            relation = "det" if word in ("the", "a") else "amod"
        lines.append(line(str(i + 1), word, str(head), relation))
    return "".join(lines) + "\n"


def python(folder: Path, *arguments: str) -> str:
    process = subprocess.run([sys.executable, "-P", *arguments], cwd=folder, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


def test_a_bundle_answers_with_trees_without_torch_and_without_this_package(tmp_path: Path) -> None:
    phrases = [f"{start} {noun}" for start in ("the", "a", "the big", "the old", "a big") for noun in ("dog", "cat")]
    sentences = [f"{a} {verb} {b}" for a in phrases for b in phrases[::3] for verb in ("sees", "likes")]
    sentences += [f"{a} sleeps" for a in phrases] + ["dogs sleep", "cats sleep", "big dogs sleep", "old cats sleep"]
    (tmp_path / "train.conllu").write_text("".join(map(sentence, sentences)), encoding="utf-8")
    (tmp_path / "dev.conllu").write_text("".join(map(sentence, sentences[::4])), encoding="utf-8")
    (tmp_path / "parser.yaml").write_text(PIPELINE, encoding="utf-8")
    python(tmp_path, "-m", "seqpipe", "run", "parser.yaml")
    python(tmp_path, "-m", "seqpipe", "verify", "runs/parser/bundle")
    scores = json.loads((tmp_path / "runs/parser/metrics.json").read_text())["dev"]
    assert next(iter(scores)) == "las"  # it is declared, so it selects the best epoch
    assert min(scores["las"], scores["head_accuracy"], scores["relation_accuracy"]) > 0.95
    first, second = json.loads(python(tmp_path, "-c", DEPLOYMENT))
    assert [word["head"] for word in first["words"]] == [1, 2, None, 5, 5, 2]
    assert [word["relation"] for word in first["words"]] == ["det", "nsubj", "root", "det", "amod", "obj"]
    assert [word["word"] for word in first["words"]] == ["the", "dog", "sees", "a", "big", "cat"]
    assert [word["head"] for word in second["words"]] == [1, None]
    assert all(word["head_score"] > 0.5 for word in first["words"])


def test_the_parser_keeps_the_contract_of_heads() -> None:
    check_head(BiaffineParser, arc_dim=8, relation_dim=4, dropout=0.1)


def test_the_best_of_all_trees_is_decided_for() -> None:
    torch.manual_seed(1)
    lengths = [length for length in (1, 2, 3, 4, 5) for _ in range(24)]
    arcs = torch.randn(len(lengths), 6, 7)
    mask = torch.arange(6) < torch.tensor(lengths)[:, None]
    arcs = torch.where(mask[:, :, None] & torch.cat([torch.ones(len(lengths), 1).bool(), mask], 1)[:, None], arcs, 1e4)
    trees = spanning_tree(arcs, mask)
    for row, length in enumerate(lengths):
        best = best_by_enumeration(arcs[row, :length, : length + 1])
        assert tuple(trees[row, :length].tolist()) == best


def test_long_sentences_have_trees() -> None:
    torch.manual_seed(2)
    lengths = [60, 33, 59]
    heads = spanning_tree(torch.randn(3, 60, 61), torch.arange(60) < torch.tensor(lengths)[:, None])
    assert all(is_tree(tuple(row[:length].tolist())) for row, length in zip(heads, lengths, strict=True))


def test_arc_scores_are_dozat_and_mannings() -> None:
    parser = BiaffineParser(3, {"relation": ["a", "b"]}, arc_dim=2, relation_dim=2, dropout=0.0).eval()
    x, mask = torch.randn(1, 2, 3), torch.ones(1, 2).bool()
    with torch.no_grad():
        arcs, _ = parser._log_p(x, mask, torch.tensor([[-1, 0]]))
        weight, rows = parser.arc.weight[0], torch.cat([parser.root[None], x[0]])
        for i in range(2):
            dependent = parser.arc_dependent(x[0, i])
            logits = [
                dependent @ weight[:2, :2] @ head + weight[2, :2] @ head + dependent @ weight[:2, 2] + weight[2, 2]
                for head in parser.arc_head(rows)
            ]
            logits[i + 1] = torch.tensor(-1e4)
            torch.testing.assert_close(arcs[0, i], torch.stack(logits).log_softmax(0))


def test_trees_that_tie_have_no_margin_and_others_have() -> None:
    parser = BiaffineParser(3, {"relation": ["a", "b"]}, arc_dim=2, relation_dim=2).eval()
    with torch.no_grad():
        parser.arc.weight.zero_()  # every head is as good as any other
    x, mask = torch.randn(1, 3, 3), torch.ones(1, 3).bool()

    def decision(*heads: int) -> tuple[torch.Tensor, torch.Tensor]:
        head = torch.tensor([heads])
        return head, parser._log_p(x, mask, head)[1].argmax(2)

    (head, relation), (other, others) = decision(-1, 0, 0), decision(-1, 0, 1)
    assert parser.margin(x, mask, head, relation, other, others).item() == pytest.approx(0, abs=1e-5)
    assert parser.margin(x, mask, head, relation, other, 1 - others).item() > 1e-3
    with torch.no_grad():
        parser.arc.weight.normal_()
    (head, relation), (other, others) = decision(-1, 0, 0), decision(-1, 0, 1)
    assert parser.margin(x, mask, head, relation, other, others).item() > 1e-3


def test_labelled_attachment_needs_head_and_relation() -> None:
    first, second = (0, 3), (4, 10)
    gold = [{"head": {first: second, second: None}, "relation": {first: "nsubj", second: "root"}}]
    answer = [{"head": {first: second, second: None}, "relation": {first: "obj", second: "root"}}]
    assert BiaffineParser.metrics({}, gold, gold) == {"las": 1.0}
    assert BiaffineParser.metrics({}, gold, answer) == {"las": 0.5}
    assert BiaffineParser.metrics({}, gold, [{"head": {}, "relation": {}}]) == {"las": 0.0}


WORDS = ["1 Ada 4 nsubj", "2-3 doesn't _ _", "2 does 4 aux:neg", "3 n't 4 advmod", "3.1 ever _ _", "4 sleep 0 root"]
GOOD = "# text = Ada doesn't sleep\n" + "".join(line(*row.split()) for row in WORDS)
GOOD += "\n" + line("1", "Rain", "0", "root")


def test_the_reader_keeps_the_contract_of_readers() -> None:
    first = {"text": "Ada does n't sleep", "words": ["Ada", "does", "n't", "sleep"], "heads": [3, 3, 3, None]}
    second = {"text": "Rain", "words": ["Rain"], "heads": [None], "relations": ["root"]}
    check_reader(Dependencies, GOOD, [{**first, "relations": ["nsubj", "aux:neg", "advmod", "root"]}, second])


BAD = [
    ("1 Ada\n", 1, "1 columns"),
    (line("2", "Ada", "0", "root"), 1, "number the words"),
    (line("1", "", "0", "root"), 1, "the word is empty"),
    (line("1", "Ada", "1", "root"), 1, "another word of the sentence"),
    (line("1", "Ada", "0", "root") + line("2", "sleeps", "3", "obj"), 2, "another word of the sentence"),
    (line("1", "Ada", "_", "root"), 1, "another word of the sentence"),
    (line("1", "Ada", "0", "root") + line("2", "sleeps", "0", "root"), 1, "2 words have HEAD 0"),
]


@pytest.mark.parametrize(("content", "number", "message"), BAD)
def test_a_bad_tree_is_reported_with_its_line(content: str, number: int, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.conllu"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError) as error:
        list(Dependencies().read(path))
    assert str(error.value).startswith(f"{path}:{number}: ")
    assert message in str(error.value)
