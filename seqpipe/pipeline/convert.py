"""Convert a fine-tuned checkpoint of `transformers` to a bundle, without training and without a YAML."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from tokenizers import processors
from torch import Tensor, nn

from seqpipe.answers.task import HeadInfo
from seqpipe.config.contract import answer_settings, declared_features, head_task
from seqpipe.config.loader import Config, load
from seqpipe.console import Console
from seqpipe.errors import DataError, ParityError, UsageError
from seqpipe.export.exporter import export
from seqpipe.export.graph_cache import GraphCache
from seqpipe.export.parity.decisions import CLOSE, SCRIPTS
from seqpipe.export.parity.gate import one_thread
from seqpipe.features.checkpoint_tokenizer import pretrained_tokenizer, reading, where
from seqpipe.features.document import Record, first_tokens
from seqpipe.features.encoding import excerpt
from seqpipe.features.kinds.base import FeatureKind
from seqpipe.features.kinds.registry import pair_features
from seqpipe.features.sources import TextSource
from seqpipe.features.vocabulary import Vocabulary
from seqpipe.nn.pretrained import refuse_pickles
from seqpipe.pipeline.lock import lock_around
from seqpipe.runtime import bundle
from seqpipe.runtime.model import Model
from seqpipe.training.artifacts import Artifacts, FittedTask
from seqpipe.training.pipeline import Pipeline

Aggregation = Literal["simple", "first"]
Pooling = Literal["mean", "cls", "max"]

# What a checkpoint is: its task, its labels, and the sentence encoder's pooling, by its configuration files.

_TASKS = ("SequenceClassification", "TokenClassification", "QuestionAnswering")
_SCHEMES = {"IOB2": "BI", "BIOES": "BIES", "BILOU": "BILU"}  # prefixes of the tags of each scheme
_MODULES = ("Transformer", "Pooling", "Normalize")  # of sentence-transformers
_POOLINGS: Mapping[str, Pooling] = {"mean_tokens": "mean", "cls_token": "cls", "max_tokens": "max"}


@dataclass(frozen=True)
class _Checkpoint:
    """A checkpoint that can be converted.

    Attributes:
        folder: Folder of the model and its tokenizer.
        task: Name of its head in `transformers`; empty for a sentence encoder.
        config: Its configuration.
        pooling: Pooling of a sentence encoder.
        normalize: Whether its vectors have length 1.
        longest: Maximum number of tokens of a text that the folder states, special ones included.
    """

    folder: Path
    task: str
    config: Any
    pooling: Pooling | None = None
    normalize: bool = False
    longest: int | None = None

    @property
    def labels(self) -> list[str]:
        """The labels in the order of the logits; DataError if one is there twice."""
        labels = [str(self.config.id2label[i]) for i in range(self.config.num_labels)]
        if doubled := [label for label, count in Counter(labels).items() if count > 1]:
            fix = "give each its own name in id2label of config.json"
            raise DataError(f"{self.folder}: the label {doubled[0]!r} is there twice; {fix}")
        return labels

    def tags(self) -> tuple[list[str], str]:
        """The labels as tags, and their scheme.

        `transformers` knows B- and I- alone, and joins neighbours of any other label, which is what I- says. Tags that
        are all of BIOES or BILOU are read as those.
        """
        labels = self.labels
        for scheme, prefixes in _SCHEMES.items():
            if all(re.fullmatch(f"O|[{prefixes}]-.+", label) for label in labels):
                return labels, scheme
        return [label if re.fullmatch("O|[BI]-.+", label) else f"I-{label}" for label in labels], "IOB2"


def _checkpoint(folder: Path, pooling: Pooling | None) -> _Checkpoint:
    """Look at a folder; DataError or UsageError if it cannot be converted."""
    from transformers import AutoConfig

    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder; name one that save_pretrained, or sentence-transformers, wrote")
    root, modules = folder, _read(folder / "modules.json", default=[])
    normalize, longest = False, None
    kinds = {str(module["type"]).rpartition(".")[2]: root / module.get("path", "") for module in modules}
    if modules:
        if unknown := [kind for kind in kinds if kind not in _MODULES]:
            known = ", ".join(_MODULES)
            raise DataError(f"{folder}: the module {unknown[0]} of sentence-transformers is none of {known}")
        folder = kinds.get("Transformer", root)
        normalize, settings = "Normalize" in kinds, _read(folder / "sentence_bert_config.json", default={})
        longest = settings.get("max_seq_length")
        prompt = _read(root / "config_sentence_transformers.json", default={}).get("default_prompt_name")
        if prompt or settings.get("do_lower_case"):
            what = f"puts the prompt {prompt!r} before texts" if prompt else "lower-cases texts before its tokenizer"
            raise DataError(f"{root}: {what}, which a bundle cannot do; remove that setting if it is not needed")
        pooling = pooling or _stated_pooling(kinds.get("Pooling", root))
    with reading(folder, "config"):
        config = AutoConfig.from_pretrained(**where(folder), trust_remote_code=False)
    names = [str(name) for name in config.architectures or ()]
    task = next((task for task in _TASKS if any(name.endswith(f"For{task}") for name in names)), "")
    if modules or pooling:
        return _Checkpoint(folder, "", config, pooling or "mean", normalize, longest)
    if config.is_encoder_decoder or any(name.endswith(("LMHeadModel", "ForCausalLM")) for name in names):
        use = "pretrained-seq2seq" if config.is_encoder_decoder else "pretrained-decoder"
        fix = f"train one with the encoder {use} in a YAML (docs/tasks/pretrained.md), and export that run"
        raise DataError(f"{root}: {names[0] if names else config.model_type} writes text, and is not converted; {fix}")
    if not task:
        what = f"its architecture {names[0]} has no head" if names else "config.json names no architecture"
        fix = "as a sentence encoder give --pooling mean or cls; to fine-tune it: seqpipe init --checkpoint FOLDER FILE"
        raise DataError(f"{root}: {what} for labels, tags or answers; {fix}")
    return _Checkpoint(folder, task, config)


def _read(file: Path, default: Any) -> Any:
    if not file.is_file():
        return default
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{file}: not JSON: {error}") from error


def _stated_pooling(folder: Path) -> Pooling:
    stated = _read(folder / "config.json", default={})
    modes = [
        key.removeprefix("pooling_mode_") for key, value in stated.items() if key[:13] == "pooling_mode_" and value
    ]
    if isinstance(mode := stated.get("pooling_mode"), str):
        modes = [mode]
    pooling = {**_POOLINGS, **{name: name for name in _POOLINGS.values()}}.get(modes[0]) if len(modes) == 1 else None
    if pooling is None:
        problem = f"its pooling is {' and '.join(modes) or 'not stated'}"
        raise DataError(f"{folder}: {problem}, and mean, cls and max are known; --pooling chooses one of these")
    return pooling


# The checkpoint as `transformers` runs it.


@dataclass(frozen=True)
class Reference:
    """A checkpoint as `transformers` itself loads and runs it.

    Attributes:
        tokenizer: Its tokenizer.
        model: Its model, with its head.
        ids: For each id of the bundle, the checkpoint's own.
        pooling: Pooling of a sentence encoder.
    """

    tokenizer: Any
    model: Any
    ids: Sequence[int]
    pooling: Pooling | None = None

    @torch.no_grad()
    def read(self, texts: Sequence[str], longest: int | None) -> tuple[Any, np.ndarray, Tensor, Tensor]:
        """Read a text or a pair.

        Returns:
            The encoding, the positions of its last text, the outputs (1 + T + 1, L) for tokens, and that for all (L,).
        """
        encoding = self.tokenizer(
            *texts, truncation=longest is not None, max_length=longest, return_tensors="pt", return_offsets_mapping=True
        )
        offsets = encoding.pop("offset_mapping")
        places = np.flatnonzero([number == len(texts) - 1 for number in encoding.sequence_ids(0)])
        outputs = self.model(**encoding)
        encoding["offset_mapping"] = offsets
        if "start_logits" in outputs:
            tokens = torch.stack([outputs.start_logits, outputs.end_logits], 2)[0]
            return encoding, places, tokens, tokens[0]
        if "logits" in outputs:
            return encoding, places, outputs.logits[0], outputs.logits[0]
        tokens = outputs.last_hidden_state[0]
        pooled = {"mean": tokens.mean(0), "cls": tokens[0], "max": tokens.amax(0)}[self.pooling or "mean"]
        return encoding, places, tokens, pooled


def _reference(checkpoint: _Checkpoint) -> Reference:
    """Load a checkpoint as `transformers` does; DataError if its tokenizer or its weights cannot be used."""
    import transformers

    ids = pretrained_tokenizer(checkpoint.folder).ids
    with reading(checkpoint.folder, "tokenizer"):
        tokenizer = transformers.AutoTokenizer.from_pretrained(**where(checkpoint.folder), trust_remote_code=False)
    refuse_pickles(checkpoint.folder)
    model_class = getattr(transformers, f"AutoModelFor{checkpoint.task}" if checkpoint.task else "AutoModel")
    with reading(checkpoint.folder, "weights"):
        model = model_class.from_pretrained(
            **where(checkpoint.folder), trust_remote_code=False, use_safetensors=True, dtype=torch.float32
        )
    return Reference(tokenizer, model.eval(), ids, checkpoint.pooling)


# The pipeline of a checkpoint: ordinary stages around its own weights.

MOST_OF_PASSAGE = 20_000  # tokens of a question and a passage, which is read in windows
NO_LENGTH = 1_000_000  # `model_max_length` of a tokenizer that has none is far more


def _configuration(
    checkpoint: _Checkpoint, original: Any, name: str, aggregation: Aggregation, no_answer: bool
) -> dict[str, Any]:
    """Return what a YAML of the pipeline would hold; `original` is the tokenizer of `transformers`."""
    use: dict[str, Any] = {"checkpoint": str(checkpoint.folder.resolve())}
    tokenizer, reader = {"use": "pretrained", **use}, "jsonl"
    lengths = [length for length in (checkpoint.longest, original.model_max_length) if length and length < NO_LENGTH]
    encoders: list[Any] = [{"use": "fine-tuned", **use, "longest": min(lengths, default=None)}]
    if checkpoint.task == "QuestionAnswering":
        tokenizer["field"], reader = ["question", "context"], "squad"
        encoders = [{"use": "fine-tuned-reader", **use, "token_types": "token_type_ids" in original.model_input_names}]
        head: dict[str, Any] = {"use": "answer-span", "no_answer": no_answer}
    elif checkpoint.task == "TokenClassification":
        encoders[0]["task"] = "token-classification"
        encoders += [{"use": "words", "joined": True}] if aggregation == "first" else []
        scheme = checkpoint.tags()[1]
        head = {"use": "tags", "scheme": "IOB2" if scheme == "IOB2" else "BIOES"}
    elif checkpoint.task:
        encoders[0]["task"] = "sequence-classification"
        kind, count = checkpoint.config.problem_type, checkpoint.config.num_labels
        if kind == "regression" and count > 1:
            raise DataError(f"{checkpoint.folder}: it answers with {count} numbers a text; a bundle gives one score")
        head = {"use": "label", "pool": "state", "multi": kind == "multi_label_classification"}
        if count == 1 and not head["multi"]:
            head = {"use": "score", "pool": "state"}
    else:
        encoders[0]["pool"] = checkpoint.pooling
        head = {"use": "vector", "pool": "state", "normalize": checkpoint.normalize}
    data = {"reader": reader, "train": "texts.jsonl"}
    return {"name": name, "data": data, "tokenizer": tokenizer, "encoder": encoders, "head": head}


def _artifacts(checkpoint: _Checkpoint, config: Config, original: Any) -> Artifacts:
    """Return what other pipelines fit to their training records: here all of it is the checkpoint's."""
    tokenizer = pretrained_tokenizer(checkpoint.folder).tokenizer
    if (trimming := _trimming(original)) is not None:
        tokenizer.post_processor = trimming
    (head,), (source,) = config.head, config.inputs
    features: dict[str, FeatureKind] = {}
    for stage in source.stages:
        features = {**declared_features(stage), **features}
    assert source.tokenizer is not None
    fields = source.tokenizer.common_keys.get("field") or "text"
    if isinstance(fields, tuple):
        features |= pair_features()
    task = head_task(head)
    labels = checkpoint.tags()[0] if checkpoint.task == "TokenClassification" else []
    if checkpoint.task == "SequenceClassification" and task.has_labels:
        labels = checkpoint.labels
    settings = answer_settings(head)
    answer = task.create(HeadInfo(settings), labels, None).manifest() | {"every_token": True}
    featurizer = TextSource(tokenizer, features, fields, lossless=True, raw=True)
    counts = [0] * tokenizer.get_vocab_size()
    return Artifacts(featurizer, {"": counts}, (FittedTask("", answer, Vocabulary(labels), None),))


