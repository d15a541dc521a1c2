"""A checkpoint's encoder and tokenizer: what `transformers` makes of the same text, at any length, and in the graph."""

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from exported_graphs import export, ragged_mask
from second_runtime import Bundle as SecondRuntime
from tiny_checkpoints import FAMILIES, change_json, checkpoint
from tiny_pipelines import QUIET, build_parts, seqpipe, succeed, write_tagger
from tokenizers import Tokenizer
from torch import Tensor

from seqpipe import load as open_bundle
from seqpipe.config.loader import load_config
from seqpipe.errors import ConfigError, DataError, EnvError, SeqpipeError, UsageError
from seqpipe.features.checkpoint_tokenizer import pretrained_tokenizer
from seqpipe.features.document import Doc
from seqpipe.features.kinds.text import Segments
from seqpipe.features.sources import TextSource
from seqpipe.features.vocabulary import Vocabulary, vocabulary_of
from seqpipe.nn.pretrained import Seq2SeqCheckpoint
from seqpipe.runs.check import check_export
from seqpipe.training.optim import make_optimizer
from seqpipe_plugins.encoders.pretrained import PretrainedEncoder

TEXTS = ["Ada met Bob in Oslo", "a teacher of mathematics", "she said: hello, world!", "你好 Zürich", "hello", "of of"]
AXES = {"ids": ("b", "t"), "mask": ("b", "t")}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("checkpoints")
    return {family: checkpoint(place / family, family, TEXTS * 3) for family in FAMILIES}


def vocabulary(folder: Path) -> Vocabulary:
    return vocabulary_of(pretrained_tokenizer(folder)[0])


def build(folder: Path, **options: Any) -> PretrainedEncoder:
    return PretrainedEncoder(vocabulary(folder), checkpoint=folder, **options).eval()


@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_and_vectors_are_those_of_transformers_under_other_ids(folders: dict[str, Path], family: str) -> None:
    folder, encoder = folders[family], build(folders[family])
    tokenizer, old, _ = pretrained_tokenizer(folder)
    their_tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    theirs = transformers.AutoModel.from_pretrained(folder).eval()
    assert sorted(old) == sorted(i for token, i in their_tokenizer.get_vocab().items() if token != "<|endoftext|>")
    docs = TextSource(tokenizer, {}).docs([{"text": text} for text in TEXTS])
    arrays = TextSource(tokenizer, {}).collate(docs)
    output = encoder(*(torch.from_numpy(arrays[name]) for name in ("ids", "mask")))
    for b, (text, doc) in enumerate(zip(TEXTS, docs, strict=True)):
        assert [old[i] for i in doc.ids] == their_tokenizer(text, add_special_tokens=False)["input_ids"]
        assert "".join(text[start:end] for start, end in doc.word_offsets) == text.replace(" ", "")
        batch = torch.tensor([[old[2], *(old[i] for i in doc.ids), old[3]]])
        with torch.no_grad():
            expected = theirs(input_ids=batch).last_hidden_state[0]
        assert torch.allclose(output["x"][b, : len(doc)], expected[1:-1], atol=1e-5)
        assert torch.allclose(output["state"][b], expected[0], atol=1e-5)
        assert not output["x"][b, len(doc) :].any()


PAIRS = [("Ada met Bob", "in Oslo"), ("hello", "a teacher of mathematics"), ("你好 Zürich", "of")]
PAIRS += [("", "hello, world!"), ("of of of", "she said: hello")]


def pair_arrays(folder: Path, pairs: Sequence[tuple[str, str]]) -> tuple[dict[str, Tensor], list[Doc]]:
    featurizer = TextSource(pretrained_tokenizer(folder).tokenizer, {"segments": Segments()}, ["a", "b"])
    docs = featurizer.docs([{"a": a, "b": b} for a, b in pairs])
    return {name: torch.from_numpy(array) for name, array in featurizer.collate(docs).items()}, docs


