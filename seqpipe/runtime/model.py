"""A bundle in, a callable Model out: onnxruntime and nothing of PyTorch or any plugin."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import numpy as np

from seqpipe.answers.answer_types import Answer
from seqpipe.answers.base import LOOSE, HeadAnswer
from seqpipe.answers.registry import part_of
from seqpipe.answers.types import Masking
from seqpipe.config.checks import PREFIX
from seqpipe.errors import BundleError, DataError, SeqpipeError, UsageError
from seqpipe.features.document import Arrays, Record
from seqpipe.features.kinds.base import SENTENCES
from seqpipe.features.sources import fields_of, masks, one_text, sources_of
from seqpipe.runtime import bundle, session
from seqpipe.runtime.bundle import Statement, check_labels, read_statement
from seqpipe.runtime.decode_options import chosen
from seqpipe.runtime.explanation import Explanation, attention, figure, origins
from seqpipe.runtime.predictor import CHUNK, TOKENS, BundlePredictor, cores
from seqpipe.runtime.session import SECONDS, RunTimes, Watchdog, import_onnxruntime, open_session
from seqpipe.runtime.streams import PieceStream, stream
from seqpipe.runtime.text_scores import ScoredText, text_scores

TOLERANCE = 1e-4  # how far a score may stand from the golden one; in int8 LOOSE: a rounded number may be the next


def load(
    path: str | Path,
    device: str = "auto",
    threads: int | None = None,
    *,
    sha256: str | None = None,
    timeout: float | None = SECONDS,
) -> Model:
    """Opens a bundle.

    Args:
        path: The bundle's folder.
        device: `cpu`, `cuda`, `cuda:1`, or `auto`: CUDA if this onnxruntime and machine have it.
        threads: Runs at once on a CPU, each on one core; as many as there are cores by default.
        sha256: That of the file bundle.json, which holds those of all other files: no other bundle is opened.
        timeout: Seconds that one run of the graph may take; None: any number.

    Raises:
        BundleError: if the bundle is damaged, hostile, of another version, or not the one with this sha256.
        EnvError: if the device or onnxruntime is not there.
    """
    return Model(bundle.read(Path(path), sha256), device, threads, timeout)


class Verification(TypedDict):
    """The proof that a bundle answers on this machine as it did where it was made.

    Keys: `bundle`, its folder; `golden`, the number of golden examples that were answered the same; `device`, which
    answered them; `sha256`, that of bundle.json; `no_golden`, why it has no golden examples, if it has none.
    """

    bundle: str
    golden: int
    device: str
    sha256: str
    no_golden: NotRequired[str]


class Bundle:
    """The folder of an exported pipeline: `Bundle("runs/ner/bundle")`, or the bundle of a `Run`.

    Args:
        path: Folder of the bundle.
        sha256: That of its bundle.json, which holds those of all other files: no other bundle is opened.
    """

    def __init__(self, path: str | Path, sha256: str | None = None):
        self.path, self.sha256 = Path(path), sha256

    def __repr__(self) -> str:
        return f"Bundle({str(self.path)!r})"

    @cached_property
    def manifest(self) -> Mapping[str, Any]:
        """The content of bundle.json; BundleError if it is damaged, hostile, of another version, or another one."""
        return bundle.read_manifest(self.path, self.sha256)[0]

    def load(self, device: str = "auto", threads: int | None = None, *, timeout: float | None = SECONDS) -> Model:
        """Open the bundle; arguments and errors are those of `seqpipe.load`."""
        return load(self.path, device, threads, sha256=self.sha256, timeout=timeout)

    def verify(self, device: str = "auto", threads: int | None = None) -> Verification:
        """Check the hashes, and repeat the golden examples on this machine.

        Raises:
            BundleError: if the bundle answers otherwise than where it was made, or is refused.
        """
        return verify_bundle(self.path, device, threads, self.sha256)


def verify_bundle(
    path: Path, device: str = "auto", threads: int | None = None, sha256: str | None = None
) -> Verification:
    """Verify that a bundle answers its golden examples on this machine as it did where it was made.

    Raises:
        BundleError: if it does not, or is refused.
    """
    model = load(path, device, threads, sha256=sha256)
    if not model.manifest["golden"] and not model.manifest.get("no_golden"):
        raise BundleError(
            f"{path}: it holds no golden examples, so that nothing shows whether it answers right here; export it again"
        )
    check_golden(model, path)
    golden = len(model.manifest["golden"])
    report: Verification = {"bundle": str(path), "golden": golden, "device": model.device, "sha256": model.sha256}
    if not golden:
        report["no_golden"] = model.manifest["no_golden"]
    return report


def check_golden(model: Model, path: Path) -> None:
    """BundleError if an open bundle does not answer its golden examples as it did where it was made."""
    try:
        wrong = model.verify()
    except DataError as error:
        raise BundleError(f"{path}: a golden example of its own cannot be answered here: {error}") from error
    if wrong:
        raise BundleError("\n".join([f"{path}: answers differ on this machine:", *wrong]))


class Model:
    """A pipeline that answers: `model("a text")`, `model(["a", "b"])`, or a generator in and a generator out.

    An input is a text, or a record: `{"text": …}` or `{"words": […]}` for words already split.
    """

    def __init__(
        self,
        content: bundle.BundleContent,
        device: str = "auto",
        threads: int | None = None,
        timeout: float | None = SECONDS,
    ):
        manifest, self.sha256 = content.manifest, content.sha256
        self.manifest = manifest
        stated = read_statement(content)
        kind, self._attended, self.cache = stated.kind, stated.attended, stated.cache
        onnxruntime = import_onnxruntime()
        self.session = open_session(onnxruntime, content.files["model.onnx"], device, content.path)
        self.device = "cuda" if session.CUDA in self.session.get_providers() else "cpu"
        self._path, self._run_options, self._watchdog = content.path, onnxruntime.RunOptions, Watchdog(timeout)
        self.run_times = RunTimes()
        workers = 1 if self.device == "cuda" else threads or cores()
        self._after_huge, self._count_lock = 0, threading.Lock()  # runs that still give memory back
        self.predictor = BundlePredictor(stated.source, kind, self.run, manifest["options"], stated.limits, workers)
        self.fields = fields_of(stated.source)  # of a record, that are read
        self._assign_outputs(stated)

    def _assign_outputs(self, stated: Statement) -> None:
        """Tell decision, cache and attention weights apart; BundleError where graph and manifest disagree."""
        outputs = [output.name for output in self.session.get_outputs()]
        self._weights = [name for name in outputs if name.startswith(PREFIX)]
        self._caches = [entry.output for entry in self.cache]
        self._outputs = [name for name in outputs if name not in self._weights + self._caches]
        inputs = {node.name for node in self.session.get_inputs() + self.session.get_overridable_initializers()}
        past = {entry.input for entry in self.cache}
        odd = sorted(inputs ^ {*self.manifest["inputs"], *stated.options, *past}) + sorted({*self._caches} - {*outputs})
        odd += sorted({*stated.kind.outputs} - {*self._outputs})
        odd += sorted({*self._weights} ^ {attended.output for attended in self._attended})
        if odd:
            raise BundleError(f"{self._path}: model.onnx and {bundle.MANIFEST} disagree about {', '.join(odd)}")
        shapes = {output.name: output.shape for output in self.session.get_outputs()}
        check_labels(stated.kind, shapes, str(self._path))

    def run(self, feeds: Arrays) -> Arrays:
        """One run of the graph: padded features and option inputs to the decision."""
        return self._run(self._outputs, feeds)

    def run_with_cache(self, feeds: Arrays) -> Arrays:
        """The decision, and the cache for a later run (`seqpipe.runtime.bundle.next_inputs`)."""
        return self._run(self._outputs + self._caches, feeds)

    def run_all(self, feeds: Arrays) -> Arrays:
        """The decision, the cache for a later call, and the attention weights too, as `explain.<name>`."""
        return self._run(self._outputs + self._caches + self._weights, feeds)

    def _run(self, names: Sequence[str], feeds: Arrays) -> Arrays:
        options = self._run_options()
        if self._is_huge_or_after(feeds):
            options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")  # keep none that is unused
        times, began = self.run_times, time.monotonic()
        self._watchdog.start(options, times.deadline)
        try:
            arrays = self.session.run(names, feeds, options)
        except Exception as error:  # onnxruntime's exceptions share no base but Exception
            raise self._run_error(error, options.terminate) from error
        finally:
            self._watchdog.stop(options)
            times.add(began, time.monotonic())
        return dict(zip(names, arrays, strict=True))

    def _run_error(self, error: Exception, ended: bool) -> SeqpipeError:
        if ended and time.monotonic() >= self.run_times.deadline:
            return BundleError(f"{self._path}: the graph was ended: nobody waits for its answer any more")
        if ended:
            late = f"the graph ran for over {self._watchdog.seconds:g} seconds, and was ended"
            return BundleError(f"{self._path}: {late}; `load(…, timeout=…)` and `predict --timeout` allow more")
        if any(sign in str(error) for sign in ("allocate", "bad_alloc")):
            reason = "needs more memory for this input than there is; shorten the text, or lower decode options"
            return DataError(f"{self._path}: the graph {reason} ({error})")
        return BundleError(f"{self._path}: onnxruntime could not run the graph: {error}")

    def _is_huge_or_after(self, feeds: Arrays) -> bool:
        """Whether a run gives memory back: that of a huge text, and those after it, when its outputs are gone."""
        huge = max((mask.size for mask in masks(feeds).values()), default=0) > TOKENS
        if self.device != "cpu" or not (huge or self._after_huge):
            return False
        with self._count_lock:
            self._after_huge = 1 + self.predictor.workers if huge else max(0, self._after_huge - 1)
        return True

    def __call__(self, inputs: Any, *, documents: bool = False, chunk: int = CHUNK, **options: Any) -> Any:
        """Answers: one for a text or record, a list for a list, a generator for any other iterable.

        Args:
            inputs: A text, a record, or an iterable of them.
            documents: Take each text as a whole document: split into sentences, offsets into the document.
            chunk: How many inputs are in hand at a time.
            options: Decode options of the bundle, such as `n_best=3`.
        """
        if isinstance(inputs, str | Mapping):
            answer_one = self.predictor.document if documents else self.predictor.answer
            return answer_one(self.record(inputs), **options)
        if isinstance(inputs, list | tuple):
            return list(self._stream(inputs, documents, chunk, options))
        if not isinstance(inputs, Iterable) or isinstance(inputs, bytes):
            raise UsageError(f"a text, a record (dict) or an iterable of them, not {type(inputs).__name__}")
        return self._stream(inputs, documents, chunk, options)

    def stream(self, item: Any, **options: Any) -> Iterator[str]:
        """What follows a prompt, a text or record, in pieces, each as soon as it is written.

        Raises:
            UsageError: if the bundle is no language model, or several answers are asked for.
        """
        return stream(self, self.record(item), **options)

    def open_stream(self, fields: Mapping[str, Any] | None = None) -> PieceStream:
        """A text that is answered in pieces, as they are fed; `fields` is what else of a record the bundle reads.

        Raises:
            UsageError: if the bundle was exported without `streaming`.
        """
        return PieceStream(self, fields)

    def log_probability(self, inputs: Any, *, masking: Masking = "token") -> Any:
        """The log-probability of a text or record under a language model: a number, or a list of them for a list.

        Of a masked language model it is the pseudo-log-likelihood (Salazar et al. 2020).

        Args:
            inputs: A text, a record, or a list of them.
            masking: Of a masked language model: mask each token by itself, or with those behind it in its word.

        Raises:
            UsageError: if the bundle is no language model.
        """
        several = isinstance(inputs, list | tuple)
        texts = (ScoredText(self.record(item)) for item in (inputs if several else [inputs]))
        scores = [score.log_p for score in text_scores(self.predictor, texts, masking)]
        return scores if several else scores[0]

    @property
    def explains(self) -> bool:
        """Whether `explain` has something to show."""
        one = len(sources_of(self.predictor.featurizer)) == 1
        return one and (bool(self._attended) or self.predictor.kind.figure_style is not None)

    def explain(self, item: Any, **options: Any) -> Explanation:
        """The answer to one text or record, with the attention weights of every stage that has any; points as a figure.

        Raises:
            UsageError: if the bundle was exported without them, or reads several inputs.
        """
        if len(sources_of(self.predictor.featurizer)) > 1:
            raise UsageError("this bundle reads several inputs; attention weights are given for one alone")
        if not self._attended and self.predictor.kind.figure_style is None:
            raise UsageError(
                "this bundle gives no attention weights: write `export: {explain: true}` in the YAML and run it, "
                "or export its run again: seqpipe export RUN --set export.explain=true"
            )
        kind, record = self.predictor.kind, self.record(item)
        decoding = chosen(self.predictor.options, options, kind)
        (doc,) = self.predictor.docs([record])
        if not len(doc):
            answer = kind.empty_for(decoding.arrays)
            return Explanation(doc.text, answer, kind.lines(answer), ())
        features = self.predictor.featurizer.collate([doc])
        decision = self.run_all(features | decoding.of([doc]))
        attentions, copied = [], {}
        for attended in self._attended:
            writer, ids = self._written(attended.key, decision)
            if attended.over != "steps":
                steps = writer.step_names(ids, doc) if writer else []
                attentions.append(
                    attention(attended, doc, decision[attended.output][0], self._sentences(features), steps)
                )
            elif writer and writer.copies:
                weights, tokens = (
                    decision[f"{attended.output.rpartition('.')[0]}.attention"][0],
                    writer.step_names(ids, doc),
                )
                words, _ = writer.copies.read(doc)
                copied[attended.key] = origins(
                    doc, writer.step_ids(ids), words, tokens, weights, decision[attended.output][0]
                )
        answer = self.predictor.read([doc], decision)[0]
        return Explanation(doc.text, answer, kind.lines(answer), tuple(attentions), figure(kind, doc, answer), copied)

    def _written(self, key: str, decision: Arrays) -> tuple[HeadAnswer | None, list[int]]:
        """If the stage of this key is a head that answers step by step, its kind, and its first answer."""
        parts, stage = self.predictor.kind.parts, key.split(".")
        if stage[0] != "head":
            return None, []
        name, writer = [*parts.items()][int(stage[1]) if len(parts) > 1 else 0]
        if not writer.step_output:
            return None, []
        return writer, part_of(decision, name)[writer.step_output][0, 0].tolist()

    def _sentences(self, features: Arrays) -> np.ndarray | None:
        """Which tokens make which sentence of the first text, (S, W), where the bundle knows sentences."""
        declared = self.predictor.featurizer.features
        return next((features[name][0] for name, feature in declared.items() if SENTENCES in feature.axes), None)

    def _stream(self, inputs: Iterable[Any], documents: bool, chunk: int, options: dict[str, Any]) -> Iterator[Answer]:
        records = (self.record(item) for item in inputs)
        if documents:
            return (self.predictor.document(record, **options) for record in records)
        return self.predictor.stream(records, chunk, **options)

    def record(self, item: Any) -> Record:
        """An input as a record; DataError or UsageError for what is none."""
        featurizer, fields = self.predictor.featurizer, self.fields
        if not isinstance(item, Mapping) and not one_text(featurizer):
            names = " and ".join(map(repr, fields))
            raise UsageError(
                f"an input is a record (dict with {names}), not {type(item).__name__}: this bundle reads "
                f"{'pairs' if featurizer.pairs else 'several sources' if len(fields) > 1 else 'rows of numbers'}"
            )
        if isinstance(item, str):
            return {fields[0]: item}
        if not isinstance(item, Mapping):
            raise UsageError(
                f"an input is a text or a record (dict with {fields[0]!r} or 'words'), not {type(item).__name__}"
            )
        words = item.get("words")
        if words is not None and not (isinstance(words, list | tuple) and all(isinstance(w, str) for w in words)):
            raise DataError(f"{item.get('where', 'record')}: 'words' must be a list of strings")
        return item

    def verify(self) -> list[str]:
        """Runs the golden examples; what differs from the answers of the machine that exported, a line each."""
        tolerance = LOOSE if self.manifest["parity"].get("precision") == "int8" else TOLERANCE
        wrong = []
        for i, example in enumerate(self.manifest["golden"], 1):
            got = self(example["record"], **example.get("options", {}))
            if not same_answer(got, example["answer"], tolerance):
                wrong.append(f"golden example {i}: {example['record']}: got {got}, expected {example['answer']}")
        return wrong


def same_answer(first: Any, second: Any, tolerance: float = TOLERANCE) -> bool:
    """Equal in everything decided; numbers may differ by the tolerance, of those over 1 by this share of `other`."""
    if isinstance(first, float) and isinstance(second, float):
        return abs(first - second) <= tolerance * max(1.0, abs(second))
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(same_answer(first[key], second[key], tolerance) for key in first)
    if isinstance(first, list) and isinstance(second, list):
        first, second = _ordered(first), _ordered(second)
        return len(first) == len(second) and all(
            same_answer(*pair, tolerance) for pair in zip(first, second, strict=True)
        )
    return type(first) is type(second) and bool(first == second)


def _ordered(answers: list[Any]) -> list[Any]:
    """Objects with scores by what they hold besides numbers: those of almost equal scores may change places."""
    if not all(isinstance(answer, dict) and any(map(_is_float, answer.values())) for answer in answers):
        return answers
    decided = [repr([value for value in answer.values() if not _is_float(value)]) for answer in answers]
    return [answer for _, answer in sorted(zip(decided, answers, strict=True), key=itemgetter(0))]


def _is_float(value: Any) -> bool:
    return isinstance(value, float)
