"""Convert a fine-tuned checkpoint of `transformers` to a bundle, without training and without a YAML."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from tokenizers import processors
from torch import nn

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
from seqpipe.runtime.file_io import input_format, parse_record, plain_record, raise_error, read_lines
from seqpipe.runtime.model import Model
from seqpipe.training.artifacts import Artifacts, FittedTask
from seqpipe.training.pipeline import Pipeline

Aggregation = Literal["simple", "first"]
Pooling = Literal["mean", "cls"]

# What a checkpoint is: its task, its labels, and the sentence encoder's pooling, by its configuration files.

_TASKS = ("SequenceClassification", "TokenClassification", "QuestionAnswering")
_SCHEMES = {"IOB2": "BI", "BIOES": "BIES", "BILOU": "BILU"}  # prefixes of the tags of each scheme
_MODULES = ("Transformer", "Pooling", "Normalize")  # of sentence-transformers


class _Checkpoint(NamedTuple):
    """A checkpoint that can be converted: a task of `transformers`, or the pooling of a sentence encoder."""

    folder: Path
    task: str
    config: Any
    pooling: Pooling | None = None
    normalize: bool = False  # whether the vectors of a sentence encoder have length 1
    longest: int | None = None  # tokens of a text, special ones included, that sentence-transformers states

    def labels(self) -> tuple[list[str], str]:
        """Return the labels in the order of the logits, as tags where tokens have them, and the scheme of these.

        `transformers` knows B- and I- alone, and joins neighbours of any other label, which is what I- says. Tags that
        are all of BIOES or BILOU are read as those.
        """
        labels = [str(self.config.id2label[i]) for i in range(self.config.num_labels)]
        if doubled := [label for label in labels if labels.count(label) > 1]:
            problem = f"the label {doubled[0]!r} is there twice"
            raise DataError(f"{self.folder}: {problem}; give each its own name in id2label of config.json")
        if self.task != "TokenClassification":
            return labels, ""
        for scheme, prefixes in _SCHEMES.items():
            if all(re.fullmatch(f"O|[{prefixes}]-.+", label) for label in labels):
                return labels, "IOB2" if scheme == "IOB2" else "BIOES"
        return [label if re.fullmatch("O|[BI]-.+", label) else f"I-{label}" for label in labels], "IOB2"


def _checkpoint(folder: Path, pooling: Pooling | None) -> _Checkpoint:
    """Look at a folder; DataError or UsageError if it cannot be converted."""
    from transformers import AutoConfig

    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder; name one that save_pretrained, or sentence-transformers, wrote")
    root, sentences = folder, dict[str, Any]()
    modules = {str(module["type"]).rpartition(".")[2]: root / module["path"] for module in _read(root / "modules.json")}
    if modules:
        if unknown := [kind for kind in modules if kind not in _MODULES]:
            known = ", ".join(_MODULES)
            raise DataError(f"{root}: the module {unknown[0]} of sentence-transformers is none of {known}")
        folder = modules.get("Transformer", root)
        settings = dict(_read(folder / "sentence_bert_config.json"))
        prompt = dict(_read(root / "config_sentence_transformers.json")).get("default_prompt_name")
        if prompt or settings.get("do_lower_case"):
            what = f"puts the prompt {prompt!r} before texts" if prompt else "lower-cases texts before its tokenizer"
            raise DataError(f"{root}: {what}, which a bundle cannot do; remove that setting if it is not needed")
        sentences = {"normalize": "Normalize" in modules, "longest": settings.get("max_seq_length")}
        stated = dict(_read(modules.get("Pooling", root) / "config.json"))
        keys = [f"pooling_mode_{value}" if key == "pooling_mode" else key for key, value in stated.items() if value]
        modes = [re.sub("_tokens?$", "", key[13:]) for key in keys if key.startswith("pooling_mode_")]
        if pooling is None and modes not in (["mean"], ["cls"]):
            problem = f"its pooling is {' and '.join(modes) or 'not stated'}, and mean and cls are known"
            raise DataError(f"{root}: {problem}; --pooling chooses one of these")
        pooling = pooling or ("mean" if modes == ["mean"] else "cls")
    with reading(folder, "config"):
        config = AutoConfig.from_pretrained(**where(folder), trust_remote_code=False)
    if pooling:
        return _Checkpoint(folder, "", config, pooling, **sentences)
    name = next(map(str, config.architectures or ()), "")
    if config.is_encoder_decoder or name.endswith(("LMHeadModel", "ForCausalLM")):
        use = "pretrained-seq2seq" if config.is_encoder_decoder else "pretrained-decoder"
        fix = f"train one with the encoder {use} in a YAML (docs/tasks/pretrained.md), and export that run"
        raise DataError(f"{root}: {name or config.model_type} writes text, and is not converted; {fix}")
    task = name.rpartition("For")[2]
    if task not in _TASKS:
        what = f"its architecture {name} has no head" if name else "config.json names no architecture"
        fix = "as a sentence encoder give --pooling mean or cls; to fine-tune it: seqpipe init --checkpoint FOLDER FILE"
        raise DataError(f"{root}: {what} for labels, tags or answers; {fix}")
    return _Checkpoint(folder, task, config)


def _read(file: Path) -> Any:
    """Return the content of a JSON file; nothing if it is not there."""
    try:
        return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else ()
    except ValueError as error:
        raise DataError(f"{file}: not JSON: {error}") from error


class Reference(NamedTuple):
    """A checkpoint as `transformers` itself loads it; `ids` are its own for each id of the bundle."""

    tokenizer: Any
    model: Any
    ids: Sequence[int]
    pooling: Pooling | None


def _reference(checkpoint: _Checkpoint) -> Reference:
    """Load a checkpoint with its head; DataError if its tokenizer or its weights cannot be used."""
    import transformers

    folder = checkpoint.folder
    ids = pretrained_tokenizer(folder).ids
    refuse_pickles(folder)
    model_class = getattr(transformers, f"AutoModelFor{checkpoint.task}" if checkpoint.task else "AutoModel")
    with reading(folder, "weights"):
        tokenizer = transformers.AutoTokenizer.from_pretrained(**where(folder), trust_remote_code=False)
        model = model_class.from_pretrained(
            **where(folder), trust_remote_code=False, use_safetensors=True, dtype=torch.float32
        )
    if tokenizer.truncation_side != "right":
        problem = "its tokenizer cuts long texts at the left; a bundle reads their first tokens"
        raise DataError(f"{folder}: {problem}; set truncation_side in tokenizer_config.json to right")
    return Reference(tokenizer, model.eval(), ids, checkpoint.pooling)


# The pipeline of a checkpoint: ordinary stages around its own weights.

MOST_OF_PASSAGE = 20_000  # tokens of a question and a passage, which is read in windows
NO_LENGTH = 1_000_000  # `model_max_length` of a tokenizer that has none is far more


def _configuration(checkpoint: _Checkpoint, original: Any, aggregation: Aggregation, no_answer: bool) -> dict[str, Any]:
    """Return what a YAML of the pipeline would hold; `original` is the tokenizer of `transformers`."""
    tokenizer: dict[str, Any] = {"use": "pretrained", "checkpoint": str(checkpoint.folder.resolve())}
    lengths = [length for length in (checkpoint.longest, original.model_max_length) if length and length < NO_LENGTH]
    encoder: dict[str, Any] = {"use": "fine-tuned", "longest": min(lengths, default=None)}
    encoders, reader = [encoder], "jsonl"
    if checkpoint.task == "QuestionAnswering":
        tokenizer["field"], reader = ["question", "context"], "squad"
        encoders = [{"use": "fine-tuned-reader", "token_types": "token_type_ids" in original.model_input_names}]
        head: dict[str, Any] = {"use": "answer-span", "no_answer": no_answer}
    elif checkpoint.task == "TokenClassification":
        encoder["task"] = "token-classification"
        encoders += [{"use": "words", "joined": True}] if aggregation == "first" else []
        head = {"use": "tags", "scheme": checkpoint.labels()[1]}
    elif checkpoint.task:
        encoder["task"] = "sequence-classification"
        kind, count = checkpoint.config.problem_type, checkpoint.config.num_labels
        if kind == "regression" and count > 1:
            raise DataError(f"{checkpoint.folder}: it answers with {count} numbers a text; a bundle gives one score")
        head = {"use": "label", "pool": "state", "multi": kind == "multi_label_classification"}
        if count == 1 and not head["multi"]:
            head = {"use": "score", "pool": "state"}
    else:
        encoder["pool"] = checkpoint.pooling
        head = {"use": "vector", "pool": "state", "normalize": checkpoint.normalize}
    data = {"reader": reader, "train": "texts.jsonl"}
    return {"name": "checkpoint", "data": data, "tokenizer": tokenizer, "encoder": encoders, "head": head}


def _artifacts(checkpoint: _Checkpoint, config: Config, original: Any) -> Artifacts:
    """Return what other pipelines fit to their training records: here all of it is the checkpoint's."""
    tokenizer = pretrained_tokenizer(checkpoint.folder).tokenizer
    # Some post-processors, as RoBERTa's, also keep the blank before a word out of its offsets.
    steps = [json.loads(original.backend_tokenizer.to_str())["post_processor"] or {}]
    for step in [*steps, *steps[0].get("processors", ())]:
        if step.get("trim_offsets"):
            before = step.get("add_prefix_space", True)
            tokenizer.post_processor = processors.ByteLevel(add_prefix_space=before, trim_offsets=True)
    (head,), (source,) = config.head, config.inputs
    features: dict[str, FeatureKind] = {}
    for stage in source.stages:
        features |= declared_features(stage)
    assert source.tokenizer is not None
    fields = source.tokenizer.common_keys.get("field") or "text"
    if isinstance(fields, tuple):
        features |= pair_features()
    task = head_task(head)
    labels = checkpoint.labels()[0] if task.has_labels and checkpoint.task else []
    answer = task.create(HeadInfo(answer_settings(head)), labels, None).manifest() | {"every_token": True}
    featurizer = TextSource(tokenizer, features, fields, lossless=True, raw=True)
    counts = [0] * tokenizer.get_vocab_size()
    return Artifacts(featurizer, {"": counts}, (FittedTask("", answer, Vocabulary(labels), None),))