@pytest.mark.parametrize("family", FAMILIES)
def test_vectors_of_pairs_are_those_of_transformers(folders: dict[str, Path], family: str) -> None:
    folder, encoder = folders[family], build(folders[family], first=12)
    ours, theirs = pretrained_tokenizer(folder), transformers.AutoModel.from_pretrained(folder).eval()
    arrays, docs = pair_arrays(folder, PAIRS)
    output = encoder(**arrays)
    for b, (doc, (first, second)) in enumerate(zip(docs, PAIRS, strict=True)):
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        batch = tokenizer(first, second, return_tensors="pt", return_token_type_ids=encoder.tells_apart)
        ids = batch["input_ids"][0].tolist()
        at = doc.second or 0
        inner = [ours.ids[i] for i in doc.ids]
        assert ids[1:-1] == [*inner[:at], *inner[at - 1 : at] * (ours.separators - 1), *inner[at:]]
        with torch.no_grad():
            expected = theirs(**batch).last_hidden_state[0]
        kept = torch.cat([expected[1 : at + 1], expected[at + ours.separators : -1]])
        assert torch.allclose(output["x"][b, : len(doc)], kept, atol=1e-5)
        assert torch.allclose(output["state"][b], expected[0], atol=1e-5)
    assert encoder.tells_apart == (family in ("bert", "electra"))
    assert ours.separators == (2 if "roberta" in family else 1)


def test_each_window_of_a_long_pair_holds_the_first_text_whole(folders: dict[str, Path]) -> None:
    folder = folders["bert"]
    short, whole = build(folder, window=14, first=5, overlap=4), build(folder, window=30)
    first, second = "Ada met Bob", "a teacher of mathematics " * 3
    arrays, (doc,) = pair_arrays(folder, [(first, second)])
    at = doc.second or 0
    output, room = short(**arrays)["x"][0], 14 - 5 - 1
    n = len(doc) - at
    for begin in range(0, n - 4, room - 4):
        window = [*range(at), *(at + i for i in range(begin, min(begin + room, n)))]
        alone = whole(**{name: tensor[:, window] for name, tensor in arrays.items()})["x"][0]
        inner = range(begin + 2 * (begin > 0), min(begin + room - 2 * (begin + room < n), n))
        for i in inner:
            assert torch.allclose(output[at + i], alone[at + i - begin], atol=1e-5), (begin, i)


@pytest.mark.parametrize("family", ["bert", pytest.param("roberta", marks=pytest.mark.long)])
def test_the_graph_reads_pairs_as_pytorch_does(folders: dict[str, Path], family: str, tmp_path: Path) -> None:
    encoder = build(folders[family], window=12, first=4)

    def pairs(*lengths: tuple[int, int]) -> dict[str, Tensor]:
        ids, mask = rows(folders[family], *(a + 1 + b for a, b in lengths))
        t, firsts = torch.arange(ids.shape[1]), torch.tensor([[a + 1] for a, _ in lengths])
        return {"ids": ids, "mask": mask, "segments": torch.where(t < firsts, 1, 2) * mask}

    example = pairs((3, 30), (2, 2), (1, 3))
    graph = export(tmp_path / "pairs.onnx", encoder, encoder.forward, AXES | {"segments": ("b", "t")}, **example)
    for lengths in [((0, 1),), ((4, 0),), ((4, 9), (0, 5)), ((1, 40), (4, 3), (3, 17), (0, 0))]:
        batch = pairs(*lengths)
        output = graph(**batch)
        for name, tensor in encoder(**batch).items():
            assert (torch.from_numpy(output[name]).float() - tensor.float()).abs().max() < 1e-4, (name, lengths)
        for b, (first, second) in enumerate(lengths):
            n = first + 1 + second
            alone = encoder(**{name: tensor[b : b + 1, :n] for name, tensor in batch.items()})
            assert torch.allclose(encoder(**batch)["x"][b, :n], alone["x"][0], atol=1e-5)