def _trimming(original: Any) -> Any:
    """Return what keeps the blank before a word out of its offsets, if the checkpoint's tokenizer does."""
    steps = [json.loads(original.backend_tokenizer.to_str())["post_processor"] or {}]
    for step in steps:
        steps += step.get("processors", ())
        if step.get("trim_offsets"):
            return processors.ByteLevel(add_prefix_space=step.get("add_prefix_space", True), trim_offsets=True)
    return None


def load_checkpoint(
    folder: Path,
    *,
    name: str = "checkpoint",
    aggregation: Aggregation = "simple",
    pooling: Pooling | None = None,
    no_answer: bool = False,
) -> tuple[Pipeline, Config, Reference]:
    """Return the pipeline of a checkpoint, its configuration, and the checkpoint as `transformers` reads it.

    The arguments, and the errors for a folder that cannot be converted, are those of `convert`.
    """
    checkpoint = _checkpoint(folder, pooling)
    reference = _reference(checkpoint)
    content = _configuration(checkpoint, reference.tokenizer, name, aggregation, no_answer)
    config = load(content, files=False, runs=False)
    pipeline = Pipeline(config, _artifacts(checkpoint, config, reference.tokenizer)).eval()
    for child, module in [*pipeline.head.named_children()]:
        if isinstance(module, nn.Linear):  # what the checkpoint's own head gives is passed on as it is
            setattr(pipeline.head, child, nn.Identity())
    # A bundle reads as many tokens as the checkpoint, whatever the texts of this export are.
    most = pipeline.limits.tokens if pipeline.limits.cut else MOST_OF_PASSAGE
    config = replace(config, export=config.export.model_copy(update={"max_tokens": most}))
    return pipeline, config, reference