def load_checkpoint(
    folder: Path, aggregation: Aggregation = "simple", pooling: Pooling | None = None, no_answer: bool = False
) -> tuple[Pipeline, Config, Reference]:
    """Return the pipeline of a checkpoint, its configuration, and the checkpoint as `transformers` loads it.

    Args:
        folder: Written by `save_pretrained`, or by sentence-transformers.
        aggregation: Which tokens of a checkpoint that tags are tagged: all, or the first of each word.
        pooling: Pooling of a sentence encoder; None for what its folder states.
        no_answer: Whether a checkpoint that reads passages was trained on questions without answers.

    Raises:
        DataError, UsageError: if the folder cannot be converted.
    """
    checkpoint = _checkpoint(folder, pooling)
    reference = _reference(checkpoint)
    config = load(_configuration(checkpoint, reference.tokenizer, aggregation, no_answer), files=False, runs=False)
    pipeline = Pipeline(config, _artifacts(checkpoint, config, reference.tokenizer)).eval()
    for child, module in [*pipeline.head.named_children()]:
        if isinstance(module, nn.Linear):  # what the checkpoint's own head gives is passed on as it is
            setattr(pipeline.head, child, nn.Identity())
    # A bundle reads as many tokens as the checkpoint, whatever the texts of this export are.
    most = pipeline.limits.tokens if pipeline.limits.cut else MOST_OF_PASSAGE
    name = re.sub("[^A-Za-z0-9._-]", "-", folder.resolve().name).lstrip("._-") or config.name
    config = replace(config, name=name, export=config.export.model_copy(update={"max_tokens": most}))
    return pipeline, config, reference