def rows(folder: Path, *lengths: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(len(lengths))
    mask = ragged_mask(*lengths)
    return torch.randint(4, len(vocabulary(folder)), mask.shape), mask


def test_a_token_has_the_vectors_of_its_windows_and_first_that_farthest_from_an_edge(folders: dict[str, Path]) -> None:
    whole, encoder = build(folders["bert"]), build(folders["bert"], window=8, overlap=4)
    ids, mask = rows(folders["bert"], 21)
    output = {name: tensor[0] for name, tensor in encoder(ids, mask).items()}
    windows = [whole(ids[:, at : at + 8], mask[:, at : at + 8])["x"][0] for at in range(0, 20, 4)]  # the last has 5
    for t, (k, other) in enumerate(zip(output["window"].tolist(), output["other_window"].tolist(), strict=True)):
        inside = [k for k in range(len(windows)) if k * 4 <= t < k * 4 + 8]
        edges = {k: min([t - k * 4 + 1] * (k > 0) + [min(k * 4 + 8, 21) - t] * (k < 4) + [99]) for k in inside}
        assert {k, other} == {*inside}, t
        assert edges[k] == max(edges.values())
        assert torch.allclose(output["x"][t], windows[k][t - 4 * k], atol=1e-5)
        assert torch.allclose(output["other_x"][t], windows[other][t - 4 * other], atol=1e-5)


@pytest.mark.parametrize("family", ["bert", "modernbert"])
@pytest.mark.parametrize("options", [{}, {"window": 7, "overlap": 2}, {"window": 6, "overlap": 5}])
def test_neighbours_never_change_a_row(folders: dict[str, Path], family: str, options: dict[str, Any]) -> None:
    encoder, lengths = build(folders[family], **options), (90, 1, 6, 7, 8, 39, 40)
    ids, mask = rows(folders[family], *lengths)
    together = encoder(torch.where(mask, ids, 3), mask)
    for b, n in enumerate(lengths):
        alone = encoder(ids[b : b + 1, :n], mask[b : b + 1, :n])
        assert torch.allclose(together["x"][b, :n], alone["x"][0], atol=1e-5)
        assert torch.allclose(together["state"][b], alone["state"][0], atol=1e-5)


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=[pytest.mark.long] * (name != "modernbert")) for name in FAMILIES]
)
def test_the_graph_answers_as_pytorch_at_any_length(folders: dict[str, Path], family: str, tmp_path: Path) -> None:
    encoder = build(folders[family], window=8)
    ids, mask = rows(folders[family], encoder.example_length, 3, 2)
    graph = export(tmp_path / "encoder.onnx", encoder, encoder.forward, AXES, ids=ids, mask=mask)
    assert {entry.domain for entry in graph.model.opset_import} == {""}
    for lengths in [(1,), (2, 5), (8,), (9, 3), (1, 30, 8, 4, 17)]:
        ids, mask = rows(folders[family], *lengths)
        output = graph(ids=ids, mask=mask)
        for name, tensor in encoder(ids, mask).items():
            assert (torch.from_numpy(output[name]).float() - tensor.float()).abs().max() < 1e-5, (name, lengths)


def test_layers_may_be_left_out_or_averaged(folders: dict[str, Path]) -> None:
    ids, mask = rows(folders["bert"], 5, 3)
    both, one = build(folders["bert"], layers=(1, 2)), build(folders["bert"], depth=1)
    last = build(folders["bert"])(ids, mask)["x"]
    assert torch.allclose(both(ids, mask)["x"], (one(ids, mask)["x"] + last) / 2, atol=1e-5)
    assert len([name for name, _ in one.named_parameters() if "layer.1." in name]) == 0


def test_each_layer_of_modernbert_is_what_transformers_makes_of_it(folders: dict[str, Path]) -> None:
    folder = folders["modernbert"]
    old, theirs = pretrained_tokenizer(folder).ids, transformers.AutoModel.from_pretrained(folder).eval()
    ids, mask = rows(folder, 20)
    batch = torch.tensor([[old[2], *(old[i] for i in ids[0].tolist()), old[3]]])
    with torch.no_grad():
        states = theirs(input_ids=batch, output_hidden_states=True).hidden_states
    for layer, expected in enumerate(states):
        assert torch.allclose(build(folder, layers=(layer,))(ids, mask)["x"], expected[:, 1:-1], atol=1e-5)
    lower = build(folder, depth=2)
    assert [lower.model.layers[i].attention_type for i in (0, 1)] == ["full_attention", "sliding_attention"]
    with torch.no_grad():
        assert torch.allclose(lower(ids, mask)["x"], theirs.final_norm(states[2])[:, 1:-1], atol=1e-5)


def test_dropout_is_that_of_every_part_of_modernbert(folders: dict[str, Path]) -> None:
    encoder = build(folders["modernbert"], dropout=0.25)
    dropouts = [module.p for module in encoder.modules() if isinstance(module, torch.nn.Dropout)]
    assert dropouts == [0.25] * (1 + 2 * 3)
    assert {layer.attn.attention_dropout for layer in encoder.model.layers} == {0.25}
    lower = build(folders["modernbert"], layer_decay=0.5)
    factors = {name: lower.learning_rate_factor(name) for name, _ in lower.named_parameters()}
    assert factors["model.layers.2.attn.Wqkv.weight"] == factors["model.final_norm.weight"] == 1
    assert factors["model.layers.0.mlp.Wi.weight"] == 0.25
    assert factors["model.embeddings.tok_embeddings.weight"] == 0.125


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_recomputed_layers_have_the_same_gradient(folders: dict[str, Path], family: str) -> None:
    ids, mask = rows(folders[family], 5, 3)
    gradients = []
    for recompute in (False, True):
        encoder = build(folders[family], dropout=0.0, recompute=recompute).train()
        encoder(ids, mask)["x"].square().sum().backward()
        gradients.append([parameter.grad for parameter in encoder.parameters()])
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(*gradients, strict=True) if a is not None)


