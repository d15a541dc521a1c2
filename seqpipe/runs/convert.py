"""Convert a fine-tuned checkpoint of `transformers` to a bundle, without training and without a YAML."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from tokenizers import processors
from torch import nn

from seqpipe.answers.task import HeadInfo
from seqpipe.batch.files import parse_record, plain_record, read_lines
from seqpipe.batch.tables import input_form
from seqpipe.config.contract import answer_settings, declared_features, member, task_class
from seqpipe.config.loader import Config, load_config
from seqpipe.console import Console
from seqpipe.errors import BundleError, DataError, ParityError, UsageError
from seqpipe.export.exporter import export_bundle
from seqpipe.export.parity.decisions import SCORE_ATOL, SCRIPTS
from seqpipe.export.parity.gate import one_thread
from seqpipe.features.checkpoint_tokenizer import check_checkpoint, checked_json, pretrained_tokenizer, reading, where
from seqpipe.features.document import Record, first_tokens
from seqpipe.features.encoding import text_excerpt
from seqpipe.features.kinds.base import FeatureKind
from seqpipe.features.kinds.registry import pair_features
from seqpipe.features.sources import TextSource
from seqpipe.features.vocabulary import Vocabulary
from seqpipe.nn.pretrained import DECODER_FAMILIES, refuse_other_models, refuse_pickles
from seqpipe.nn.pretrained_seq2seq import FAMILIES as SEQ2SEQ_FAMILIES
from seqpipe.runs.lock import lock_around
from seqpipe.runtime import bundle
from seqpipe.runtime.opened import OpenedBundle
from seqpipe.runtime.predictor import raise_error
from seqpipe.training.artifacts import Artifacts, FittedTask
from seqpipe.training.datasets import tensors
from seqpipe.training.evaluation import TrainedPipeline
from seqpipe.training.network import Network

Aggregation = Literal["simple", "first"]
Pooling = Literal["mean", "cls"]

_TASKS = ("SequenceClassification", "TokenClassification", "QuestionAnswering")
_SCHEMES = {"IOB2": "BI", "BIOES": "BIES", "BILOU": "BILU"}  # prefixes of the tags of each scheme
_MODULES = ("Transformer", "Pooling", "Normalize")  # of sentence-transformers
_WRITERS = {"pretrained-decoder": DECODER_FAMILIES, "pretrained-seq2seq": tuple(SEQ2SEQ_FAMILIES)}
_SETFIT, _HEAD = "config_setfit.json", "model_head"  # of SetFit (Tunstall et al. 2022)
_SAVE_HEAD = """write its classifier with SetFit installed, and convert again, or give --pooling for vectors alone:
import setfit, safetensors.numpy
head = setfit.SetFitModel.from_pretrained("{folder}").model_head
safetensors.numpy.save_file({{"weight": head.coef_, "bias": head.intercept_}}, "{file}")"""


class LinearHead(NamedTuple):
    """A classifier of the vectors of a sentence encoder: the logits are `weight @ vector + bias`."""

    labels: list[str]
    weight: np.ndarray  # (L, D)
    bias: np.ndarray  # (L,)


class _Checkpoint(NamedTuple):
    """A checkpoint that can be converted: a task of `transformers`, or the pooling of a sentence encoder."""

    folder: Path
    task: str
    config: Any
    pooling: Pooling | None = None
    normalize: bool = False  # whether the vectors of a sentence encoder have length 1
    longest: int | None = None  # tokens of a text, special ones included, that sentence-transformers states
    classifier: LinearHead | None = None  # of SetFit

    def labels(self) -> tuple[list[str], str]:
        """Return the labels in the order of the logits, as tags where tokens have them, and the scheme of these.

        `transformers` knows only B- and I-, and joins neighbours with any other label, as with I-. Tags that are all of
        BIOES or BILOU are read as those.
        """
        if self.classifier:
            return self.classifier.labels, ""
        names = self.config.id2label
        if sorted(names) != [*range(self.config.num_labels)]:
            raise DataError(f"{self.folder / 'config.json'}: id2label: number the labels 0, 1, 2 … without gaps")
        labels = [str(names[i]) for i in range(self.config.num_labels)]
        if doubled := [label for label, count in Counter(labels).items() if count > 1]:
            problem = f"the label {doubled[0]!r} occurs twice"
            raise DataError(f"{self.folder}: {problem}; give each its own name in id2label of config.json")
        if self.task != "TokenClassification":
            return labels, ""
        for scheme, prefixes in _SCHEMES.items():
            if all(re.fullmatch(f"O|[{prefixes}]-.+", label) for label in labels):
                return labels, "IOB2" if scheme == "IOB2" else "BIOES"
        return [label if re.fullmatch("O|[BI]-.+", label) else f"I-{label}" for label in labels], "IOB2"


def _inspect(folder: Path, pooling: Pooling | None) -> _Checkpoint:
    """Inspect the folder of a checkpoint; DataError or UsageError if it cannot be converted."""
    from transformers import AutoConfig

    if not folder.is_dir():
        what = "is a file, not the folder of a checkpoint" if folder.is_file() else "no such folder"
        raise UsageError(f"{folder}: {what}; name a folder that save_pretrained, or sentence-transformers, wrote")
    if (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file():
        fix = "merge it into its model (model.merge_and_unload().save_pretrained(FOLDER)), and convert that folder"
        raise DataError(f"{folder}: is an adapter of PEFT, not a whole checkpoint; {fix}")
    root, sentences = folder, dict[str, Any]()
    modules: dict[str, Path] = {}
    for number, part in enumerate(_read_json(root / "modules.json")):
        module = modules[part["type"].rpartition(".")[2]] = root / part["path"]
        if not module.resolve().is_relative_to(root.resolve()):
            problem = f"{part['path']!r} is not in the folder of the checkpoint"
            raise DataError(f"{root / 'modules.json'}: {number}.path: {problem}; copy it there")
    if modules:
        if unknown := [kind for kind in modules if kind not in _MODULES]:
            known = ", ".join(_MODULES)
            raise DataError(f"{root}: the module {unknown[0]} of sentence-transformers is not one of {known}")
        folder = modules.get("Transformer", root)
        settings = dict(_read_json(folder / "sentence_bert_config.json"))
        prompt = dict(_read_json(root / "config_sentence_transformers.json")).get("default_prompt_name")
        if prompt or settings.get("do_lower_case"):
            what = f"puts the prompt {prompt!r} before texts" if prompt else "lower-cases texts before its tokenizer"
            raise DataError(f"{root}: {what}, which a bundle cannot do; remove that setting if it is not needed")
        sentences = {"normalize": "Normalize" in modules, "longest": settings.get("max_seq_length")}
        stated = dict(_read_json(modules.get("Pooling", root) / "config.json"))
        keys = [f"pooling_mode_{value}" if key == "pooling_mode" else key for key, value in stated.items() if value]
        modes = [re.sub("_tokens?$", "", key[13:]) for key in keys if key.startswith("pooling_mode_")]
        if pooling is None and modes not in (["mean"], ["cls"]):
            problem = f"its pooling is {' and '.join(modes) or 'not stated'}, not mean or cls"
            raise DataError(f"{root}: {problem}; --pooling chooses one of these")
        if pooling is None and (root / _SETFIT).is_file():
            sentences["classifier"], normalizes = _read_classifier(root)
            sentences["normalize"] |= normalizes
        pooling = pooling or ("mean" if modes == ["mean"] else "cls")
    check_checkpoint(folder)
    with reading(folder, "config"):
        config = AutoConfig.from_pretrained(**where(folder), trust_remote_code=False)
    name = next(map(str, config.architectures or ()), "")
    task = name.rpartition("For")[2]
    writers = [use for use, families in _WRITERS.items() if config.model_type in families]
    if writers and not (pooling or task in _TASKS):
        fix = f"train one with the encoder {writers[0]} in a YAML (docs/tasks/pretrained.md), and export that run"
        raise DataError(f"{root}: {name or config.model_type} writes text, and is not converted; {fix}")
    refuse_other_models(root, config, task if task in _TASKS and not pooling else None)
    if pooling:
        checkpoint = _Checkpoint(folder, "", config, pooling, **sentences)
        if (classifier := checkpoint.classifier) and classifier.weight.shape[1] != config.hidden_size:
            problem = f"is for vectors of {classifier.weight.shape[1]:,} numbers, not {config.hidden_size:,}"
            raise DataError(f"{root / _HEAD}: {problem}; write it again from the same model")
        return checkpoint
    if task not in _TASKS:
        what = f"its architecture {name} has no head" if name else "config.json names no architecture"
        fix = "as a sentence encoder give --pooling mean or cls; to fine-tune it: seqpipe init --checkpoint FOLDER FILE"
        raise DataError(f"{root}: {what} for labels, tags or answers; {fix}")
    checkpoint = _Checkpoint(folder, task, config)
    checkpoint.labels()  # faulty ones are refused before the weights are loaded
    return checkpoint


def _read_classifier(root: Path) -> tuple[LinearHead, bool]:
    """Return the classifier of a folder of SetFit, and whether it reads vectors of length 1.

    It is read from safetensors or JSON with `weight` (L, D), or (1, D) for two labels, and `bias`. SetFit's own
    model_head.pkl is a pickle, which could run any program.
    """
    from safetensors.numpy import load_file

    files = [root / f"{_HEAD}{ending}" for ending in (".safetensors", ".json")]
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        problem = f"a folder of SetFit, whose classifier {_HEAD}.pkl is a pickle, which is not read"
        raise DataError(f"{root}: {problem}; {_SAVE_HEAD.format(folder=root, file=files[0])}")
    stated: Any = checked_json(root / _SETFIT)
    with reading(root, "classifier"):
        arrays = load_file(file) if file.suffix == ".safetensors" else checked_json(file)
        weight, bias = (np.asarray(arrays[name], np.float32) for name in ("weight", "bias"))
    labels = stated.get("labels") or [str(number) for number in range(max(2, len(weight)))]
    if weight.ndim != 2 or bias.shape != weight.shape[:1] or max(2, len(weight)) != len(labels):
        shapes = f"weight {weight.shape} and bias {bias.shape}"
        raise DataError(f"{file}: {shapes} are not (L, D) and (L,) for the {len(labels)} labels; write them again")
    if len(weight) == 1:  # the logit of the second label; that of the first is 0
        weight, bias = (np.concatenate([np.zeros_like(array), array]) for array in (weight, bias))
    return LinearHead(labels, weight, bias), bool(stated.get("normalize_embeddings"))


def _read_json(file: Path) -> Any:
    """Return the content of a JSON file of a checkpoint; nothing if it is not there."""
    return checked_json(file) if file.is_file() else ()


class Reference(NamedTuple):
    """A checkpoint as `transformers` loads it; `ids` are its own for each id of the bundle."""

    tokenizer: Any
    model: Any
    ids: Sequence[int]
    pooling: Pooling | None


def _load_reference(checkpoint: _Checkpoint) -> Reference:
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


MOST_OF_PASSAGE = 20_000  # tokens of a question and a passage, which is read in windows
NO_LENGTH = 1_000_000  # `model_max_length` of a tokenizer that has none is far more


def _settings(
    checkpoint: _Checkpoint, original: Any, aggregation: Aggregation, no_answer: bool, pairs: bool
) -> dict[str, Any]:
    """Return the content of a YAML for the pipeline; `original` is the tokenizer of `transformers`."""
    tokenizer: dict[str, Any] = {"use": "pretrained", "checkpoint": str(checkpoint.folder.resolve())}
    lengths = [length for length in (checkpoint.longest, original.model_max_length) if length and length < NO_LENGTH]
    encoder: dict[str, Any] = {"use": "fine-tuned", "longest": min(lengths, default=None)}
    encoders, reader = [encoder], "jsonl"
    has_types = "token_type_ids" in original.model_input_names
    if checkpoint.task == "QuestionAnswering":
        tokenizer["field"], reader = ["question", "context"], "squad"
        encoders = [{"use": "fine-tuned-reader", "token_types": has_types}]
        head: dict[str, Any] = {"use": "answer-span", "no_answer": no_answer}
    elif checkpoint.task == "TokenClassification":
        encoder["task"] = "token-classification"
        encoders += [{"use": "words", "joined": True}] if aggregation == "first" else []
        head = {"use": "tags", "scheme": checkpoint.labels()[1]}
    elif checkpoint.task:
        encoder["task"] = "sequence-classification"
        if pairs:
            tokenizer["field"] = ["text", "text_pair"]
            encoder["pairs"] = "token-types" if has_types else "separators"
        kind, count = checkpoint.config.problem_type, checkpoint.config.num_labels
        if kind == "regression" and count > 1:
            raise DataError(f"{checkpoint.folder}: it answers with {count} numbers a text; a bundle gives one score")
        head = {"use": "label", "pool": "state", "multi": kind == "multi_label_classification"}
        if count == 1 and not head["multi"]:
            head = {"use": "score", "pool": "state"}
    elif checkpoint.classifier:
        encoder |= {"pool": checkpoint.pooling, "normalize": checkpoint.normalize}
        head = {"use": "label", "pool": "state"}
    else:
        encoder["pool"] = checkpoint.pooling
        head = {"use": "vector", "pool": "state", "normalize": checkpoint.normalize}
    data = {"reader": reader, "train": "texts.jsonl"}
    return {"name": "checkpoint", "data": data, "tokenizer": tokenizer, "encoder": encoders, "head": head}


def _make_artifacts(checkpoint: _Checkpoint, config: Config, original: Any) -> Artifacts:
    """Return the artifacts of a checkpoint, which other pipelines fit to their training records."""
    tokenizer = pretrained_tokenizer(checkpoint.folder).tokenizer
    try:
        bundle.check_stored_tokenizer(tokenizer, str(checkpoint.folder / "tokenizer.json"))
    except BundleError as error:  # found here, before it splits any text
        raise DataError(str(error)) from error
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
    task = task_class(head)
    labels = checkpoint.labels()[0] if task.has_labels and (checkpoint.task or checkpoint.classifier) else []
    answer = task.create(HeadInfo(answer_settings(head)), labels, None).manifest() | {"every_token": True}
    featurizer = TextSource(tokenizer, features, fields, lossless=True, raw=True)
    counts = [0] * tokenizer.get_vocab_size()
    return Artifacts(featurizer, {"": counts}, (FittedTask("", answer, Vocabulary(labels), None),))


def load_checkpoint(
    folder: Path,
    aggregation: Aggregation = "simple",
    pooling: Pooling | None = None,
    no_answer: bool = False,
    pairs: bool = False,
) -> tuple[TrainedPipeline, Reference]:
    """Return the pipeline of a checkpoint, and the checkpoint as `transformers` loads it.

    With the aggregation `first` only the first token of each word is tagged. `pooling` is that of a sentence encoder;
    None for what its folder states. `no_answer`: the checkpoint was trained on questions without answers too. `pairs`:
    it classifies pairs of texts.

    Raises:
        DataError, UsageError: if the folder cannot be converted.
    """
    with reading(folder, "files"):
        checkpoint = _inspect(folder, pooling)
        if pairs and checkpoint.task != "SequenceClassification":
            raise UsageError(f"{folder}: --pairs needs a checkpoint for sequence classification; leave it out")
        reference = _load_reference(checkpoint)
        settings = _settings(checkpoint, reference.tokenizer, aggregation, no_answer, pairs)
        config = load_config(settings, files=False, runs=False)
        network = Network(config, _make_artifacts(checkpoint, config, reference.tokenizer)).eval()
    for child, module in [*network.head.named_children()]:
        if isinstance(module, nn.Linear) and checkpoint.classifier:
            _, weight, bias = checkpoint.classifier
            module.load_state_dict({"weight": torch.from_numpy(weight), "bias": torch.from_numpy(bias)})
        elif isinstance(module, nn.Linear):  # the output of the checkpoint's own head is used unchanged
            setattr(network.head, child, nn.Identity())
    # A bundle reads as many tokens as the checkpoint, whatever the texts of this export are.
    most = min(network.limits.tokens, MOST_OF_PASSAGE)
    name = re.sub("[^A-Za-z0-9._-]", "-", folder.resolve().name).lstrip("._-") or config.name
    config = replace(config, name=name, export=config.export.model_copy(update={"max_tokens": most}))
    return TrainedPipeline(network, config), reference


# The comparison with `transformers`, and the texts for it; the short ones become golden examples.

_SENTENCES = (
    "A warm and funny film, with one of the best endings of the year.",
    "The delivery was two weeks late, and nobody answered my calls.",
    "Angela Merkel met Emmanuel Macron in Paris on 14 July 2017.",
    "Please cancel my subscription and refund the last payment.",
    "Researchers at MIT and ETH Zürich published the results in Nature.",
    "Can you book a table for four at an Italian restaurant tonight?",
)
_MAX_COMPARED_TEXTS = 100  # texts at most


def _read_records(file: Path | None, fields: Sequence[str]) -> list[Record]:
    """Return the records of a file, or built-in ones."""
    if file is None:
        long = [] if "text_pair" in fields else [" ".join(_SENTENCES * 16)]  # pairs to classify are read as a whole
        texts = [*_SENTENCES, *SCRIPTS[:-1], *long]
        return [dict(zip(fields, ("Who met in Paris?", text)[-len(fields) :], strict=True)) for text in texts]
    lines = [(raise_error(line), place) for line, place in read_lines(file)]
    if not (lines := [(line, place) for line, place in lines if line.strip()]):
        raise DataError(f"{file}: has no text; add some, or leave --texts out")
    if input_form(file, (), "text") == "jsonl":
        return [{**parse_record(line, fields, place, False), "where": place} for line, place in lines]
    return [plain_record(line, fields, place) for line, place in lines]


@one_thread()
@torch.no_grad()
def compare_with_reference(network: Network, reference: Reference, records: Sequence[Record]) -> tuple[int, float]:
    """Compare tokens, offsets and logits with `transformers`; return how many texts, and the largest difference.

    Texts with a special token, which is an ordinary text in a bundle, are left out, and so are pairs that need
    several windows.

    Raises:
        ParityError: if a text is read otherwise, or its logits differ by more than `CLOSE`.
    """
    source, limits = network.artifacts.featurizer, network.limits
    encoder: Any = network.encoder[0]
    special_ids = {*reference.tokenizer.all_special_ids} - {reference.tokenizer.unk_token_id}
    assert isinstance(source, TextSource)
    compared, worst = 0, 0.0
    for record in records:
        (doc,), second = source.docs([record]), 0
        if source.pairs:
            second = doc.second or 0
            first: Any = member(encoder, "first_tokens") or second  # a pair to classify has one window
            room = encoder.window - first - encoder.separators
            if second - 1 > first or len(doc) - second > room or second == len(doc):
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
            raise ParityError(f"{text_excerpt(texts[-1])} has other tokens than in transformers; no bundle was written")
        names = network(tensors(source.collate([doc])))
        outputs = reference.model(**encoding)
        ours: Any = names["state"]
        if reference.pooling:
            states = outputs.last_hidden_state  # (1, T, D)
            theirs = states[:, 0] if reference.pooling == "cls" else states.mean(1)
            theirs = nn.functional.normalize(theirs) if encoder.normalize else theirs
        else:
            theirs = outputs.logits if "logits" in outputs else torch.stack([outputs[0], outputs[1]], 2)
        if theirs.dim() == 3:  # the logits of each token
            theirs = theirs[0][places][slice(None) if doc.starts is None else doc.starts]
            ours = names["x"][0, second : second + len(doc)][: len(theirs)]  # no token is a row of padding
        far = (ours - theirs).abs() / theirs.abs().clamp(min=1)
        worst = max(worst, float(far.max()) if far.numel() else 0.0)
        if not worst <= SCORE_ATOL:
            problem = f"logits differ by {worst:.2g} from those of transformers; no bundle was written"
            raise ParityError(f"{text_excerpt(texts[-1])}: {problem}")
        compared += 1
    return compared, worst


def convert_checkpoint(
    folder: Path,
    output: Path,
    console: Console,
    texts: Path | None = None,
    **options: Any,
) -> OpenedBundle:
    """Make a bundle of a fine-tuned checkpoint; return it as an open Model.

    `texts` is a file of texts to compare and to make golden examples of: one a line, or JSON objects; None for built-in
    ones. `options` are those of `load_checkpoint`.

    Raises:
        DataError, UsageError: if the folder cannot be converted; nothing is written then.
        ParityError: if the bundle would not answer as `transformers` does.
    """
    bundle.refuse_other(output)
    pipeline, reference = load_checkpoint(folder, **options)
    family = reference.model.config.model_type
    console.say(f"{folder}: {family}, answers with {task_class(pipeline.config.head[0]).kind_type.kind}")
    source, limits = pipeline.artifacts.featurizer, pipeline.network.limits
    records = _read_records(texts, source.fields)
    if texts is None and not limits.cut:  # the built-in ones that the checkpoint reads
        records = [r for r, doc in zip(records, source.docs(records), strict=True) if len(doc) <= limits.tokens]
    with reading(folder, "files"):
        compared, worst = compare_with_reference(pipeline.network, reference, records[:_MAX_COMPARED_TEXTS])
    console.say(f"  tokens and logits of transformers on {compared:,} texts, within {worst:.1g}")
    del reference
    with lock_around(output):
        return export_bundle(pipeline, records, output, console, references=False)
