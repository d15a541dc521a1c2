"""Flair's BiLSTM-CRF at our sizes, trained from scratch on one folder of IOB2 files: its speed and F1 as JSON."""

import argparse
import logging
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import peers  # first of all: it cuts the network off

# isort: split
import flair
import torch
from flair.data import Corpus, Dictionary
from flair.data import Sentence as FlairSentence
from flair.datasets import FlairDatapointDataset
from flair.embeddings import CharacterEmbeddings, OneHotEmbeddings, StackedEmbeddings
from flair.models import SequenceTagger
from flair.trainers import ModelTrainer
from flair.trainers.plugins import TrainerPlugin

LABEL = "ner"


class EpochClock(TrainerPlugin):
    """Seconds of each epoch's batches; evaluation and saving come after the clock has stopped."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self.started = 0.0

    @TrainerPlugin.hook
    def before_training_epoch(self, epoch: int) -> None:
        self.started = time.perf_counter()

    @TrainerPlugin.hook
    def after_training_epoch(self, epoch: int) -> None:
        self.seconds.append(time.perf_counter() - self.started)


def labelled(sentence: peers.Sentence) -> FlairSentence:
    """One sentence with its gold spans."""
    labelled_sentence = FlairSentence(sentence.words)
    for start, end, label in peers.spans(sentence.tags):
        labelled_sentence[start:end].add_label(LABEL, label)
    return labelled_sentence


def predicted(sentence: FlairSentence) -> list[str]:
    """The tagger's spans as IOB2."""
    entities = [(span[0].idx - 1, span[-1].idx, span.get_label(LABEL).value) for span in sentence.get_spans(LABEL)]
    return peers.iob2(len(sentence), entities)


def untrained(arguments: argparse.Namespace, train: Sequence[peers.Sentence]) -> SequenceTagger:
    """Trained word embedding beside 50 character features, one BiLSTM, CRF; the rest is Flair's default."""
    flair.set_seed(arguments.seed)
    characters = Dictionary()  # Flair's own list of common characters would have to be fetched
    for character in sorted({character for sentence in train for word in sentence.words for character in word}):
        characters.add_item(character)
    words = FlairDatapointDataset([FlairSentence(sentence.words) for sentence in train])
    labels = Dictionary(add_unk=False)
    labels.span_labels = True
    for label in sorted({label for sentence in train for _, _, label in peers.spans(sentence.tags)}):
        labels.add_item(label)
    corpus = Corpus(train=words, sample_missing_splits=False)
    word = OneHotEmbeddings.from_corpus(corpus, min_freq=arguments.min_count, embedding_length=arguments.embedding)
    character = CharacterEmbeddings(characters, char_embedding_dim=25, hidden_size_char=25)
    return SequenceTagger(StackedEmbeddings([word, character]), labels, LABEL, hidden_size=arguments.hidden)


def train(
    tagger: SequenceTagger,
    sentences: Sequence[peers.Sentence],
    dev: Sequence[peers.Sentence],
    epochs: int,
    threads: int,
) -> list[float]:
    """ModelTrainer with its defaults; the tagger ends as its best epoch on dev. Seconds of each epoch."""
    torch.set_num_threads(threads)
    parts = {"train": sentences, "dev": dev}
    sets = {part: FlairDatapointDataset([labelled(s) for s in chosen]) for part, chosen in parts.items() if chosen}
    clock = EpochClock()
    with tempfile.TemporaryDirectory() as folder:
        ModelTrainer(tagger, Corpus(**sets, sample_missing_splits=False)).train(
            folder,
            max_epochs=epochs,
            save_final_model=False,
            create_file_logs=False,
            create_loss_file=False,
            plugins=[clock],
        )
    tagger.eval()
    return clock.seconds


def tag_many(tagger: SequenceTagger, sentences: list[FlairSentence], threads: int, batch: int) -> None:
    """All at once, in batches that Flair sorts by length itself."""
    torch.set_num_threads(threads)
    tagger.predict(sentences, mini_batch_size=batch)


def tag_singly(tagger: SequenceTagger, sentences: list[FlairSentence], threads: int) -> None:
    """One call a sentence."""
    torch.set_num_threads(threads)
    for sentence in sentences:
        tagger.predict(sentence)


def main() -> None:
    """Train, score, time, report."""
    flags = peers.command_line(__doc__)
    flags.add_argument("--threads", type=peers.numbers, default=[torch.get_num_threads(), 1], help="the fastest counts")
    flags.add_argument("--batches", type=peers.numbers, default=[8, 32, 128], help="mini_batch_size of tagging")
    flags.add_argument("--hidden", type=int, default=256, help="units in each direction")
    flags.add_argument("--embedding", type=int, default=100, help="width of the word embedding")
    flags.add_argument("--min-count", type=int, default=3, help="rarer words are unknown; Flair's default")
    arguments = flags.parse_args()
    logging.getLogger("flair").setLevel(logging.WARNING)
    data = peers.read_data(arguments)

    trials = {}
    for threads in dict.fromkeys(arguments.threads):
        tagger = untrained(arguments, data.train)
        trials[threads] = train(tagger, data.train[: peers.START], [], 2, threads)[-1]  # the first epoch warms up
    fastest = min(trials, key=lambda threads: trials[threads])
    seconds: list[float] = []
    if arguments.train_epochs:
        tagger = untrained(arguments, data.train)
        seconds = train(tagger, data.train, data.dev, arguments.train_epochs, fastest)

    answers = [FlairSentence(sentence.words) for sentence in data.test]
    tagger.predict(answers)
    tags = [predicted(sentence) for sentence in answers]
    if arguments.predictions:
        peers.write_predictions(arguments.predictions, data.test, tags)
    batched = [
        ({"threads": n, "batch": b}, lambda sentences, n=n, b=b: tag_many(tagger, sentences, n, b))
        for n in trials
        for b in arguments.batches
    ]
    singly = [({"threads": n}, lambda sentences, n=n: tag_singly(tagger, sentences, n)) for n in trials]
    sizes = {"embedding": arguments.embedding, "characters": 50, "hidden": arguments.hidden, "layers": 1}
    sizes["vocabulary"] = tagger.embeddings.embeddings[0].embedding_layer.num_embeddings
    sizes["parameters"] = sum(weight.numel() for weight in tagger.parameters())
    result = {
        "sizes": sizes,
        "train": {"epoch_seconds": seconds, **peers.size(data.train), "threads": fastest, "trial_seconds": trials},
        "test_f1": peers.span_f1([sentence.tags for sentence in data.test], tags),
        "tag": peers.tagging(arguments, data.test, FlairSentence, batched, singly),
    }
    peers.report(arguments, ["flair", "torch", "numpy"], result)


if __name__ == "__main__":
    main()