def piped(folder: Path, place: Path, **encoder: Any) -> Path:
    """The YAML of a tagger over the words of a checkpoint's pieces."""
    first = {"use": "pretrained", "checkpoint": str(folder), **encoder}
    changes = {"tokenizer": {"use": "pretrained", "checkpoint": str(folder)}, "embedding": []}
    return write_tagger(place, changes | {"encoder": [first, {"use": "words"}]})


def test_lower_layers_learn_slower(folders: dict[str, Path], tmp_path: Path) -> None:
    config = load_config(piped(folders["bert"], tmp_path, layer_decay=0.5, lr=0.01))
    pipeline, batches = build_parts(config)
    names = {id(parameter): name for name, parameter in pipeline.named_parameters()}
    optimizer = make_optimizer(pipeline, config)
    rates = {names[id(p)]: group["lr"] for group in optimizer.param_groups for p in group["params"]}
    assert rates["encoder.0.model.encoder.layer.1.attention.self.query.weight"] == 0.01
    assert rates["encoder.0.model.encoder.layer.0.attention.self.query.weight"] == 0.005
    assert rates["encoder.0.model.embeddings.word_embeddings.weight"] == 0.0025
    assert {rate for name, rate in rates.items() if name.startswith("heads")} == {0.02}
    pipeline.loss(batches(batches.order(0)[0])).backward()
    assert all(p.grad is not None for p in pipeline.parameters())


@pytest.mark.parametrize(
    "family",
    ["xlm-roberta", *(pytest.param(name, marks=pytest.mark.long) for name in ("bert", "deberta-v2", "modernbert"))],
)
def test_a_tagger_over_a_checkpoint_goes_all_the_way(folders: dict[str, Path], family: str, tmp_path: Path) -> None:
    path = piped(folders[family], tmp_path, window=6)
    succeed("run", path, "--device", "cpu", "train.epochs=1", "head=tags", folder=tmp_path)
    bundle = tmp_path / "runs" / "tiny" / "bundle"
    assert seqpipe("verify", bundle, "--device", "cpu").code == 0
    succeed("predict", bundle, stdin=("Ada met Bob . " * 20).encode())
    ours, theirs = open_bundle(bundle, "cpu"), SecondRuntime(bundle)
    for record in ("Ada met 你好 (hello)\n☃ 世界 ", {"words": ["你好", "met", "☃", "Zürich"]}):
        assert ours(record) == theirs(record)


def test_a_checkpoint_stands_beside_other_embeddings(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = folders["modernbert"]
    first = {"use": "pretrained", "checkpoint": str(folder), "freeze": True, "layers": [0, 1, 2]}
    changes = {"embedding": [first, {"use": "char-cnn", "dim": 6}], "encoder": [{"use": "lstm", "hidden": 8}, "words"]}
    changes |= {"head": "tags"}
    path = write_tagger(tmp_path, {"tokenizer": {"use": "pretrained", "checkpoint": str(folder)}} | changes)
    assert check_export(load_config(path), QUIET).decisions
    pipeline, batches = build_parts(load_config(path))
    batch = batches(batches.order(0)[0])
    whole = build(folder, layers=(0, 1, 2))
    expected = whole(batch["ids"], batch["mask"])["x"]
    output = pipeline.eval()(batch)
    assert pipeline.embedding[0].dim == 16
    assert torch.allclose(pipeline.embedding[0](batch["ids"], batch["mask"])["x"], expected, atol=1e-5)
    assert output["x"].shape[-1] == pipeline.encoder[-1].dim
    pipeline.loss(batch).backward()
    assert all(parameter.grad is None for parameter in pipeline.embedding[0].parameters())


def refused(folder: Path, place: Path, **encoder: Any) -> SeqpipeError:
    with pytest.raises(SeqpipeError) as caught:
        check_export(load_config(piped(folder, place, **encoder)), QUIET)
    return caught.value


def test_a_folder_that_is_no_checkpoint_is_refused_with_a_cure(folders: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "no config.json" in str(refused(tmp_path / "empty", tmp_path))
    for change, message in (
        ({"model_type": "zebra"}, "architecture"),
        ({"vocab_size": 20}, "the weights have other shapes than config.json says"),
    ):
        folder = shutil.copytree(folders["bert"], tmp_path / message)
        change_json(folder / "config.json", **change)
        assert message in str(refused(folder, tmp_path))
    folder = shutil.copytree(folders["bert"], tmp_path / "bare")
    (folder / "model.safetensors").unlink()
    assert "has no weights" in str(refused(folder, tmp_path))
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04")
    error = refused(folder, tmp_path)
    assert isinstance(error, DataError)
    assert "pickled (pytorch_model.bin)" in str(error)
    assert "save_pretrained" in str(error)
    folder = checkpoint(tmp_path / "mixed", "bert", ["a b c"])
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folders["bert"] / name, folder / name)
    assert "belong to different checkpoints" in str(refused(folder, tmp_path))


def test_a_tokenizer_that_is_not_the_checkpoint_s_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    path = piped(folders["bert"], tmp_path)
    with pytest.raises(UsageError, match=r"set tokenizer: \{use: pretrained"):
        check_export(load_config(path, ["tokenizer=wordpiece"]), QUIET)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depth": 3}, "has 2 layers, not 3"),
        ({"layers": [5]}, "there is no layer 5 of 2"),
        ({"window": 39}, "reads 40 tokens, two of them special; not 39"),
        ({"window": 4, "overlap": 4}, "less than the window of 4"),
    ],
)
def test_unfit_options_raise(folders: dict[str, Path], tmp_path: Path, options: dict[str, Any], message: str) -> None:
    assert message in str(refused(folders["bert"], tmp_path, **options))