# The comparison with `transformers`, and the texts for it; the short ones become golden examples.

_SENTENCES = (
    "A warm and funny film, with one of the best endings of the year.",
    "The delivery was two weeks late, and nobody answered my calls.",
    "Angela Merkel met Emmanuel Macron in Paris on 14 July 2017.",
    "Please cancel my subscription and refund the last payment.",
    "Researchers at MIT and ETH Zürich published the results in Nature.",
    "Can you book a table for four at an Italian restaurant tonight?",
)
_COMPARED = 100  # texts at most


def _records(file: Path | None, fields: Sequence[str]) -> list[Record]:
    """Return the records of a file, or built-in ones."""
    if file is None:
        texts = [*_SENTENCES, *SCRIPTS[:-1], " ".join(_SENTENCES * 16)]
        return [dict(zip(fields, ("Who met in Paris?", text)[-len(fields) :], strict=True)) for text in texts]
    lines = [(raise_error(line), place) for line, place in read_lines(file)]
    if not (lines := [(line, place) for line, place in lines if line.strip()]):
        raise DataError(f"{file}: holds no text; give some, or leave --texts out")
    if input_format("auto", file, "text") == "jsonl":
        return [{**parse_record(line, fields, place, False), "where": place} for line, place in lines]
    return [plain_record(line, fields, place) for line, place in lines]


