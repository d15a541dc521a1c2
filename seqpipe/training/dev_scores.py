"""Scores on the dev set during training."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from seqpipe.config.loader import Config
from seqpipe.features.document import Record
from seqpipe.runtime.evaluate import evaluate
from seqpipe.training.datasets import Batch
from seqpipe.training.measures import calibrate, head_measures, perplexities
from seqpipe.training.pipeline import Pipeline
from seqpipe.training.predictor import predictor


@dataclass(frozen=True)
class DevScores:
    """A function that scores a pipeline on the dev set.

    Attributes:
        pipeline: The pipeline in training.
        config: Its configuration.
        records: The dev records; none of them where only the batches are scored.
        batches: Makes the batches of the dev set, with targets.
        device: Where the pipeline is.
    """

    pipeline: Pipeline
    config: Config
    records: Sequence[Record]
    batches: Callable[[], Iterable[Batch]]
    device: str

    def __call__(self, check_interrupt: Callable[[], None], only_names: bool = False) -> Mapping[str, Any]:
        """Return the scores.

        Args:
            check_interrupt: Called now and then; what it raises ends the evaluation.
            only_names: Score two records only, where the names of the scores are wanted.
        """
        pipeline, records = self.pipeline, self.records[:2] if only_names else self.records
        most = 1 if only_names else None
        if not only_names:
            calibrate(pipeline, self._device_batches)
        by_head = perplexities(pipeline, itertools.islice(self._device_batches(), most))
        if pipeline.is_language_model:
            check_interrupt()
            return {"perplexity": by_head[""], "loss": math.log(by_head[""])}
        scores = evaluate(predictor(pipeline, self.config, self.device, check_interrupt), records)[""]
        for head, perplexity in by_head.items():
            (scores[head] if head else scores)["perplexity"] = perplexity
        for head, measures in head_measures(pipeline, itertools.islice(self._device_batches(), most)).items():
            if head:
                scores[head].update(measures)
            else:
                scores = {**measures, **scores}  # what a head measures of itself decides which weights are best
        return scores

    def _device_batches(self) -> Iterator[Batch]:
        """Yield the batches on the device; none is made before it is asked for."""
        for batch in self.batches():
            yield {name: tensor.to(self.device) for name, tensor in batch.items()}