@pytest.mark.parametrize(
    ("path", "error", "message"),
    [("acme/none-such", EnvError, "HF_HUB_OFFLINE is set"), ("../none-such", ConfigError, "is not a folder")],
)
def test_a_name_on_the_hub_while_offline_and_a_wrong_path_have_their_own_errors(
    tmp_path: Path, path: str, error: type[SeqpipeError], message: str
) -> None:
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    caught = refused(Path(path), tmp_path)
    assert isinstance(caught, error)
    assert message in str(caught)


def test_a_checkpoint_that_changed_is_another_run(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "mine", "bert", TEXTS * 3)
    path = piped(folder, tmp_path)
    assert seqpipe("train", path, "train.epochs=1", "--device", "cpu", folder=tmp_path).code == 0
    change_json(folder / "config.json", initializer_range=0.5)
    done = seqpipe("train", path, "train.epochs=1", "--device", "cpu", folder=tmp_path)
    assert done.code == 2
    assert "checkpoint.config.json: the file's content changed" in done.err


@pytest.mark.parametrize("family", FAMILIES)
def test_the_rows_of_the_words_are_by_the_vocabulary(folders: dict[str, Path], family: str) -> None:
    encoder = build(folders[family])
    ((name, axes),) = encoder.rows.items()
    assert "embed" in name
    assert axes == ("vocabulary",)
    assert len(encoder.state_dict()[name]) == len(vocabulary(folders[family]))


@pytest.mark.parametrize(
    ("configured", "generated", "start"), [(2, 5, 5), (2, None, 2), (None, 5, 5), (None, None, None)]
)
def test_a_writer_starts_with_the_token_of_its_generation_settings_before_that_of_its_configuration(
    configured: int | None, generated: int | None, start: int | None
) -> None:
    config, generation = transformers.BartConfig(), transformers.GenerationConfig(decoder_start_token_id=generated)
    config.decoder_start_token_id = configured
    assert Seq2SeqCheckpoint("mine", config, generation, {}, []).start_token == start


def test_scores_of_pieces_are_read_from_json_as_they_were_written(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    words = ["".join(map(chr, random.integers(97, 123, 4))) for _ in range(3_000)]
    scores = random.uniform(-20, 0, len(words)).astype(np.float32)
    first = [(token, 0.0) for token in ("<s>", "<pad>", "</s>", "<unk>")]
    pieces = [*first, *dict(zip(words, map(float, scores), strict=True)).items(), ("▁", -3.0), ("<mask>", 0.0)]
    transformers.XLMRobertaTokenizer(vocab=pieces).save_pretrained(tmp_path)
    change_json(tmp_path / "tokenizer_config.json", model_type="xlm-roberta")
    (tmp_path / "config.json").write_text('{"model_type": "xlm-roberta"}')
    text = pretrained_tokenizer(tmp_path).tokenizer.to_str()
    again = Tokenizer.from_str(text).to_str()
    assert again == text
    read = dict(map(tuple, json.loads(again)["model"]["vocab"]))
    assert all(abs(read[piece] - score) < 1e-6 for piece, score in pieces[4:-1])
    assert all((read[piece] * 2.0**26).is_integer() for piece, score in pieces[4:-1] if score < -1)  # no wrong last bit
