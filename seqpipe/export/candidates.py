"""Replace the candidates of a bundle, whose vectors are an initializer of its graph, or the texts that it may write."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from seqpipe.answers.candidates import CANDIDATE_VECTORS, Candidate, candidates_of
from seqpipe.errors import BundleError, DataError, ParityError, UsageError
from seqpipe.export.exporter import answer_again, model_card
from seqpipe.features.document import Arrays, Doc, Record
from seqpipe.runtime import bundle
from seqpipe.runtime.bundle import MOST_FILE
from seqpipe.runtime.decode_options import ALLOWED, MAX_LENGTH, option_arrays
from seqpipe.runtime.manifest import Manifest
from seqpipe.runtime.opened import OpenedBundle
from seqpipe.runtime.predictor import CHUNK, batches, chunks, trim_heap
from seqpipe.types import TextWriter

COSINE_TOLERANCE = 1e-4  # allowed difference of a cosine of the graph from NumPy's
COMPARED_QUERIES = 64  # candidates as queries, to compare the new graph with NumPy


def replace_candidates(path: Path, records: Iterable[Record], output: Path) -> OpenedBundle:
    """Write the bundle at `path` to `output` with the texts of these records as its candidates; return the open Model.

    A bundle that generates text then generates only these texts. The golden examples get new answers. The scores of the
    old candidates are left out.

    Raises:
        UsageError: The bundle neither answers with candidates nor generates text, or cannot write one of the texts.
        DataError: A record is not a candidate, has no token, or is too long.
        ParityError: The new graph does not give the nearest candidates that NumPy computes.
    """
    _write_replaced(path, records, output)
    trim_heap()
    return OpenedBundle(bundle.read(output), "cpu")


def _write_replaced(path: Path, records: Iterable[Record], output: Path) -> None:
    """Write what `replace_candidates` returns, with the vectors in a file and texts tokenized in groups."""
    content = bundle.read(path)
    model = OpenedBundle(content, "cpu")
    kind = model.predictor.kind.parts.get("")
    if kind is not None and kind.writer and ALLOWED in content.manifest.options:
        texts = [*records]
        fields = [field for field in (kind.target, "target") if field and texts and field in texts[0]]
        field = (*fields, model.fields[0])[0]
        _restrict(content, model, kind.writer, candidates_of(texts, field, None).texts, output)
        return
    if kind is None or kind.candidates is None:
        problem = f"{path} answers with {model.predictor.kind.kind}, and has no candidates"
        raise UsageError(f"{problem}; use a bundle with the head retrieval, or one that generates text")
    candidates = candidates_of(records, model.fields[0], kind.target)
    with tempfile.TemporaryFile() as file:
        vectors = _encode(model, candidates.texts, file)
        del model
        replaced = Candidate(candidates, kind.target)
        changes: dict[str, Any] = {"answer": replaced.manifest(), "metrics": {}, "groups": {}, "training": {}}
        manifest = content.manifest.model_copy(update=changes)
        files = _with_initializer(content, CANDIDATE_VECTORS, vectors)
        model = OpenedBundle(bundle.BundleContent(output, manifest, files), "cpu")
        # The graph was exported with the old candidates: the new ones are also searched in NumPy, and both must agree.
        docs = model.predictor.docs([{model.fields[0]: text} for text in candidates.texts[:COMPARED_QUERIES]])
        for doc, decision in zip(docs, _decisions(model, docs), strict=True):
            cosines = vectors @ decision["vector"]
            numbers = decision["nearest"][decision["nearest"] >= 0]
            best = np.sort(cosines)[::-1][: len(decision["nearest"])]
            scores = decision["scores"][: len(numbers)]
            is_right = len(numbers) == len(best) and np.allclose(scores, best, rtol=0, atol=COSINE_TOLERANCE)
            if not is_right or not np.allclose(cosines[numbers], scores, rtol=0, atol=COSINE_TOLERANCE):
                message = f"the graph does not find the candidates nearest to {doc.text!r}; nothing was written"
                raise ParityError(message)
    files, manifest = _with_answers(model, files, manifest)
    del model
    bundle.write_bundle(output, files, manifest)


def _encode(model: OpenedBundle, texts: Sequence[str], file: Any) -> np.ndarray:
    """Return the vectors (N, D) of texts, mapped to a file."""
    for number, part in enumerate(chunks(texts, CHUNK)):
        docs = model.predictor.docs([{model.fields[0]: text} for text in part], number * CHUNK)
        for text, doc in zip(part, docs, strict=True):
            if not len(doc):
                raise DataError(f"the candidate {text!r} has no token; remove it")
        rows = np.stack([decision["vector"] for decision in _decisions(model, docs)])
        if number == 0:
            if (size := len(texts) * rows.shape[1] * rows.itemsize) > MOST_FILE:
                limit = f"the limit of {MOST_FILE:,}; give fewer"
                raise DataError(f"the vectors of {len(texts):,} candidates have {size:,} bytes, over {limit}")
            vectors = np.memmap(file, rows.dtype, "w+", shape=(len(texts), rows.shape[1]))
        vectors[number * CHUNK :][: len(rows)] = rows
    return vectors


def _restrict(
    content: bundle.BundleContent, model: OpenedBundle, writer: TextWriter, texts: Sequence[str], output: Path
) -> None:
    """Write a bundle that generates text to `output`, with these texts as the only ones."""
    if writer.copies:
        message = "copies words, so that the texts it can write differ with the source"
        raise UsageError(f"{content.path} {message}; give {ALLOWED} with each call")
    options: dict[str, Any] = {name: dict(option) for name, option in content.manifest.options.items()}
    arcs = writer.allowed_arcs(ALLOWED, texts, options[MAX_LENGTH]["default"])
    options[ALLOWED]["default"] = [*texts]
    # Golden examples with other options, such as a short `max_length`, have no answer among the texts.
    golden = tuple(example for example in content.manifest.golden if not example.options)
    changes: dict[str, Any] = {"options": options, "golden": golden, "metrics": {}, "groups": {}, "training": {}}
    manifest = content.manifest.model_copy(update=changes)
    files = _with_initializer(content, ALLOWED, arcs(model.predictor.docs([{model.fields[0]: texts[0]}])))
    model = OpenedBundle(bundle.BundleContent(output, manifest, files), "cpu")
    bundle.write_bundle(output, *_with_answers(model, files, manifest))


def _with_initializer(content: bundle.BundleContent, name: str, array: np.ndarray) -> dict[str, bytes]:
    """Return the files of a bundle with another value of an initializer of its graph."""
    graph = onnx.ModelProto.FromString(content.files["model.onnx"])
    stored = [tensor for tensor in graph.graph.initializer if tensor.name == name]
    if not stored:
        raise BundleError(f"{content.path}: model.onnx has no initializer {name!r}; export it again")
    del graph.graph.value_info[:]  # it has the old size
    stored[0].CopyFrom(numpy_helper.from_array(array[:0], name))
    onnx.checker.check_model(graph)  # before it has the array, which a check copies
    stored[0].dims[0], stored[0].raw_data = len(array), array.tobytes()
    return {**content.files, "model.onnx": bytes(graph.SerializeToString())}


def _with_answers(
    model: OpenedBundle, files: Mapping[str, bytes], manifest: Manifest
) -> tuple[dict[str, bytes], Manifest]:
    """Return the files and the manifest of a bundle with new answers to its golden examples, and a new card."""
    manifest = manifest.model_copy(update={"golden": answer_again(model, manifest.golden)})
    card = model_card(manifest, model.predictor.metric_types, sum(map(len, files.values())))
    return {**files, bundle.CARD: card.encode()}, manifest


def _decisions(model: OpenedBundle, docs: Sequence[Doc]) -> list[Arrays]:
    """Run the graph over batches of similar lengths; return the decision for each text, in input order."""
    options = option_arrays(model.manifest.options, {})
    decisions: dict[int, Arrays] = {}
    for rows in batches([len(doc) for doc in docs]):
        decision = model.run(model.predictor.featurizer.collate([docs[i] for i in rows]) | options)
        decisions |= {row: {name: array[i] for name, array in decision.items()} for i, row in enumerate(rows)}
    return [decisions[i] for i in range(len(docs))]