@one_thread()
@torch.no_grad()
def compare(pipeline: Pipeline, reference: Reference, records: Sequence[Record]) -> tuple[int, float]:
    """Compare tokens, offsets and logits with `transformers`; return how many texts, and the largest difference.

    Texts that hold a special token, which is an ordinary text in a bundle, are left out, and so are pairs that need
    several windows.

    Raises:
        ParityError: if a text is read otherwise, or its logits differ by more than `CLOSE`.
    """
    source, limits = pipeline.artifacts.featurizer, pipeline.limits
    encoder: Any = pipeline.encoder[0]
    special_ids = {*reference.tokenizer.all_special_ids} - {reference.tokenizer.unk_token_id}
    assert isinstance(source, TextSource)
    compared, worst = 0, 0.0
    for record in records:
        (doc,), second = source.docs([record]), 0
        if source.pairs:
            second = doc.second or 0
            room = encoder.window - encoder.first_tokens - encoder.separators
            if second - 1 > encoder.first_tokens or len(doc) - second > room or second == len(doc):
                continue
        elif limits.cut:
            doc = first_tokens(doc, limits.tokens)
        texts = [record[name] for name in source.fields]
        length = {"truncation": True, "max_length": limits.tokens + 2} if limits.cut else {}
        encoding = reference.tokenizer(*texts, **length, return_tensors="pt", return_offsets_mapping=True)
        places = np.flatnonzero([number == len(texts) - 1 for number in encoding.sequence_ids(0)])
        ids, shift = encoding["input_ids"][0][places].tolist(), len(doc.text) - len(texts[-1])
        offsets = [(a + shift, b + shift) for a, b in encoding.pop("offset_mapping")[0][places].tolist()]
        if not special_ids.isdisjoint(ids):
            continue
        own_ids = [reference.ids[i] for i in doc.ids[second:]]
        if own_ids != ids or doc.offsets[second:] != offsets:
            raise ParityError(f"{excerpt(texts[-1])} has other tokens than in transformers; no bundle was written")
        names = pipeline({name: torch.from_numpy(array) for name, array in source.collate([doc]).items()})
        outputs = reference.model(**encoding)
        ours: Any
        theirs: Any
        if "last_hidden_state" in outputs:
            states = outputs.last_hidden_state[0]
            ours, theirs = names["state"][0], states[0] if reference.pooling == "cls" else states.mean(0)
        elif "start_logits" not in outputs and outputs.logits.dim() == 2:
            ours, theirs = names["state"], outputs.logits
        else:
            logits = outputs.logits if "logits" in outputs else torch.stack([outputs[0], outputs[1]], 2)
            starts = slice(None) if doc.starts is None else doc.starts
            ours, theirs = names["x"][0, second : second + len(doc)], logits[0][places][starts]
            ours = ours[: len(theirs)]  # a text without a token has a row of padding
        far = (ours - theirs).abs() / theirs.abs().clamp(min=1)
        worst = max(worst, float(far.max()) if far.numel() else 0.0)
        if not worst <= CLOSE:
            raise ParityError(
                f"{excerpt(texts[-1])}: logits differ by {worst:.2g} from transformers'; none was written"
            )
        compared += 1
    return compared, worst


def convert(
    folder: Path,
    output: Path,
    console: Console,
    texts: Path | None = None,
    cache: GraphCache | None = None,
    **options: Any,
) -> Model:
    """Make a bundle of a fine-tuned checkpoint; return it as an open Model.

    Args:
        folder: Of the checkpoint.
        output: Where the bundle goes; one that is there is replaced at the end.
        console: For reports of progress.
        texts: Texts to compare and to make golden examples of: one a line, or JSON objects; None for built-in ones.
        cache: Where the graph is looked for first, and kept.
        options: Of `load_checkpoint`.

    Raises:
        DataError, UsageError: if the folder cannot be converted; nothing is written then.
        ParityError: if the bundle would not answer as `transformers` does.
    """
    bundle.refuse_other(output)
    pipeline, config, reference = load_checkpoint(folder, **options)
    family = reference.model.config.model_type
    console.say(f"{folder}: {family}, answers with {head_task(config.head[0]).kind_type.kind}")
    records = _records(texts, pipeline.artifacts.featurizer.fields)
    compared, worst = compare(pipeline, reference, records[:_COMPARED])
    console.say(f"  tokens and logits of transformers on {compared:,} texts, within {worst:.1g}")
    del reference
    with lock_around(output):
        return export(pipeline, config, records, output, console, cache=cache, references=False)
