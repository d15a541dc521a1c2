"""Word segmentation: a trained tagger of characters beside forward maximum matching with the words of training.

    python benchmarks/segmentation.py                      # both data sets, one seed
    python benchmarks/segmentation.py --only weibo --seeds 3

Word F1 on the test part: a word is right if both its ends are (Emerson 2005). `weibo`: weibo_ner, where the place of a
character in its word is glued to it; those words are another program's, so this is silver. `enja`: the Japanese side of
small_parallel_enja without its blanks, trained on the first 15,000 lines. Maximum matching takes the longest word of
the training part at each place, else one character; the tokenizer `lexicon` does so with the words that pass its test.
The tagger's words are those of its bundle. Its figures are recorded in runs/results.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path

import common
from common import HERE, PREPARED, RUNS

PARTS = ("train", "dev", "test")
LINES = 15_000  # of the training part of enja
Sentence = list[str]  # its words


def weibo(folder: Path, part: str) -> Iterator[Sentence]:
    """The messages of weibo_ner: a line is a character, its place in its word, a tab and a tag."""
    words: Sentence = []
    for line in (folder / "weibo_ner" / f"weiboNER_2nd_conll.{part}").read_text(encoding="utf-8").split("\n"):
        if line.strip():
            character, place = line[0], line[1:].partition("\t")[0]
            if place == "0" or not words:
                words.append(character)
            else:
                words[-1] += character
        elif words:
            yield words
            words = []
    if words:
        yield words


def enja(folder: Path, part: str) -> Iterator[Sentence]:
    """The Japanese sentences of small_parallel_enja, of training the first."""
    lines = (folder / "small_parallel_enja" / f"{part}.ja").read_text(encoding="utf-8").splitlines()
    yield from (line.split() for line in lines[:LINES])


DATA_SETS: dict[str, Callable[[Path, str], Iterator[Sentence]]] = {"weibo": weibo, "enja": enja}


def maximum_matching(lexicon: set[str], text: str) -> Sentence:
    """The text split by forward maximum matching: the longest word of the lexicon at each place, else a character."""
    longest = max(map(len, lexicon))
    words: Sentence = []
    start = 0
    while start < len(text):
        ends = range(min(start + longest, len(text)), start + 1, -1)
        end = next((end for end in ends if text[start:end] in lexicon), start + 1)
        words.append(text[start:end])
        start = end
    return words


def word_f1(gold: Sequence[Sentence], answers: Sequence[Sentence]) -> float:
    """F1 in percent of words whose two ends are right."""
    pairs = [(places(right), places(answer)) for right, answer in zip(gold, answers, strict=True)]
    correct = sum(len(right & answer) for right, answer in pairs)
    return 200 * correct / sum(len(right) + len(answer) for right, answer in pairs)


def places(words: Sentence) -> set[tuple[int, int]]:
    """Start and end of each word in the text without blanks."""
    ends = accumulate(map(len, words))
    return {(end - len(word), end) for word, end in zip(words, ends, strict=True)}


def cells(name: str, seeds: int, data: Path) -> list[str]:
    """The cells of a row: the baseline, the tokenizer, the tagger (mean of seeds), and its distance to the first."""
    from seqpipe_plugins.tokenizers.lexicon import Lexicon

    train, test = (list(DATA_SETS[name](data, part)) for part in ("train", "test"))
    for part in PARTS:
        path = PREPARED / "segmentation" / f"{name}-{part}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = (" ".join(words) + "\n" for words in DATA_SETS[name](data, part))
        path.write_text("".join(lines), encoding="utf-8")
    texts = ["".join(words) for words in test]
    lexicon = {word for words in train for word in words}
    baseline = word_f1(test, [maximum_matching(lexicon, text) for text in texts])
    tokenizer = Lexicon().train(train)
    encodings = tokenizer.encode_batch(texts, add_special_tokens=False)
    units = [[text[a:b] for a, b in encoding.offsets] for text, encoding in zip(texts, encodings, strict=True)]
    scores = [word_f1(test, _tagged(name, seed, texts)) for seed in range(1, seeds + 1)]
    mean = statistics.mean(scores)
    spread = f" ± {statistics.stdev(scores):.2f}" if seeds > 1 else ""
    return [f"{baseline:.2f}", f"{word_f1(test, units):.2f}", f"{mean:.2f}{spread}", f"{mean - baseline:+.2f}"]


def _tagged(name: str, seed: int, texts: Sequence[str]) -> list[Sentence]:
    """The words of the texts by the bundle of a training."""
    import seqpipe

    run = f"bench-segmentation-{name}-{seed}"
    yaml = HERE / "segmentation" / f"{name}.yaml"
    common.seqpipe("run", yaml, f"name={run}", f"train.seed={seed}", "--device", "cpu", "--fresh", "-q")
    model = seqpipe.load(RUNS / run / "bundle", "cpu")
    return [[span["word"] for span in answer] for answer in model(texts)]


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--only", nargs="+", choices=tuple(DATA_SETS), default=[*DATA_SETS], metavar="NAME")
    parser.add_argument("--seeds", type=int, default=1)
    common.add_data_option(parser)
    arguments = parser.parse_args()
    folder = common.data_path(arguments.data, ".")
    columns = ("maximum matching", "tokenizer `lexicon`", "tagger", "to maximum matching")
    table = common.Table("segmentation", "f1", "data", *columns)
    for name in arguments.only:
        table.row(name, *cells(name, arguments.seeds, folder))


if __name__ == "__main__":
    main()
