"""Time CTranslate2 on the weights of a Transformer that seqpipe trained.

Reads names of measurements, a line each, and answers each with its seconds, a line of JSON; the first line it writes is
the list of names. A name is `greedy` or `beam`, then the number of texts in a batch; after `tokens ` the answer
is the generated tokens instead.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
from ctranslate2.specs import common_spec, transformer_spec

BOS, EOS, UNK = "[BOS]", "[EOS]", "[UNK]"


class Spec(transformer_spec.TransformerSpec):
    """CTranslate2's Transformer under its usual name."""


def converted(arrays: dict[str, np.ndarray], sizes: dict[str, Any], folder: Path) -> None:
    """Writes the model: layers that normalise before, waves for positions, one matrix for tokens both ways."""
    layers, heads = (sizes["encoder_layers"], sizes["layers"]), sizes["heads"]
    spec = Spec.from_config(layers, heads, pre_norm=True, activation=common_spec.Activation.RELU)
    encoder, decoder = spec.encoder, spec.decoder
    encoder.scale_embeddings = decoder.scale_embeddings = True
    encoder.embeddings[0].weight = arrays["embedding.0.table.weight"]
    decoder.embeddings.weight = decoder.projection.weight = arrays["heads.0.vocabulary.embedding.weight"]
    decoder.projection.bias = arrays["heads.0.vocabulary.bias"] + arrays["never"]
    encoder.position_encodings.encodings = decoder.position_encodings.encodings = arrays["positions"]
    for side, top in ((encoder, "encoder.0"), (decoder, "heads.0")):
        _norm(side.layer_norm, arrays, f"{top}.norm")
        for number, layer in enumerate(side.layer):
            name = f"{top}.layers.{number}"
            last = 1 if side is encoder else 2
            _norm(layer.self_attention.layer_norm, arrays, f"{name}.norms.0")
            _norm(layer.ffn.layer_norm, arrays, f"{name}.norms.{last}")
            _linear(layer.ffn.linear_0, arrays, f"{name}.feedforward.0")
            _linear(layer.ffn.linear_1, arrays, f"{name}.feedforward.3")
            itself = f"{name}.attention" if side is encoder else f"{name}.itself"
            _joined(layer.self_attention.linear[0], arrays, *(f"{itself}.{part}" for part in ("query", "key", "value")))
            _linear(layer.self_attention.linear[1], arrays, f"{itself}.output")
            if side is decoder:
                _norm(layer.attention.layer_norm, arrays, f"{name}.norms.1")
                _linear(layer.attention.linear[0], arrays, f"{name}.source.attentions.0.query")
                _joined(
                    layer.attention.linear[1],
                    arrays,
                    *(f"{name}.source.attentions.0.{part}" for part in ("key", "value")),
                )
                _linear(layer.attention.linear[2], arrays, f"{name}.source.attentions.0.output")
    spec.register_source_vocabulary(sizes["source"])
    spec.register_target_vocabulary(sizes["target"])
    spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = BOS, EOS, UNK
    spec.config.decoder_start_token = BOS
    spec.validate()
    folder.mkdir(parents=True, exist_ok=True)
    spec.save(str(folder))


def _linear(into: Any, arrays: dict[str, np.ndarray], name: str) -> None:
    _joined(into, arrays, name)


def _joined(into: Any, arrays: dict[str, np.ndarray], *names: str) -> None:
    """Linear layers of one input as one; keys have no bias."""
    weights = [arrays[f"{name}.weight"] for name in names]
    biases = [
        arrays.get(f"{name}.bias", np.zeros(len(weight), np.float32))
        for name, weight in zip(names, weights, strict=True)
    ]
    into.weight, into.bias = np.concatenate(weights), np.concatenate(biases)


def _norm(into: Any, arrays: dict[str, np.ndarray], name: str) -> None:
    into.gamma, into.beta = arrays[f"{name}.weight"], arrays[f"{name}.bias"]


def main() -> None:
    """Answers until its input ends."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument(
        "--folder", type=Path, required=True, help="with weights.npz and task.json; the model goes there"
    )
    arguments = flags.parse_args()
    task = json.loads((arguments.folder / "task.json").read_text(encoding="utf-8"))
    converted(dict(np.load(arguments.folder / "weights.npz")), task["sizes"], arguments.folder / "model")
    translator = ctranslate2.Translator(
        str(arguments.folder / "model"), device="cpu", compute_type="float32", inter_threads=1, intra_threads=1
    )

    def written(name: str) -> list[list[str]]:
        kind, size = name.split()
        texts = task["texts"] if int(size) > 1 else task["texts"][: task["singly"]]
        results = []
        for at in range(0, len(texts), int(size)):
            results += translator.translate_batch(
                texts[at : at + int(size)],
                beam_size=task["beams"] if kind == "beam" else 1,
                length_penalty=0,
                max_decoding_length=task["longest"],
            )
        return [result.hypotheses[0] for result in results]

    said: Any = [f"{kind} {size}" for kind in ("greedy", "beam") for size in (1, 32)]
    for line in itertools.chain([""], sys.stdin):
        if line.startswith("tokens "):
            said = written(line.removeprefix("tokens ").strip())
        elif line:
            clock = time.perf_counter()
            written(line.strip())
            said = time.perf_counter() - clock
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
