"""Export a pipeline's graph, or read it from the cache, and compare it with PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import onnx

from seqpipe.config.loader import Config
from seqpipe.console import Console
from seqpipe.errors import SeqpipeError
from seqpipe.export.diagnose import naming_stage_at_fault
from seqpipe.export.graph import graph_without_weights, with_weights
from seqpipe.export.graph_cache import VARIABLE, GraphCache
from seqpipe.export.graph_key import UnknownKeyError, graph_key
from seqpipe.training.evaluation import option_table
from seqpipe.training.pipeline import Pipeline

Used = TypeVar("Used")


def use_graph(
    pipeline: Pipeline, config: Config, cache: GraphCache | None, console: Console, use: Callable[[bytes], Used]
) -> Used:
    """What `use` returns for the bytes of the pipeline's graph.

    Args:
        pipeline: In evaluation.
        config: Of the pipeline: its decode options, opset and whether the graph explains.
        cache: Where the graph is looked for first and written afterwards; None to trace it in any case.
        console: Gets a warning if a cached graph is wrong.
        use: Compares the graph with PyTorch. The graph is cached after that. If `use` raises for a cached graph, the
            entry is deleted and `use` is called again with a new graph.

    Raises:
        ExportError: if a component does not export; and whatever `use` raises for a graph that is not from the cache.
    """
    options = option_table(*config.head)
    settings = (options, config.export.opset, config.export.explain)
    key = _key(pipeline, settings, console) if cache is not None else None
    if cache is not None and key is not None and (cached := cache.read(key)) is not None:
        try:
            return use(with_weights(onnx.ModelProto.FromString(cached), pipeline))
        except Exception as error:  # a new graph shows whether the pipeline is at fault
            cache.delete(key)
            why = str(error).partition(";")[0]  # the rest says what to do about a pipeline
            console.say(f"the cached graph was refused ({type(error).__name__}: {why}); it is deleted, exporting anew")
    with naming_stage_at_fault(pipeline, config.export.opset):
        with console.progress("exporting", None):
            model = graph_without_weights(pipeline, *settings)
        used = use(with_weights(model, pipeline))
    if cache is not None and key is not None and not _holds_weights(model):
        try:
            cache.write(key, bytes(model.SerializeToString()))
        except (OSError, SeqpipeError) as error:  # such as a full disk; the graph itself is fine
            console.say(f"the graph is not cached: {error}; set {VARIABLE} to a folder that can be written")
    return used


def _key(pipeline: Pipeline, settings: Any, console: Console) -> str | None:
    try:
        return graph_key(pipeline, *settings)
    except UnknownKeyError as error:
        console.detail(f"  the graph is not cached: {error}")
        return None


def _holds_weights(model: onnx.ModelProto) -> bool:
    """Whether values of weights stand in a model, as in those that PyTorch's own exporter makes."""
    return any(tensor.raw_data and tensor.name.startswith("pipeline.") for tensor in model.graph.initializer)
