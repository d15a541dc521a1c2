"""spaCy's CNN tagger (tok2vec and ner), trained from scratch on one folder of IOB2 files: its speed and F1 as JSON."""

import argparse
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import peers  # first of all: it cuts the network off

# isort: split
import spacy
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example
from spacy.util import fix_random_seed, registry


def examples(nlp: Language, sentences: Sequence[peers.Sentence]) -> list[Example]:
    """Words alone beside words with their gold spans."""
    return [Example(Doc(nlp.vocab, words=s.words), Doc(nlp.vocab, words=s.words, ents=s.tags)) for s in sentences]


def predicted(doc: Doc) -> list[str]:
    """The pipeline's entities as IOB2."""
    return peers.iob2(len(doc), [(span.start, span.end, span.label_) for span in doc.ents])


def tagged(nlp: Language, sentences: Sequence[peers.Sentence]) -> list[list[str]]:
    """IOB2 tags of every sentence."""
    return [predicted(doc) for doc in nlp.pipe([Doc(nlp.vocab, words=sentence.words) for sentence in sentences])]


def train(
    arguments: argparse.Namespace, sentences: Sequence[peers.Sentence], dev: Sequence[peers.Sentence], epochs: int
) -> tuple[Language, list[float]]:
    """The pipeline of the best epoch on dev and the seconds of each; batches, dropout and Adam are spaCy's defaults."""
    fix_random_seed(arguments.seed)
    nlp = spacy.blank("en")
    nlp.add_pipe("tok2vec")  # HashEmbedCNN, 96 wide, 4 deep
    nlp.add_pipe("ner", config={"model": {"tok2vec": {"@architectures": "spacy.Tok2VecListener.v1", "width": 96}}})
    gold = examples(nlp, sentences)
    optimizer = nlp.initialize(lambda: gold)
    settings = nlp.config["training"]
    batches = registry.resolve({"batcher": settings["batcher"]})["batcher"]
    seconds: list[float] = []
    best, best_f1 = nlp.to_bytes(), -1.0
    for _ in range(epochs):
        random.shuffle(gold)
        start = time.perf_counter()
        for batch in batches(gold):
            nlp.update(batch, drop=settings["dropout"], sgd=optimizer)
        seconds.append(time.perf_counter() - start)
        f1 = peers.span_f1([sentence.tags for sentence in dev], tagged(nlp, dev))
        if f1 > best_f1:
            best, best_f1 = nlp.to_bytes(), f1
    return nlp.from_bytes(best), seconds


def tag_many(nlp: Language, docs: list[Doc], batch: int, processes: int) -> None:
    """All at once, in spaCy's own batches."""
    for _ in nlp.pipe(docs, batch_size=batch, n_process=processes):
        pass


def tag_singly(nlp: Language, docs: list[Doc]) -> None:
    """One call a sentence."""
    for doc in docs:
        nlp(doc)


def main() -> None:
    """Train, score, time, report."""
    flags = peers.command_line(__doc__)
    flags.add_argument("--batches", type=peers.numbers, default=[32, 128, 1000], help="batch_size of nlp.pipe")
    flags.add_argument("--processes", type=peers.numbers, default=[1, 2], help="n_process of nlp.pipe")
    arguments = flags.parse_args()
    data = peers.read_data(arguments)

    if arguments.train_epochs:
        train(arguments, data.train[: peers.START], [], 1)  # warms up
        nlp, seconds = train(arguments, data.train, data.dev, arguments.train_epochs)
    else:
        nlp, seconds = train(arguments, data.train[: peers.START], [], 1)[0], []

    tags = tagged(nlp, data.test)
    if arguments.predictions:
        peers.write_predictions(arguments.predictions, data.test, tags)
    batched = [
        ({"batch": b, "processes": n}, lambda docs, b=b, n=n: tag_many(nlp, docs, b, n))
        for n in arguments.processes
        for b in arguments.batches
    ]
    network = nlp.get_pipe("tok2vec").model
    walk = (node for pipe in ("tok2vec", "ner") for node in nlp.get_pipe(pipe).model.walk())
    parameters = sum(node.get_param(name).size for node in walk for name in node.param_names if node.has_param(name))
    result = {
        "sizes": {"width": network.get_dim("nO"), "depth": 4, "parameters": int(parameters)},
        "train": {"epoch_seconds": seconds, **peers.size(data.train)},
        "test_f1": peers.span_f1([sentence.tags for sentence in data.test], tags),
        "tag": peers.tagging(
            arguments,
            data.test,
            lambda words: Doc(nlp.vocab, words=words),
            batched,
            [({}, lambda docs: tag_singly(nlp, docs))],
        ),
    }
    peers.report(arguments, ["spacy", "thinc", "numpy"], result)


if __name__ == "__main__":
    main()
