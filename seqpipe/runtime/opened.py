"""Open a bundle, and answer with it: with onnxruntime, without PyTorch or any plugin."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from seqpipe.answers.answer_types import Answer
from seqpipe.answers.base import LOOSE
from seqpipe.answers.text import GeneratedText
from seqpipe.answers.types import Attended
from seqpipe.errors import BundleError, DataError, UsageError
from seqpipe.features.document import Arrays, Record
from seqpipe.features.media import is_media_value
from seqpipe.features.sources import media_fields, one_text, read_fields
from seqpipe.runtime import bundle
from seqpipe.runtime.decode_options import caller_options, describe_options, field_options, options_of, record_keys
from seqpipe.runtime.explanation import Explanation, Method, explain_record, has_explanation
from seqpipe.runtime.manifest import Golden
from seqpipe.runtime.predictor import CHUNK, ON_ERROR, BundlePredictor, raise_error, state_error
from seqpipe.runtime.session import RUN_SECONDS, GraphSession
from seqpipe.runtime.streams import PieceStream, stream

SCORE_TOLERANCE = 1e-4  # allowed difference of a score from the golden one; in int8 LOOSE, since rounding may differ


def open_bundle(
    path: str | Path,
    device: str = "auto",
    threads: int | None = None,
    *,
    sha256: str | None = None,
    timeout: float | None = RUN_SECONDS,
) -> OpenedBundle:
    """Open a bundle; arguments and errors are those of `seqpipe.load`."""
    return OpenedBundle(bundle.read(Path(path), sha256), device, threads, timeout)


class Verification(TypedDict):
    """Result of comparing a bundle's answers on this machine with those of the exporting machine.

    Keys: `bundle`, its folder; `golden`, the number of golden examples with the same answers; `device`, the device;
    `sha256`, that of bundle.json; `no_golden`, the reason why it has no golden examples, if it has none.
    """

    bundle: str
    golden: int
    device: str
    sha256: str
    no_golden: NotRequired[str]


def verify_bundle(
    path: Path, device: str = "auto", threads: int | None = None, sha256: str | None = None
) -> Verification:
    """Verify that a bundle answers its golden examples on this machine as on the exporting machine.

    Raises:
        BundleError: if it does not, or is refused.
    """
    model = open_bundle(path, device, threads, sha256=sha256)
    if not model.manifest.golden and not model.manifest.no_golden:
        raise BundleError(f"{path}: it has no golden examples, so its answers cannot be verified; export it again")
    check_golden(model, path)
    golden = len(model.manifest.golden)
    report: Verification = {"bundle": str(path), "golden": golden, "device": model.device, "sha256": model.sha256}
    if not golden:
        report["no_golden"] = model.manifest.no_golden
    return report


def check_golden(model: OpenedBundle, path: Path) -> None:
    """Raise BundleError if an open bundle answers its golden examples differently from the exporting machine."""
    try:
        wrong = model.verify()
    except DataError as error:
        raise BundleError(f"{path}: a golden example cannot be answered here: {error}") from error
    if wrong:
        raise BundleError("\n".join([f"{path}: answers differ on this machine:", *wrong]))


class OpenedBundle:
    """A bundle that answers inputs, with its manifest, graph and predictor."""

    def __init__(
        self,
        content: bundle.BundleContent,
        device: str = "auto",
        threads: int | None = None,
        timeout: float | None = RUN_SECONDS,
    ):
        self.manifest, self.sha256 = content.manifest, content.sha256
        self._opened = content.path.absolute(), content.sha256, device, threads, timeout
        source, kind = bundle.build(content)
        self.graph = graph = GraphSession(content, kind, device, threads, timeout)
        self.device, self.run_times = graph.device, graph.run_times
        options, limits = self.manifest.options, self.manifest.limits
        self.predictor = BundlePredictor(
            source, kind, graph.run, options, limits, graph.workers, run_alone=graph.run_alone
        )
        self.fields = read_fields(source)  # the fields of a record that are read
        self._option_names = frozenset(caller_options(self.predictor.options)).difference(self.fields)
        self._reads_one_text = one_text(source)
        self._attended = [Attended(key, of.over, of.axis, of.grid) for key, of in self.manifest.explain.items()]
        self._reads_media = len(self.fields) == 1 and bool(media_fields(source))

    def __reduce__(self) -> Any:
        """Pickle and copy as folder, sha256 and settings; unpickling opens the bundle again."""
        return _open_again, (type(self), *self._opened)

    def __repr__(self) -> str:
        kinds = ", ".join(f"{head or 'answer'}={part.kind!r}" for head, part in self.predictor.kind.parts.items())
        options = f"options={[*describe_options(self.predictor.options)]}, device={self.device!r}"
        return f"{type(self).__name__}({str(self._opened[0])!r}, {kinds}, fields={[*self.fields]}, {options})"

    @property
    def labels(self) -> tuple[str, ...] | dict[str, tuple[str, ...]]:
        """The labels that an answer may have, empty for kinds without labels; by head for several heads."""
        labels = {head: tuple(part.label_names) for head, part in self.predictor.kind.parts.items()}
        return labels.get("", labels)

    @property
    def session(self) -> Any:
        """onnxruntime's session."""
        return self.graph.session

    @property
    def run(self) -> Callable[[Arrays], Arrays]:
        """Run the graph: padded features and option inputs to the decision."""
        return self.graph.run

    def __call__(
        self,
        inputs: Any,
        *,
        documents: bool = False,
        chunk: int = CHUNK,
        on_error: str = "stop",
        option_fields: Iterable[str] | Mapping[str, str] = (),
        **options: Any,
    ) -> Any:
        """Answer a text or record; return a list for a list, and a generator for any other iterable.

        Args:
            inputs: A text, a record, or an iterable of them; for pictures and sounds also a path, bytes or an array.
            documents: Treat each text as a document: split it into sentences, with offsets into the document.
            chunk: Number of inputs processed at a time.
            on_error: "stop": raise the error of the first input that cannot be answered; "skip": its answer is
                `{"error": message}`, and all others are answered.
            option_fields: Decode options that each record has itself: `["prefix"]`, or `{"prefix": "start"}` for
                another key of the record. A record without the key has the option's usual value.
            options: Decode options of the bundle, such as `n_best=3`.

        Raises:
            DataError: for an input that cannot be answered, with its number; also for a key of a record that is the
                name of a decode option, and neither a field of the bundle nor in `option_fields`.
            UsageError: for an option that the bundle does not have, or a wrong value.
        """
        if on_error not in ON_ERROR:
            raise UsageError(f"on_error={on_error!r}: must be one of {', '.join(ON_ERROR)}")
        options = field_options(option_fields, options, self.predictor.options)
        if isinstance(inputs, str | Mapping) or (self._reads_media and is_media_value(inputs)):
            if on_error == "skip":
                return next(self._stream([inputs], documents, 1, on_error, options))
            answer_one = self.predictor.document if documents else self.predictor.answer
            record = self.record(inputs, options)
            return answer_one(record, **options_of(record, options, self.predictor.options))
        if isinstance(inputs, list | tuple):
            return list(self._stream(inputs, documents, chunk, on_error, options))
        if not isinstance(inputs, Iterable) or isinstance(inputs, bytes):
            raise UsageError(f"a text, a record (dict) or an iterable of them, not {type(inputs).__name__}")
        return self._stream(inputs, documents, chunk, on_error, options)

    def stream(self, item: Any, **options: Any) -> Iterator[GeneratedText]:
        """Yield the continuation of a prompt, a text or record, in chunks, each as soon as it is generated.

        A chunk is a text with the attributes `tokens`, the number generated so far, and `finish_reason`.

        Raises:
            UsageError: if the bundle is not a language model, or several answers are requested.
        """
        if self.manifest.streaming:
            raise UsageError("this bundle answers streamed texts: feed the chunks to `open_stream()`")
        return stream(self.predictor, self.graph, self.record(item), **options)

    def open_stream(self, fields: Mapping[str, Any] | None = None) -> PieceStream:
        """Open a text that is fed and answered in chunks; `fields` has the record's other fields.

        Raises:
            UsageError: if the bundle was exported without `streaming`.
        """
        return PieceStream(self.predictor, self.graph, self.manifest.streaming, fields)

    @property
    def explains(self) -> bool:
        """Return whether the model has explanations by attention, or a figure of points."""
        return has_explanation(self.predictor, self._attended)

    def explain(
        self, item: Any, *, method: Method | None = None, faithfulness: bool = True, **options: Any
    ) -> Explanation:
        """Return the answer to one text or record, and the weight of each word; UsageError for a method it lacks.

        The `method` is `attention`, the weights of all stages and a figure of points, the default if the bundle was
        exported with them, or `occlusion`, for any model: the drop of the answer's score without each word. With
        `faithfulness` occlusion has a deletion curve. `options` are decode options of the bundle.
        """
        record = self.record(item)
        return explain_record(self.predictor, self.graph, self._attended, record, options, method, faithfulness)

    def _stream(
        self, inputs: Iterable[Any], documents: bool, chunk: int, on_error: str, options: dict[str, Any]
    ) -> Iterator[Answer]:
        skips = on_error == "skip"
        read = self._record_or_error if skips else self.record
        records = (read(item, options) for item in inputs)
        if documents:
            return map(state_error if skips else raise_error, self.predictor.documents(records, options))
        return self.predictor.stream(records, chunk, skips, **options)

    def _record_or_error(self, item: Any, options: Mapping[str, Any]) -> Record | DataError:
        try:
            return self.record(item, options)
        except (DataError, UsageError) as error:
            return DataError(str(error))

    def record(self, item: Any, options: Mapping[str, Any] | None = None) -> Record:
        """Return an input as a record, for these decode options; DataError or UsageError if it is not valid."""
        featurizer, fields = self.predictor.featurizer, self.fields
        if self._reads_media and (is_media_value(item) or isinstance(item, list)):
            return {fields[0]: item}
        if not isinstance(item, Mapping) and not self._reads_one_text:
            names = " and ".join(map(repr, fields))
            read = "pairs" if featurizer.pairs else "several sources" if len(fields) > 1 else "rows of numbers"
            expected = f"a record (dict with {names})"
            raise UsageError(f"an input is {expected}, not {type(item).__name__}: this bundle reads {read}")
        if isinstance(item, str):
            return {fields[0]: item}
        if not isinstance(item, Mapping):
            expected = f"a text or a record (dict with {fields[0]!r} or 'words')"
            raise UsageError(f"an input is {expected}, not {type(item).__name__}")
        words = item.get("words")
        if words is not None and not (isinstance(words, list | tuple) and all(isinstance(w, str) for w in words)):
            raise DataError(f"{item.get('where', 'record')}: 'words' must be a list of strings")
        if not self._option_names.isdisjoint(item):
            self.refuse_option_keys(item, record_keys(options or {}).values())
        return item

    def refuse_option_keys(self, record: Mapping[str, Any], read: Collection[str]) -> None:
        """Raise DataError for a key of a record that is the name of a decode option, and not among those `read`."""
        for name in sorted(self._option_names & record.keys() - {*read}):
            fix = f"or name the key in option_fields (predict --option-field {name}), so that each record has its own"
            fault = f"{name!r} is a decode option and no field of this bundle"
            raise DataError.at(record, f"{fault}; set the option for all inputs, {fix}, or remove the key")

    def answer_example(self, example: Golden) -> Answer:
        """Return the answer to a golden example, with its options."""
        options: Mapping[str, Any] = example.options
        return self(example.record, **options)

    def verify(self) -> list[str]:
        """Run the golden examples; return a line for each difference from the answers of the exporting machine."""
        tolerance = LOOSE if self.manifest.parity.get("precision") == "int8" else SCORE_TOLERANCE
        wrong = []
        for i, example in enumerate(self.manifest.golden, 1):
            got = self.answer_example(example)
            if not same_answer(got, example.answer, tolerance):
                wrong.append(f"golden example {i}: {example.record}: got {got}, expected {example.answer}")
        return wrong