# The texts of a conversion: they are compared with `transformers`, and the short ones become golden examples.

_SENTENCES = (
    "A warm and funny film, with one of the best endings of the year.",
    "The delivery was two weeks late, and nobody answered my calls.",
    "Angela Merkel met Emmanuel Macron in Paris on 14 July 2017.",
    "Please cancel my subscription and refund the last payment.",
    "Researchers at MIT and ETH Zürich published the results in Nature.",
    "I don't know whether this is good news or bad news.",
    "Can you book a table for four at an Italian restaurant tonight?",
    "Shares of Apple fell 3.2 % after the company cut its forecast.",
)
COMPARED = 100  # texts at most


def _made_records(fields: Sequence[str]) -> list[dict[str, Any]]:
    texts = [*_SENTENCES, *SCRIPTS[:-1], " ".join(_SENTENCES * 12)]
    if len(fields) == 1:
        return [{fields[0]: text} for text in texts]
    return [{fields[0]: "Who met in Paris, and when?", fields[1]: text} for text in texts]


def read_texts(file: Path, fields: Sequence[str]) -> list[dict[str, Any]]:
    """Return the records of a file: JSON objects with these fields, one a line, or texts, one a line."""
    try:
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise DataError(f"{file}: cannot be read as UTF-8 text: {error}") from error
    if len(fields) == 1 and file.suffix != ".jsonl":
        return [{fields[0]: line} for line in lines]
    records = []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if not isinstance(record, dict) or not all(isinstance(record.get(name), str) for name in fields):
            raise DataError(f"{file}:{number}: each line must be a JSON object with the texts {', '.join(fields)}")
        records.append({name: record[name] for name in fields})
    return records


