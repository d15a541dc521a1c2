"""One component in, a whole pipeline of toys around it out: what its checks build, train and export."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from tokenizers import Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import WordPiece
from torch import Tensor, nn
from torch.nn import functional as F

from seqpipe.config import loader as config
from seqpipe.config import yaml
from seqpipe.config.contract import expected_outputs, feature_kind, has_member, member, under_options
from seqpipe.config.loader import Config
from seqpipe.config.names import ROWLESS
from seqpipe.config.plugins import Offer, Plugins
from seqpipe.config.signature import plain, wired
from seqpipe.errors import ConfigError
from seqpipe.features.document import Column, Doc, Record
from seqpipe.features.vocabulary import MASK, SPECIALS, UNK, word_level
from seqpipe.nn.kv_cache import CacheSlots, PrefixCache
from seqpipe.testing.options import Subject
from seqpipe.testing.report import FaultError
from seqpipe.training.artifacts import Artifacts
from seqpipe.training.datasets import Batch, Batches, Example, collate, examples
from seqpipe.training.fit import fit_artifacts
from seqpipe.training.pipeline import Pipeline

DIM = 6
LABELS = ("a", "b", "c")
_WORDS = ("Ada", "met", "Bo", "in", "Oslo", ".", "née", "extraordinarily", "播放", "9", "x-y", "too")
_TAGS = {"Ada": "B-PER", "Bo": "B-PER", "Oslo": "B-LOC", "播放": "I-LOC"}
_LENGTHS = (1, 4, 2, 7, 3, 1, 9, 5, 2, 6, 3, 8)
_WIRING = (
    "Every name that a method asks for must be given: ids and mask, the features that the class declares, x, what "
    "earlier stages return (here: state), and in `loss` the targets of the answer kind"
)


def records() -> list[Record]:
    """Short sentences with everything a head may learn: tags, labels, a number, another text, an answer, an order."""
    found: list[Record] = []
    for i, length in enumerate(_LENGTHS):
        words = _words(i, length)
        tags = [_TAGS.get(word, "O") for word in words]
        target = " ".join(reversed(words))
        found.append(
            {"text": " ".join(words), "words": words, "tags": tags, "label": LABELS[i % 3], "target": target}
            | {"labels": sorted({LABELS[i % 3], LABELS[i // 3 % 3]}), "score": i * 1.5 - 4, "where": f"toy:{i + 1}"}
            | {"numbers": _numbers(i, length), "pointers": [*range(length)][::-1]}
            | {"question": " ".join(_words(i + 3, i % 3)), "context": " ".join(words), "answers": _answer(words, i)}
        )
    return found


def _answer(words: Sequence[str], i: int) -> dict[str, Any]:
    """Some of the words, as SQuAD says it."""
    first = i % len(words)
    text = " ".join(words[first : first + 1 + i % 4])
    return {"text": [text], "answer_start": [len(" ".join(words[:first])) + (first > 0)]}


def _numbers(i: int, length: int) -> list[list[float]]:
    """As many rows of numbers as there are words."""
    return [[(i * 5 + j * 7) % 11 / 4.0, float(i - j), 1.0] for j in range(length)]


def _words(i: int, length: int) -> list[str]:
    return [_WORDS[(i * 5 + j * 7) % len(_WORDS)] for j in range(length)]


def _pair(i: int, tokens: int) -> Record:
    """Two texts and what parts them; the second of three is empty."""
    first = tokens - 1 if tokens == 3 else (tokens - 1) // 3
    words = _words(i, max(1, tokens - 1))
    return {"question": " ".join(words[:first]), "context": " ".join(words[first:])}


class ToyReader:
    """Yields the toy records; reads nothing."""

    fields: ClassVar = (
        *("text", "words", "tags", "label", "labels", "score", "target", "where"),
        *("question", "context", "answers", "numbers", "pointers"),
    )

    def read(self, path: Path) -> list[Record]:
        return records()


class ToyTokenizer:
    """Splits at blanks."""

    def train(self, texts: Any) -> Tokenizer:
        return word_level(texts, normalizer=normalizers.Sequence([]), splitter=pre_tokenizers.WhitespaceSplit())


class ToyFewWords:
    """Splits at blanks, and knows the most frequent words alone: the others can only be copied."""

    def train(self, texts: Any) -> Tokenizer:
        split = pre_tokenizers.WhitespaceSplit()
        return word_level(texts, normalizer=normalizers.Sequence([]), splitter=split, max_size=6)


class ToyPieces:
    """Splits at blanks, and each word into its letters."""

    def train(self, texts: Any) -> Tokenizer:
        letters = sorted(set("".join(_WORDS)))
        tokens = [*SPECIALS, *letters, *("##" + letter for letter in letters)]
        made = Tokenizer(WordPiece({token: i for i, token in enumerate(tokens)}, unk_token=UNK))
        made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        return made


class ToyEmbedding(nn.Module):
    """A vector a word, the table of them, and three layers; row 0 is what stands in the padding, anything at all."""

    returns: ClassVar = {"x": "", "table": "(V, D) float32", "layers": "(B, T, L, D) float32"}

    tokenwise: ClassVar = True

    def __init__(self, vocabulary: Sequence[str]):
        super().__init__()
        self.dim = DIM
        self.table = nn.Parameter(torch.randn(len(vocabulary), DIM).index_fill(0, torch.tensor(0), 0.0))

    def forward(self, ids: Tensor) -> dict[str, Tensor]:  # (B, T) -> (B, T, D), (V, D)
        rows = torch.arange(len(self.table), device=ids.device)[:, None]
        x, table = F.embedding(ids, self.table), torch.where(rows == 0, 0.0, self.table)
        return {"x": x, "table": table, "layers": torch.stack([x, 2 * x, x + 1], 2)}


class ToyEncoder(nn.Module):
    """x as it is, its halves as `forwards` and `backwards`, and as `state` the mean of each row."""

    returns: ClassVar = {
        "x": "",
        "state": "",
        "forwards": "(B, T, H) float32",
        "backwards": "(B, T, H) float32",
    }

    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:  # (B, T, D), (B, T) -> (B, T, D), (B, D)
        real = torch.where(mask[..., None], x, 0.0)
        halves = dict(zip(("forwards", "backwards"), x.chunk(2, 2), strict=True))
        return {"x": x, "state": real.sum(1) / mask.sum(1, keepdim=True).clamp(min=1), **halves}


class ToyPlaces(ToyEncoder):
    """ToyEncoder on x plus sinusoids of the position.

    All words out of the vocabulary have one vector. Without the position a head would copy any of them with the same
    probability, and rounding would decide.
    """

    def forward(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:  # (B, T, D), (B, T) -> (B, T, D), (B, D)
        places, rates = (torch.arange(1, n + 1, device=x.device) for n in x.shape[1:])
        return super().forward(x + (places[:, None] * rates).float().sin(), mask)


class ToyCausal(nn.Module):
    """x(t) is tanh of the sum of all x up to there; it supports incremental decoding."""

    def __init__(self, dim: int):
        super().__init__()
        self.dim, self.cache_shape = dim, (1, dim)

    @staticmethod
    def causal_fix(options: Mapping[str, Any]) -> str:
        return ""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:  # (B, T, D), (B, T) -> (B, T, D)
        return torch.where(mask[..., None], x, 0.0).cumsum(1).tanh()

    def import_cache(self, cache: Tensor) -> tuple[Tensor, ...]:  # (B, C, 1, D) -> (B, D)
        return (nn.functional.pad(cache, (0, 0, 0, 0, 1, 0))[:, -1, 0].clone(),)

    def export_cache(self, prefix: PrefixCache, state: tuple[Tensor, ...], slots: CacheSlots) -> Tensor:
        return torch.where(slots.unfinished[:, None, None, None], state[0][:, None, None], 0.0)

    def prefill(self, x: Tensor, mask: Tensor, prefix: PrefixCache) -> tuple[Tensor, tuple[Tensor, ...]]:
        x = torch.where(mask[..., None], x, 0.0)
        return (prefix.memory[0][:, None] + x.cumsum(1)).tanh(), (prefix.memory[0] + x.sum(1),)

    def init_cache(self, prefix: PrefixCache, max_length: int) -> tuple[Tensor, ...]:
        return prefix.memory

    def step(
        self, x: Tensor, t: Tensor, prefix: PrefixCache, state: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        return (state[0] + x).tanh(), (state[0] + x,)


def watching(names: Sequence[str], by_token: Sequence[str], tagging: bool = True) -> type[nn.Module]:
    """A head that learns from x and from these names, and shows them all in its decision.

    It tags tokens, or, behind a stage that makes other rows of them, gives each text a label.
    """

    class ToyHead(nn.Module):
        answer = "tags" if tagging else "label"

        def __init__(self, dim: int, labels: Sequence[str]):
            super().__init__()
            self.emissions = nn.Linear(dim, len(labels))

        def loss(self, x: Tensor, mask: Tensor, target: Tensor, *others: Tensor) -> Tensor:
            real = target if tagging else target[:, None].expand(mask.shape)
            error = F.cross_entropy(self.emissions(x[mask]), real[mask])
            for other in others:
                if other.is_floating_point() and other.numel():  # attention weights are left out where nobody looks
                    error = error + other.square().mean()
            return error

        def decide(self, x: Tensor, mask: Tensor, *others: Tensor) -> dict[str, Tensor]:
            score = torch.where(mask, self.emissions(x).sigmoid().amax(2), 0.0)
            shown = dict(zip(names, others, strict=True)) | {"x": x}
            for name, value in shown.items():
                value = value if value.is_floating_point() else value.long()
                if name in (*by_token, "x"):
                    real = mask.reshape(*mask.shape, *[1] * (value.dim() - 2))
                    value = torch.where(real, value, torch.zeros_like(value))
                shown[name] = value + 0
            tags = torch.where(mask, 0 * score.long(), 0)
            if not tagging:
                scores = torch.where(mask[..., None], self.emissions(x), 0.0).sum(1).sigmoid()
                return {"label": tags[:, 0], "scores": scores, **shown}
            return {"tags": tags, "scores": score, "opens": score + 1, "closes": score + 2, **shown}

    methods: list[tuple[Any, tuple[str, ...]]] = [
        (ToyHead.loss, ("x", "mask", "tags" if tagging else "label")),
        (ToyHead.decide, ("x", "mask")),
    ]
    for method, asked in methods:  # what it asks for is known only here
        parameters = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in ("self", *asked, *names)]
        method.__signature__ = inspect.Signature(parameters)
    return ToyHead


class Bench:
    """A component under test in a pipeline of toys, built by the same code as every pipeline.

    Args:
        subject: The component.
        folder: Where the YAML stands, and what training writes.
    """

    def __init__(self, subject: Subject, folder: Path):
        self.subject, self.folder = subject, folder

    @cached_property
    def config(self) -> Config:
        """The checked pipeline, its head looking at everything that the component returns."""
        if self.subject.kind == "head":
            encoder = ToyPlaces if "copy" in self._kinds() else ToyEncoder
            return self._load(ToyCausal if self.is_language_model else encoder, watching((), ()))
        returned = expected_outputs(self.subject.cls, ("ids", "mask", "x")) if self.subject.kind == "encoder" else ["x"]
        names = [name for name in returned if name not in ("x", "mask", "ids", "tags", *ROWLESS)]
        tagging = not (self.replaces_mask or self.numbers)
        probe = self._load(None, watching((), (), tagging))
        if not names:
            return probe
        artifacts = fit_artifacts(probe, self.records)
        pipeline = Pipeline(probe, artifacts).eval()
        batch = collate(artifacts, examples(probe, artifacts, self.records))
        with torch.no_grad():
            made = pipeline(batch)
        by_token = [name for name in names if made[name].shape[:2] == made["mask"].shape]
        return self._load(None, watching(names, by_token, tagging))

    @property
    def replaces_mask(self) -> bool:
        """Whether the component makes other rows of the tokens: of words, or of sentences."""
        return self.subject.kind == "encoder" and "mask" in member(self.subject.cls, "returns")

    @property
    def is_language_model(self) -> bool:
        """Whether the component is a language-model head."""
        return self.subject.kind == "head" and has_member(self.subject.cls, "corpus")

    @property
    def numbers(self) -> bool:
        """Whether the component reads rows of numbers."""
        return "matrix" in self._kinds()

    @property
    def pairs(self) -> bool:
        """Whether the component is a head that reads two texts: it answers with a span, or asks for segments."""
        cls = self.subject.cls
        if self.subject.kind != "head":
            return False
        answer = under_options(cls, "answer", self.subject.chosen)
        return answer == "span" or "segments" in inspect.signature(cls.__dict__.get("decide", len)).parameters

    @cached_property
    def records(self) -> list[Record]:
        """The toy records, with a value in every field that the component reads as a column.

        Every third has no answer where the head may say so, and orders are closed if it wants.
        """
        fields = {feature.field for feature in self._features() if isinstance(feature, Column)}
        found: list[Record] = [
            {**dict.fromkeys(fields, LABELS[i % len(LABELS)]), **record} for i, record in enumerate(records())
        ]
        if self.subject.chosen.get("close"):
            return [{**record, "pointers": [*record["pointers"], record["pointers"][0]]} for record in found]
        if not self.subject.chosen.get("no_answer"):
            return found
        nothing: Record = {"answers": {"text": [], "answer_start": []}}
        return [{**record, **(nothing if i % 3 == 1 else {})} for i, record in enumerate(found)]

    @property
    def _tokenizer(self) -> type:
        kinds = self._kinds()
        return ToyPieces if "pieces" in kinds else ToyFewWords if "copy" in kinds else ToyTokenizer

    def _kinds(self) -> set[str]:
        """The kinds of feature that the component declares."""
        return {feature_kind(feature) for feature in self._features()}

    def _features(self) -> list[Any]:
        """The features that the component declares, under its options."""
        return [*under_options(self.subject.cls, "features", self.subject.chosen).values()]

    def _load(self, encoder: type[nn.Module] | None, head: type[nn.Module]) -> Config:
        kind, cls = self.subject.kind, self.subject.cls
        toys: dict[str, type | None] = {
            "reader": ToyReader,
            "tokenizer": self._tokenizer,
            "embedding": ToyEmbedding,
            "encoder": encoder,
            "head": head,
        } | {kind: cls}
        content: dict[str, Any] = {
            key: {"use": one.__name__} for key, one in toys.items() if one is not None and key != "reader"
        }
        content[kind] |= plain(dict(self.subject.options))
        if kind == "head" and "target_vocabulary" in wired(cls):
            content[kind]["target_tokenizer"] = "same"
        if self.numbers:
            del content["tokenizer"]
            stages = {key: content.pop(key) for key in ("embedding", "encoder") if key in content}
            content["inputs"] = {"numbers": {"field": "numbers", **stages}}
        if self.pairs:
            content["tokenizer"]["field"] = ["question", "context"]
        content["name"] = "toy"
        content["data"] = {"reader": "ToyReader", "train": "toy", "dev": "toy"}
        content["train"] = {"epochs": 2, "batch_tokens": 16, "checkpoint_steps": 1, "threads": 1}
        plugins = Plugins([])
        owner = cls.__module__.partition(".")[0]
        plugins.offers = [Offer(key, one.__name__, owner, "0", one) for key, one in toys.items() if one is not None]
        path = self.folder / "toy.yaml"
        path.write_text(yaml.dump(content), encoding="utf-8")
        try:
            return config.load(path, (), plugins, files=False)
        except ConfigError as error:
            told = "; ".join(f"{p.key}: {p.message}" if p.key else p.message for p in error.problems)
            raise FaultError(f"a pipeline with it does not hold together: {told}", _WIRING) from error

    @cached_property
    def artifacts(self) -> Artifacts:
        return fit_artifacts(self.config, self.records)

    @cached_property
    def examples(self) -> list[Example]:
        return examples(self.config, self.artifacts, self.records)

    @property
    def batches(self) -> Batches:
        settings = self.config.train
        return Batches(self.artifacts, self.examples, settings.batch_tokens, settings.batch_size, settings.seed)

    @property
    def answer(self) -> str:
        return str(self.artifacts.tasks[0].answer["kind"])

    def docs(self, lengths: Sequence[int]) -> list[Doc]:
        """Texts of so many words, long words and short ones; pairs of so many tokens, which are two at least.

        In every field that is read as a column stands one of its values.
        """
        columns = [one for one in self.artifacts.featurizer.features.values() if isinstance(one, Column)]
        return self.artifacts.featurizer.docs(
            [
                {**self._posed(i, n), **{column.field: column.values[i % column.size] for column in columns}}
                for i, n in enumerate(lengths)
            ]
        )

    def _posed(self, i: int, tokens: int) -> Record:
        """What is split into so many tokens, or has so many rows."""
        if self.pairs:
            return _pair(i, tokens)
        if self.numbers:
            return {"numbers": _numbers(i, tokens)}
        words = _words(i, tokens)
        if has_member(self.subject.cls, "fill_mask"):
            words = [MASK if (i + j) % 3 == 0 else word for j, word in enumerate(words)]
        return {"words": words}

    def batch(self) -> Batch:
        """All toy records."""
        return collate(self.artifacts, self.examples)

    def pipeline(self, seed: int = 1, padding: float = 0.0) -> Pipeline:
        """The pipeline at its first weights; `padding` is what stands in x where no word is."""
        torch.manual_seed(seed)
        made = Pipeline(self.config, self.artifacts)
        set_padding(made, padding)
        return made

    def module(self, pipeline: Pipeline) -> nn.Module:
        """The component itself."""
        return next(module for stage, module in pipeline.stages if stage.kind == self.subject.kind)


def set_padding(pipeline: Pipeline, value: float) -> None:
    with torch.no_grad():
        for module in pipeline.embedding:
            if isinstance(module, ToyEmbedding):
                module.table[0] = value