def _open_again(
    cls: type[OpenedBundle], path: Path, digest: str, device: str, threads: int | None, timeout: float | None
) -> OpenedBundle:
    return cls(bundle.read_again(path, digest), device, threads, timeout)


def same_answer(first: Any, second: Any, tolerance: float = SCORE_TOLERANCE) -> bool:
    """Return whether decisions are equal; numbers may differ by the tolerance, relative to `second` above 1."""
    if isinstance(first, float) and isinstance(second, float):
        return abs(first - second) <= tolerance * max(1.0, abs(second))
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(same_answer(first[key], second[key], tolerance) for key in first)
    if isinstance(first, list) and isinstance(second, list):
        pairs = zip(_sort_answers(first), _sort_answers(second), strict=False)
        return len(first) == len(second) and all(same_answer(*pair, tolerance) for pair in pairs)
    if isinstance(first, str) and isinstance(second, str):  # one may be a GeneratedText
        return bool(first == second)
    return type(first) is type(second) and bool(first == second)


def _sort_answers(answers: list[Any]) -> list[Any]:
    """Sort scored objects by their content without numbers: objects with almost equal scores may be in either order."""
    if not all(isinstance(answer, dict) and any(map(_is_float, answer.values())) for answer in answers):
        return answers
    decided = [repr([value for value in answer.values() if not _is_float(value)]) for answer in answers]
    return [answer for _, answer in sorted(zip(decided, answers, strict=True), key=itemgetter(0))]


def _is_float(value: Any) -> bool:
    return isinstance(value, float)