@one_thread()
@torch.no_grad()
def compare(
    pipeline: Pipeline, reference: Reference, records: Sequence[Record], tolerance: float = CLOSE
) -> tuple[int, float]:
    """Compare tokens, offsets and logits with `transformers`; return how many texts, and the largest difference.

    Texts that hold a special token, which is an ordinary text in a bundle, are left out, and so are pairs that need
    several windows.

    Raises:
        ParityError: if a text is read otherwise, or its logits differ by more than the tolerance.
    """
    source, encoder = pipeline.artifacts.featurizer, pipeline.encoder[0]
    limits, own = pipeline.limits, {*reference.tokenizer.all_special_ids} - {reference.tokenizer.unk_token_id}
    assert isinstance(source, TextSource)
    compared, worst = 0, 0.0
    for record in records:
        (doc,) = source.docs([record])
        if source.pairs:
            second = doc.second or 0
            room: Any = encoder.window - encoder.first_tokens - encoder.separators
            if second - 1 > encoder.first_tokens or len(doc) - second > room or second == len(doc):
                continue
        else:
            second, doc = 0, first_tokens(doc, limits.tokens)
        texts = [record[name] for name in source.fields]
        encoding, places, tokens, whole = reference.read(texts, limits.tokens + 2 if limits.cut else None)
        ids = encoding["input_ids"][0][places].tolist()
        if not own.isdisjoint(ids):
            continue
        shift = len(doc.text) - len(texts[-1])
        offsets = [(a + shift, b + shift) for a, b in encoding["offset_mapping"][0][places].tolist()]
        if [reference.ids[i] for i in doc.ids[second:]] != ids or doc.offsets[second:] != offsets:
            raise ParityError(f"{excerpt(texts[-1])} has other tokens than in transformers; no bundle was written")
        names = pipeline({name: torch.from_numpy(array) for name, array in source.collate([doc]).items()})
        pairs = [(names["state"][0], whole)] if whole.dim() == 1 else []
        if tokens.dim() == 2 and len(places):
            starts = slice(None) if doc.starts is None else doc.starts
            pairs.append((names["x"][0, second:], tokens[places][starts]))
        for ours, theirs in pairs:
            worst = max(worst, float(((ours - theirs).abs() / theirs.abs().clamp(min=1)).max()))
        if not worst <= tolerance:
            raise ParityError(
                f"{excerpt(texts[-1])}: logits differ by {worst:.2g} from transformers'; none was written"
            )
        compared += 1
    return compared, worst


