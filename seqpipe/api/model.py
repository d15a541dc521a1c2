"""A pipeline that answers, for Python: open a bundle with onnxruntime, without PyTorch or any plugin."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import islice
from pathlib import Path
from typing import Any

from seqpipe.answers.metrics.numbers import scores_table
from seqpipe.answers.types import Masking, Pair
from seqpipe.api.memory import records_of
from seqpipe.batch.tables import answer_table, reader_for
from seqpipe.errors import UsageError
from seqpipe.evaluation.scores import PERTURBATIONS, answered, robustness, score_answers, swap
from seqpipe.evaluation.significance import ScoreContext, score_contexts
from seqpipe.evaluation.text_scores import ScoredText, target_scores, text_scores
from seqpipe.features.parts import read_part
from seqpipe.files import Rows
from seqpipe.runtime import bundle
from seqpipe.runtime.explanation import word_table
from seqpipe.runtime.opened import OpenedBundle
from seqpipe.runtime.session import RUN_SECONDS

Data = str | Path | Iterable[Any]  # a data file, or records


def load(
    path: str | Path,
    device: str = "auto",
    threads: int | None = None,
    *,
    sha256: str | None = None,
    timeout: float | None = RUN_SECONDS,
) -> Model:
    """Open a bundle.

    Args:
        path: The bundle's folder.
        device: `cpu`, `cuda`, `cuda:1`, or `auto`: CUDA if this onnxruntime and machine support it.
        threads: Parallel runs on a CPU, each on one core; by default the number of cores. A single text is run on all
            of them if the graph is large.
        sha256: The required sha256 of bundle.json, which has those of all other files.
        timeout: Maximum seconds of one run of the graph; None: no limit.

    Raises:
        BundleError: if the bundle is damaged, hostile, of another version, or not the one with this sha256.
        EnvError: if the device or onnxruntime is missing.
    """
    return Model(bundle.read(Path(path), sha256), device, threads, timeout)


@dataclass(frozen=True)
class Evaluation:
    """Scores and answers of `Model.evaluate`; printed, a table of the scores.

    Attributes:
        scores: The scores by name, as in the file of a run's scores.
        main: The main scores, each with its interval and the score of a constant prediction.
        groups: The scores of each value of the field `by`.
        answers: A row of `record` and `answer` for each record.
    """

    scores: dict[str, Any]
    main: list[ScoreContext]
    groups: dict[str, Any]
    answers: Rows
    _table: str

    def __str__(self) -> str:
        return "\n".join([self._table, *(context.line for context in self.main)])

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


class Model(OpenedBundle):
    """A pipeline that answers: `model("a text")`, `model(["a", "b"])`, or a generator for a generator.

    An input is a text, or a record: `{"text": …}` or `{"words": […]}` for words already split. Of a bundle that reads
    pictures or sounds it is also a `pathlib.Path`, the bytes of a file, or an array.
    """

    def predict_table(self, table: Any, *, field: str | Sequence[str] = (), **options: Any) -> Any:
        """Answer the rows of a pandas or polars data frame or of an Arrow table; return it with columns of answers.

        Args:
            table: The table; it is not changed.
            field: Column of the texts, or of each text of a pair; by default that of the training data, or `text`.
            options: Decode options of the bundle, and `on_error` and `option_fields` as of a call.
        """
        return answer_table(self, table, [field] if isinstance(field, str) else field, options)

    def score(self, inputs: Any, texts: Any, *, token_scores: bool = False) -> Any:
        """Return given texts as the answers to given inputs, with their `score` and `log_score` (teacher forcing).

        Args:
            inputs: An input, or a list of them; of a language model a prompt.
            texts: The text that may answer the input, or a list of such texts; for a list of inputs a list of either.
            token_scores: Whether the answers have their `tokens`, each with its log-probability.

        Raises:
            DataError: for a text that the model cannot write, or an input that cannot be answered.
            UsageError: if the model generates no text, or if there are more inputs than texts or the reverse.
        """
        several = isinstance(inputs, list | tuple)
        sources, given = (inputs, texts) if several else ([inputs], [texts])
        if not isinstance(given, list | tuple) or len(sources) != len(given):
            raise UsageError(f"score: {len(sources)} inputs need a list of as many texts")
        if wrong := [text for text in given if not isinstance(text, str | list | tuple)]:
            raise UsageError(f"score: a text, or a list of texts, is scored, not {type(wrong[0]).__name__}")
        rows = [[text] if isinstance(text, str) else [*text] for text in given]
        pairs = ((self.record(source), text) for source, row in zip(sources, rows, strict=True) for text in row)
        answers = target_scores(self.predictor, pairs, token_scores)
        scored = [[*islice(answers, len(row))] for row in rows]
        results = [row[0] if isinstance(text, str) else row for row, text in zip(scored, given, strict=True)]
        return results if several else results[0]

    def evaluate(self, data: Data, *, by: str | None = None, **options: Any) -> Evaluation:
        """Answer a data file, records or a data frame with references, and return the scores and the answers.

        Args:
            data: A file that the bundle's reader reads, records, or a data frame with the columns of the training data.
            by: A field of the records, for whose values there are scores too.
            options: Decode options of the bundle, such as `beams`.
        """
        records, pairs = [*self._records(data)], list[Pair]()
        if not records:
            raise UsageError("evaluate: the data have no records")
        answers = [answer for _, answer in answered(self.predictor, records, options=options)]
        together = zip(records, answers, strict=True)
        scores = score_answers(self.predictor, together, by=by, pairs=pairs)
        contexts = score_contexts(self.predictor, pairs, scores[""])
        rows = Rows({"record": record, "answer": answer} for record, answer in zip(records, answers, strict=True))
        groups = {name: of_group for name, of_group in scores.items() if name}
        return Evaluation(scores[""], contexts, groups, rows, scores_table(scores[""], self.predictor.metric_types))

    def log_probability(self, inputs: Any, *, masking: Masking = "token") -> Any:
        """Return the log-probability of a text or record under a language model; a list of them for a list.

        For a masked language model it is the pseudo-log-likelihood (Salazar et al. 2020).

        Args:
            inputs: A text, a record, or a list of them.
            masking: For masked language models: mask each token by itself, or with those after it in its word.

        Raises:
            UsageError: if the bundle is not a language model.
        """
        several = isinstance(inputs, list | tuple)
        texts = (ScoredText(self.record(item)) for item in (inputs if several else [inputs]))
        scores = [score.log_p for score in text_scores(self.predictor, texts, masking)]
        return scores if several else scores[0]

    def explain_data(self, data: Data, *, top: int = 10, **options: Any) -> Rows:
        """Return the `top` words that matter most for each label of the answers to a data file, texts or records.

        Rows of `label`, `word`, `importance`, its mean by occlusion, and `count`; sorted by the sum of importances.
        """
        inputs = self._records(data)
        return word_table((self.explain(i, method="occlusion", faithfulness=False, **options) for i in inputs), top)

    def robustness(self, data: Data, perturb: Sequence[str] = (*PERTURBATIONS,), seed: int = 1) -> Rows:
        """Return the score on a data file or records, and on perturbations (`seqpipe.evaluation.scores`)."""
        return robustness(self.predictor, [*self._records(data)], perturb, seed)

    def swap(self, data: Data, pairs: Sequence[tuple[str, str]]) -> Rows:
        """Return the share of answers that change when the words of a pair are swapped, such as he and she."""
        return swap(self.predictor, [*self._records(data)], pairs)

    def _records(self, data: Data) -> Iterable[Any]:
        reader = reader_for(self.manifest.reader, Path("records.jsonl"))
        columns = [name for name in (reader.options.get(key) for key in ("text", "label", "labels")) if name]
        if not isinstance(data, str | Path):
            is_table = hasattr(data, "columns") or hasattr(data, "column_names")
            rows = records_of(data) if is_table else [*data]
            if columns and all(isinstance(row, Mapping) and row.keys() >= {*columns} for row in rows):
                return bundle.reader_from(reader).records((json.dumps(row, default=str) for row in rows), "row")
            return rows
        return read_part(bundle.reader_from(reader_for(self.manifest.reader, Path(data))), Path(data))
