"""Tokens a second of a GPT-2 checkpoint in CTranslate2, greedy; then its perplexity on texts.

python ctranslate2_gpt.py FOLDER float32|int8 ROWS PROMPT WRITTEN TEXTS THREADS

TEXTS is a file of token ids (N, T), saved by NumPy, of which those after the first 8 count.
"""

import sys
import tempfile
import time
from pathlib import Path

import ctranslate2
import numpy as np
import transformers

folder, compute, rows, prompt, written = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
ids = np.random.default_rng(0).integers(300, 4900, (rows, prompt))
texts = [tokenizer.convert_ids_to_tokens(row) for row in ids.tolist()]
with tempfile.TemporaryDirectory() as place:
    model = Path(place) / "model"
    ctranslate2.converters.TransformersConverter(folder).convert(str(model), quantization=compute)
    threads = {"inter_threads": 1, "intra_threads": int(sys.argv[7])}
    generator = ctranslate2.Generator(str(model), device="cpu", compute_type=compute, **threads)
    best = float("inf")
    for _ in range(4):
        clock = time.perf_counter()
        results = generator.generate_batch(
            texts, max_length=written, min_length=written, sampling_topk=1, include_prompt_in_result=False
        )
        best = min(best, time.perf_counter() - clock)
    assert all(len(result.sequences_ids[0]) == written for result in results)
    ids = np.load(sys.argv[6])
    scores = generator.score_batch([tokenizer.convert_ids_to_tokens(row) for row in ids.tolist()])
    perplexity = float(np.exp(-np.mean([score.log_probs[7:] for score in scores])))
print(rows * written / best, perplexity)