# From a folder to a bundle.


def convert(
    folder: Path,
    output: Path,
    console: Console,
    *,
    texts: Path | None = None,
    aggregation: Aggregation = "simple",
    pooling: Pooling | None = None,
    no_answer: bool = False,
    cache: GraphCache | None = None,
) -> Model:
    """Make a bundle of a fine-tuned checkpoint; return it as an open Model.

    Args:
        folder: Written by `save_pretrained`, or by sentence-transformers.
        output: Where the bundle goes; one that is there is replaced at the end.
        console: For reports of progress.
        texts: Texts to compare and to make golden examples of: one a line, or JSON objects; None for built-in ones.
        aggregation: Which tokens of a checkpoint that tags are tagged: all, or the first of each word.
        pooling: Pooling of a sentence encoder; None for what its folder states.
        no_answer: Whether a checkpoint that reads passages was trained on questions without answers.
        cache: Where the graph is looked for first, and kept.

    Raises:
        DataError, UsageError: if the folder cannot be converted; nothing is written then.
        ParityError: if the bundle would not answer as `transformers` does.
    """
    bundle.refuse_other(output)
    name = re.sub("[^A-Za-z0-9._-]", "-", folder.resolve().name).lstrip("._-") or "checkpoint"
    pipeline, config, reference = load_checkpoint(
        folder, name=name, aggregation=aggregation, pooling=pooling, no_answer=no_answer
    )
    family = reference.model.config.model_type
    console.say(f"{folder}: {family}, answers with {head_task(config.head[0]).kind_type.kind}")
    fields = pipeline.artifacts.featurizer.fields
    records = _made_records(fields) if texts is None else read_texts(texts, fields)
    if not records:
        raise DataError(f"{texts}: holds no text; give some, or leave --texts out")
    compared, worst = compare(pipeline, reference, records[:COMPARED])
    console.say(f"  tokens and logits of transformers on {compared:,} texts, within {worst:.1g}")
    del reference
    with lock_around(output):
        return export(pipeline, config, records, output, console, cache=cache, references=False)
