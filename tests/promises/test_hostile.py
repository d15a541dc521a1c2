"""Bundles whose hashes are right and that would hang, crash or fill the memory: each is refused, or ended in time."""

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
import toy_bundles as toy
from onnx import TensorProto, helper, numpy_helper
from tiny_pipelines import CommandResult, fail_with, seqpipe
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from toy_bundles import manifest_content, node, write_bundle

from seqpipe import load
from seqpipe.errors import BundleError, DataError, SeqpipeError, UsageError
from seqpipe.runtime import bundle, graph_check

Change = Callable[[onnx.ModelProto], None]
TEXT = "Anna in Bern"


def forged(source: Path, folder: Path, files: dict[str, bytes] | None = None, **changes: Any) -> Path:
    """The bundle with other files and another manifest, all hashes right."""
    content = bundle.read(source)
    manifest = manifest_content(content.manifest) | changes
    return write_bundle(folder / "forged", {**content.files, **(files or {})}, manifest)


def with_graph(source: Path, folder: Path, change: Change, **changes: Any) -> Path:
    model = onnx.load_from_string(bundle.read(source).files["model.onnx"])
    change(model)
    return forged(source, folder, {"model.onnx": model.SerializeToString()}, **changes)


def with_tokenizer(source: Path, folder: Path, change: Callable[[Tokenizer], None]) -> Path:
    tokenizer = Tokenizer.from_buffer(bundle.read(source).files["tokenizer.json"])
    change(tokenizer)
    return forged(source, folder, {"tokenizer.json": tokenizer.to_str().encode()})


def instead_of(name: str, *nodes: onnx.NodeProto) -> Change:
    """Puts nodes first whose output is `name`, which the toy's graph holds as a constant."""

    def change(model: onnx.ModelProto) -> None:
        (constant,) = (tensor for tensor in model.graph.initializer if tensor.name == name)
        constant.name = f"{name}_given"
        rest = list(model.graph.node)
        del model.graph.node[:]
        model.graph.node.extend([*nodes, *rest])

    return change


def table_of(model: onnx.ModelProto) -> onnx.TensorProto:
    return next(tensor for tensor in model.graph.initializer if tensor.name == "table")


def constant(name: str, values: Any, dtype: type[np.generic] = np.int64) -> onnx.NodeProto:
    return node("Constant", [], [name], value=numpy_helper.from_array(np.array(values, dtype)))


def subgraph(nodes: list[onnx.NodeProto], inputs: toy.Values, outputs: toy.Values) -> onnx.GraphProto:
    return helper.make_graph(nodes, "graph", toy.value_infos(inputs), toy.value_infos(outputs))


def loops(model: onnx.ModelProto) -> None:
    """Puts a loop before the table whose condition is always true."""
    inputs = {"i": (toy.INT64, []), "go": (toy.BOOL, []), "state": (toy.FLOAT, None)}
    nodes = [node("Identity", ["go"], ["on"]), node("Sin", ["state"], ["next"])]
    body = subgraph(nodes, inputs, {"on": (toy.BOOL, []), "next": (toy.FLOAT, None)})
    loop = node("Loop", ["", "forever", "table_given"], ["table"], body=body)
    instead_of("table", constant("forever", True, np.bool_), loop)(model)


def range_of(dtype: type[np.generic], most: float) -> list[onnx.NodeProto]:
    bounds = [constant(name, value, dtype) for name, value in (("from", 0), ("to", most), ("by", 1))]
    return [*bounds, RANGE]


def one_of_two_branches() -> list[onnx.NodeProto]:
    """Two branches that name a constant alike, the one of which takes 40 GB."""
    graphs = [subgraph([constant("many", [n]), SIZED], {}, {"all": (toy.FLOAT, None)}) for n in (10**10, 1)]
    return [constant("go", True, np.bool_), node("If", ["go"], ["all"], then_branch=graphs[0], else_branch=graphs[1])]


MANY = constant("many", [10**10])
RANGE, SIZED = node("Range", ["from", "to", "by"], ["all"]), node("ConstantOfShape", ["many"], ["all"])
BY_ATTRIBUTES = [node("Constant", [], [name], value_float=v) for name, v in (("from", 0.0), ("to", 1e10), ("by", 1.0))]
ONE_HOT = [constant("rows", [0]), constant("depth", 10**9, np.int32), constant("values", [0, 1], np.float32)]
FACTORS = [constant("x", [[[0.0]]], np.float32), constant("by", [1, 1, 1e9], np.float32)]
UNSQUEEZE = node("Unsqueeze", ["bias_given", "axis"], ["row"])
# Some bytes of which an operator makes so many elements, 40 GB as a rule.
HUGE: dict[str, tuple[int, list[onnx.NodeProto]]] = {
    "ConstantOfShape": (10**10, [MANY, SIZED]),
    "ConstantOfShape in one of two branches": (10**10, one_of_two_branches()),
    "Expand": (10**10, [MANY, node("Expand", ["bias_given", "many"], ["all"])]),
    "Tile": (10**10, [MANY, constant("axis", [0]), UNSQUEEZE, node("Tile", ["row", "many"], ["all"])]),
    "RandomUniform": (10**10, [node("RandomUniform", [], ["all"], shape=[100_000, 100_000])]),
    "Range of int64": (10**10, range_of(np.int64, 10**10)),
    "Range of float32": (10**10, range_of(np.float32, 1e10)),
    "Range of float64": (10**10, range_of(np.float64, 1e10)),
    "Range of int32": (2**30, range_of(np.int32, 2**30)),
    "Range by attributes": (10**10, [*BY_ATTRIBUTES, RANGE]),
    "OneHot of int32": (10**9, [*ONE_HOT, node("OneHot", ["rows", "depth", "values"], ["all"])]),
    "Resize by factors": (10**9, [*FACTORS, node("Resize", ["x", "", "by"], ["all"])]),
}


@pytest.mark.parametrize("case", HUGE)
def test_an_operator_that_makes_gigabytes_is_refused(case: str, tiny_bundle: Path, tmp_path: Path) -> None:
    elements, nodes = HUGE[case]
    cast = node("Cast", ["all"], ["floats"], to=TensorProto.FLOAT)
    change = instead_of("bias", *nodes, cast, node("ReduceMax", ["floats"], ["bias"], keepdims=0))
    with pytest.raises(BundleError, match=rf"model\.onnx: {case.split()[0]} would create {elements:,} elements"):
        load(with_graph(tiny_bundle, tmp_path, change, inputs={}), "cpu", threads=1)


def test_sizes_below_zero_are_read_as_such() -> None:
    bounds = [helper.make_tensor(name, TensorProto.INT64, [], [n]) for name, n in (("a", -5), ("b", 5), ("c", 1))]
    assert bounds[0].int64_data  # a varint, of which a negative one states 64 bits
    output = helper.make_tensor_value_info("all", TensorProto.INT64, [None])
    graph = helper.make_graph([helper.make_node("Range", ["a", "b", "c"], ["all"])], "numbers", [], [output], bounds)
    model = helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 18)])
    assert graph_check.refusal_reason(model.SerializeToString()) == ""


def test_an_endless_loop_is_ended_and_the_next_call_answers(tiny_bundle: Path, tmp_path: Path) -> None:
    path = with_graph(tiny_bundle, tmp_path, loops)
    model = load(path, "cpu", threads=1, timeout=0.5)
    for _ in range(2):
        with pytest.raises(BundleError, match=r"0.5 seconds, and was ended; .* and `predict --timeout` allow more"):
            model(TEXT)
    done = seqpipe("predict", path, "--timeout", "0.5", "--device", "cpu", stdin=TEXT.encode())
    assert (done.code, "Traceback" in done.err) == (6, False)


def test_a_tensor_that_states_more_than_it_holds_is_refused(tiny_bundle: Path, tmp_path: Path) -> None:
    def state(model: onnx.ModelProto) -> None:
        table_of(model).dims[:] = [100_000, 100_000]  # 40 GB

    with pytest.raises(BundleError, match=r"'table' declares the shape \[100000, 100000\] but has 256 bytes"):
        load(with_graph(tiny_bundle, tmp_path, state), "cpu", threads=1)


# ── every field of the format ONNX ───────────────────────────────────────────

SOUND: dict[Any, str] = {
    onnx.ModelProto: "ir_version opset_import producer_name producer_version domain model_version doc_string graph "
    "metadata_props",
    onnx.GraphProto: "node name initializer doc_string input output value_info metadata_props",
    onnx.NodeProto: "input output name op_type attribute doc_string metadata_props",
    onnx.AttributeProto: "name type f i s t g floats ints strings tensors graphs doc_string",
    onnx.TensorProto: "dims data_type float_data int32_data string_data int64_data name doc_string raw_data "
    "double_data uint64_data metadata_props",
}
FIELDS = [(message, field.name) for message in SOUND for field in message.DESCRIPTOR.fields]


def branching(*nodes: onnx.NodeProto, initializers: list[onnx.TensorProto] | None = None) -> onnx.NodeProto:
    """A choice between two branches, both of which consist of these nodes."""
    branch = helper.make_graph(list(nodes), "branch", [], [], initializers or [])
    return node("If", ["go"], ["all"], then_branch=branch, else_branch=branch)


def model_of(*nodes: onnx.NodeProto, initializers: list[onnx.TensorProto] | None = None) -> onnx.ModelProto:
    return helper.make_model(helper.make_graph(list(nodes), "graph", [], [], initializers or []))


@pytest.mark.parametrize(("message", "name"), FIELDS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_field_that_no_bundle_has_is_refused(message: Any, name: str) -> None:
    for within in (False, True):
        tensor = helper.make_tensor("weights", TensorProto.FLOAT, [1], [1.0])
        weights = node("Constant", [], ["weights"], value=tensor)
        model = model_of(branching(weights, initializers=[tensor]) if within else weights, initializers=[tensor])
        graph = model.graph.node[0].attribute[0].g if within else model.graph
        targets = (model, graph, graph.node[0], graph.node[0].attribute[0], graph.initializer[0])
        (target,) = [target for target in targets if isinstance(target, message)]
        assert graph_check.refusal_reason(model.SerializeToString()) == ""
        field = message.DESCRIPTOR.fields_by_name[name]
        if field.message_type is not None:
            content = tensor.SerializeToString() if field.message_type.name == "TensorProto" else b""
            target.MergeFromString(key(field.number, 2) + bytes([len(content)]) + content)
        elif field.cpp_type == field.CPPTYPE_STRING:
            target.MergeFromString(key(field.number, 2) + b"\4" + b"\0\0\0\0")
        elif field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
            value = [1.0] if field.is_repeated else 1.0
            target.MergeFrom(message(**{name: value}))
        else:
            target.MergeFrom(message(**{name: [1] if field.is_repeated else 1}))
        reason = graph_check.refusal_reason(model.SerializeToString())
        assert bool(reason) == (name not in SOUND[message].split()), reason


def key(number: int, wire: int) -> bytes:
    """The key of a field of protobuf."""
    tag = number << 3 | wire
    return bytes([tag]) if tag < 128 else bytes([tag & 127 | 128, tag >> 7])


@pytest.mark.parametrize(
    "domain", ["com.microsoft", "ai.onnx.ml", "com.ms.internal.nhwc", "com.microsoft.nchwc", "ai.onnx.training"]
)
def test_operators_of_another_domain_are_refused_unimported_too(domain: str, tiny_bundle: Path, tmp_path: Path) -> None:
    gelu = node("Gelu", ["bias_given"], ["bias"], domain=domain)
    with pytest.raises(BundleError, match=f"it has operators of '{domain}'; a bundle's are all of the domain ai"):
        load(with_graph(tiny_bundle, tmp_path, instead_of("bias", gelu), inputs={}), "cpu", threads=1)
    assert f"operators of '{domain}'" in graph_check.refusal_reason(model_of(branching(gelu)).SerializeToString())
    gelu.domain = "ai.onnx"
    assert graph_check.refusal_reason(model_of(branching(gelu)).SerializeToString()) == ""


KINDS = {name: number for name, number in TensorProto.DataType.items() if name != "UNDEFINED"}
WEIGHTS = {"FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16"}  # types that may hold NaN and infinity, and that bundles may have


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("raw", [False, True])
def test_weights_that_are_no_numbers_are_refused_in_every_type(kind: str, raw: bool) -> None:
    def reason(number: float, where: str) -> str:
        values = np.array([0.5, 0.5, 0.5, number, 0.5])
        elements: Any = values.astype(helper.tensor_dtype_to_np_dtype(KINDS[kind]))
        tensor = helper.make_tensor("weights", KINDS[kind], [5], ["nan"] * 5 if kind == "STRING" else elements, raw=raw)
        given = node("Constant", [], ["weights"], value=tensor)
        models = {
            "initializer": model_of(initializers=[tensor]),
            "constant": model_of(given),
            "initializer of a branch": model_of(branching(initializers=[tensor])),
            "constant of a branch": model_of(branching(given)),
        }
        return graph_check.refusal_reason(models[where].SerializeToString())

    if kind == "STRING" and raw:
        return
    floats, stated = kind.startswith(("FLOAT", "BFLOAT", "COMPLEX")), "'weights'" if raw else "a tensor"
    for where in ("initializer", "constant", "initializer of a branch", "constant of a branch"):
        for number in (np.nan, -np.nan, np.inf) if floats else ():
            assert reason(number, where), (where, number)
        if kind in WEIGHTS and (raw or kind in ("FLOAT", "DOUBLE")):
            assert f"{stated} has numbers that are NaN or infinite: the weights overflowed" in reason(np.nan, where)
            assert [reason(number, where) for number in (-np.inf, -1.0, 0.0, 60_000.0)] == [""] * 4
        elif not floats and kind not in ("UINT2", "INT2"):  # onnxruntime has none of these
            assert reason(0, where) == ""


def test_an_attribute_that_is_no_number_is_refused() -> None:
    for number in (np.nan, np.inf):
        for options in ({"value_float": number}, {"value_floats": [0.5, number]}):
            weights = node("Constant", [], ["weights"], **options)
            assert "NaN or infinite" in graph_check.refusal_reason(model_of(weights).SerializeToString())


# ── every kind of step and model that tokenizer.json may hold ────────────────

LIGATURE = "\ufdfa"  # the code point that NFKC makes the longest of, 18
POINTS = [chr(code) for code in range(0x30000) if not 0xD800 <= code < 0xE000]  # all that Unicode decomposes


def charsmap(key: str, text: str) -> bytes:
    """A charsmap of SentencePiece that puts a text in place of another one."""
    units, at = [0] * 256 * (len(key.encode()) + 1), 0
    for number, byte in enumerate(key.encode()):
        children = 256 * (number + 1)
        units[at] |= (children ^ at) << 10
        at = children ^ byte
        units[at] = byte
    units[at] |= 1 << 8 | 1 << 10  # a leaf, whose value is its neighbour
    units[at ^ 1] = 1 << 31
    trie = np.array(units, "<u4").tobytes()
    return len(trie).to_bytes(4, "little") + trie + text.encode() + b"\0"


def classes(module: Any, *bases: str) -> set[str]:
    """The kinds that the package `tokenizers` offers."""
    return {name for name in dir(module) if isinstance(getattr(module, name), type)} - {*bases}


N, P, D = normalizers, pre_tokenizers, decoders
NORMALIZERS = [N.BertNormalizer(), N.ByteLevel(), N.Lowercase(), N.NFC(), N.NFD(), N.NFKC(), N.NFKD(), N.Nmt()]
NORMALIZERS += [N.Precompiled(charsmap("a", "aaa")), N.Prepend("▁▁"), N.Replace("a", "bb"), N.Strip(), N.StripAccents()]
NORMALIZERS += [N.Sequence([N.NFD(), N.Replace(Regex("$"), "!")])]
PRE_TOKENIZERS = [P.BertPreTokenizer(), P.ByteLevel(add_prefix_space=True), P.CharDelimiterSplit("a"), P.FixedLength(1)]
PRE_TOKENIZERS += [P.Digits(individual_digits=True), P.Metaspace(), P.Punctuation(), P.Split("", "isolated")]
PRE_TOKENIZERS += [P.Sequence([P.FixedLength(1), P.Metaspace()])]
PRE_TOKENIZERS += [P.UnicodeScripts(), P.Whitespace(), P.WhitespaceSplit()]
DECODERS = [D.BPEDecoder(suffix=""), D.ByteFallback(), D.ByteLevel(), D.CTC(word_delimiter_token="", cleanup=False)]
DECODERS += [D.Fuse(), D.Metaspace(), D.Replace("a", "bb"), D.Strip(), D.WordPiece(cleanup=False)]
DECODERS += [D.Sequence([D.Replace("a", "bb"), D.Replace("b", "cc")])]
STEPS: list[tuple[str, Any]] = [("normalizer", step) for step in NORMALIZERS]
STEPS += [("pre_tokenizer", step) for step in PRE_TOKENIZERS] + [("decoder", step) for step in DECODERS]


def growth(part: str, step: Any) -> float:
    """Greatest factor by which a step makes a text longer."""
    if part == "normalizer":
        return max(len(step.normalize_str(point)) for point in POINTS)
    if part == "decoder":
        return max(len(step.decode(list(text))) / len(text) for text in ("a" * 99, "ab" * 99, "你" * 99))
    return max(
        sum(len(piece) for piece, _ in step.pre_tokenize_str(text)) / len(text)
        for text in ("\U0010ffff", "a", "a b", "a.b", "1", "你 你")
    )


SPECIAL = {name: i for i, name in enumerate(["[PAD]", "[UNK]", "[BOS]", "[EOS]"])}


def with_special_tokens(model: Any = None) -> Tokenizer:
    return Tokenizer(model or models.WordLevel(SPECIAL, unk_token="[UNK]"))


def test_every_kind_that_the_library_offers_has_a_case() -> None:
    assert classes(normalizers, "Normalizer") == {type(step).__name__ for step in NORMALIZERS}
    assert classes(pre_tokenizers, "PreTokenizer") == {type(step).__name__ for step in PRE_TOKENIZERS}
    assert classes(decoders, "Decoder", "DecodeStream") == {type(step).__name__ for step in DECODERS}
    assert classes(models, "Model") == {*MODELS}


@pytest.mark.parametrize(("part", "step"), STEPS, ids=lambda v: v if isinstance(v, str) else type(v).__name__)
def test_every_kind_of_step_is_counted_at_its_worst(part: str, step: Any) -> None:
    tokenizer = with_special_tokens()
    setattr(tokenizer, part, step)
    bundle.check_stored_tokenizer(tokenizer, "tokenizer.json")
    # The step behind one that makes the text just so much longer that both are over the limit.
    times = "x" * int(bundle.MOST_GROWTH / growth(part, step) + 1)
    if part == "decoder":
        tokenizer.decoder = decoders.Sequence([decoders.Replace("x", times), step])
    else:
        tokenizer.normalizer = normalizers.Replace("x", times)
    if part == "normalizer":
        tokenizer.normalizer = normalizers.Sequence([tokenizer.normalizer, step])
    with pytest.raises(BundleError, match=r"tokenizer\.json: makes a text up to \S+ times longer in (en|de)coding; at"):
        bundle.check_stored_tokenizer(tokenizer, "tokenizer.json")


def test_a_step_of_a_kind_that_nobody_knows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for part, of_base in (("normalizer", normalizers), ("pre_tokenizer", pre_tokenizers), ("decoder", decoders)):

        class Unknown:
            def __getstate__(self) -> bytes:
                return b'{"type": "Tomorrow"}'

        assert not hasattr(of_base, "Tomorrow")
        stand_in = SimpleNamespace(
            **dict.fromkeys(("normalizer", "pre_tokenizer", "decoder", "padding", "truncation")),
            token_to_id=lambda token: 0,
            model=models.BPE(),
        )
        setattr(stand_in, part, Unknown())
        with pytest.raises(BundleError, match=r"a step of its (en|de)coding is unknown to this version: 'Tomorrow'"):
            bundle.check_stored_tokenizer(stand_in, "it")  # type: ignore[arg-type]
        setattr(stand_in, part, None)
        stand_in.model = Unknown()
        with pytest.raises(BundleError, match="the model Unknown is not one of BPE, Unigram, WordLevel, WordPiece"):
            bundle.check_stored_tokenizer(stand_in, "it")  # type: ignore[arg-type]


LONG = "u" * 1000
PREFIX = {"continuing_subword_prefix": LONG}
UNKNOWN: dict[str, Any] = {"vocab": SPECIAL | {LONG: 4}, "unk_token": LONG}
MODELS: dict[str, list[Any]] = {
    "BPE": [models.BPE(merges=[], **UNKNOWN), models.BPE(SPECIAL, [], **PREFIX)],
    "Unigram": [],
    "WordLevel": [models.WordLevel(**UNKNOWN)],
    "WordPiece": [models.WordPiece(**UNKNOWN), models.WordPiece(SPECIAL, unk_token="[UNK]", **PREFIX)],
}


@pytest.mark.parametrize("name", MODELS)
def test_every_kind_of_model_is_bounded(name: str) -> None:
    sound = {
        "BPE": models.BPE(SPECIAL, [], unk_token="[UNK]", byte_fallback=True),
        "Unigram": models.Unigram([(token, -1.0) for token in SPECIAL], 1, True),
        "WordLevel": models.WordLevel(SPECIAL, unk_token="[UNK]"),
        "WordPiece": models.WordPiece(SPECIAL, unk_token="[UNK]"),
    }[name]
    bundle.check_stored_tokenizer(with_special_tokens(sound), "it")
    for model in MODELS[name]:
        with pytest.raises(BundleError, match=r"times longer in writing an unknown word"):
            bundle.check_stored_tokenizer(with_special_tokens(model), "it")


def test_a_token_of_megabytes_is_refused(tiny_bundle: Path, tmp_path: Path) -> None:
    content = json.loads(bundle.read(tiny_bundle).files["tokenizer.json"])
    for letter in ("x", '"', "\\", "你"):
        stated = copy.deepcopy(content)
        stated["model"]["vocab"][letter * 10_000] = len(stated["model"]["vocab"])
        path = forged(tiny_bundle, tmp_path / str(ord(letter)), {"tokenizer.json": json.dumps(stated).encode()})
        with pytest.raises(BundleError, match=r"tokenizer\.json: has a token of more than 4,096 bytes"):
            load(path, "cpu", threads=1)


GROWTH = [
    ("normalizer", N.Sequence([N.Replace("a", "a" * 1000)] * 4), "1e+12"),
    ("normalizer", N.Sequence([N.Precompiled(charsmap("a", "a" * 1000)) for _ in range(3)]), "1e+09"),
    ("normalizer", N.Sequence([N.NFKD(), N.Precompiled(charsmap("a", "a" * 20))]), "3.6e+02"),
    ("normalizer", N.Sequence([N.NFKC(), N.Replace("a", LIGATURE), N.NFKC()]), "3.2e+02"),
    ("decoder", D.Sequence([D.Fuse(), D.Replace("a", "a" * 1000)]), "1e+03"),
]


@pytest.mark.parametrize(("part", "step", "times"), GROWTH, ids=lambda value: value if isinstance(value, str) else "")
def test_steps_that_grow_a_text_together_are_refused(
    part: str, step: Any, times: str, tiny_bundle: Path, tmp_path: Path
) -> None:
    path = with_tokenizer(tiny_bundle, tmp_path, lambda tokenizer: setattr(tokenizer, part, step))
    with pytest.raises(BundleError, match=re.escape(f"makes a text up to {times} times longer")):
        load(path, "cpu", threads=1)


def test_a_tokenizer_that_pads_is_refused(tiny_bundle: Path, tmp_path: Path) -> None:
    path = with_tokenizer(tiny_bundle, tmp_path, lambda tokenizer: tokenizer.enable_padding(length=10**9))
    with pytest.raises(BundleError, match="pads or truncates texts"):
        load(path, "cpu", threads=1)


def test_normalizers_of_public_checkpoints_are_within_the_limit() -> None:
    blanks = normalizers.Replace(Regex(" {2,}"), " ")
    of_form = normalizers.Precompiled(charsmap(LIGATURE, normalizers.NFKC().normalize_str(LIGATURE)))
    assert len(of_form.normalize_str(LIGATURE)) == 18
    accents = [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
    for steps in ([of_form, blanks], [*accents, of_form, blanks], [normalizers.NFKC(), *accents, normalizers.NFKC()]):
        tokenizer = with_special_tokens()
        tokenizer.normalizer = normalizers.Sequence(steps)
        tokenizer.pre_tokenizer = P.Sequence([P.WhitespaceSplit(), P.Metaspace()])
        bundle.check_stored_tokenizer(tokenizer, "it")


def test_a_pattern_of_a_tokenizer_ends_in_an_error(tiny_bundle: Path, tmp_path: Path) -> None:
    slow = Regex("(x+x+)+y")
    for part, step in (("pre_tokenizer", P.Split(slow, "removed", invert=True)), ("normalizer", N.Replace(slow, "z"))):
        path = with_tokenizer(tiny_bundle, tmp_path, lambda tokenizer, p=part, s=step: setattr(tokenizer, p, s))
        with pytest.raises(SeqpipeError):
            load(path, "cpu", threads=1)("x" * 28)


READERS: dict[str, tuple[dict[str, Any], str]] = {
    "no regular expression": ({"skip": "("}, "'(' is not a regular expression"),
    "an option that there is not": ({"evil": 1}, "evil: unknown"),
    "an option of another type": ({"joiner": 5}, "joiner: should be text, not 5"),
}


@pytest.mark.parametrize("name", READERS)
def test_what_a_bundle_states_of_its_reader_is_checked(name: str, tiny_bundle: Path, tmp_path: Path) -> None:
    options, message = READERS[name]
    path = forged(tiny_bundle, tmp_path, reader={"use": "conll", "options": options})
    lines = ("x" * 40 + "\n").encode()
    for done in (
        seqpipe("predict", path, "--format", "conll", "--device", "cpu", stdin=lines),
        seqpipe("evaluate", path, "--data", tmp_path / "none.conll", "--device", "cpu"),
    ):
        assert (done.code, "Traceback" in done.err) == (6, False)
        assert "bundle.json: reader.options: " in done.err
        assert message in done.err


def test_a_regular_expression_of_a_reader_has_a_time_limit(tiny_bundle: Path, tmp_path: Path) -> None:
    path = forged(tiny_bundle, tmp_path, reader={"use": "conll", "options": {"skip": "(?:x|xx)+$"}})
    done = seqpipe("predict", path, "--format", "conll", "--device", "cpu", stdin=f"{'x' * 200}!\n".encode())
    assert (done.code, "Traceback" in done.err) == (3, False)
    assert "standard input:1: the pattern '(?:x|xx)+$' of `skip` takes over 1 s" in done.err


def bias(type: str = "float", default: float = 0.0, **bounds: Any) -> dict[str, Any]:
    return {"options": {"bias": {"type": type, "default": default, **bounds}}}


LIMIT, TOKENS = "more than the limit of 1,000,000", "must be a whole number from 1 to 1,000,000"
STATED: dict[str, tuple[dict[str, Any], str]] = {
    "fewer labels than tags": ({"answer": {"kind": "tags", "labels": ["O"], "target": None}}, "not an answer of kind"),
    "a size of 10^8": (bias("size", 10**8), LIMIT),
    "a size of 10^12": (bias("size", 10**12), LIMIT),
    "a size that may be 10^12": (bias("size", 1, maximum=10**12), "not a valid bound of a size"),
    "a bound that is text": (bias(minimum="0"), "its `minimum` is '0'"),
    "a bound that no float holds": (bias(maximum=10**400), "options.bias: a bound exceeds every number"),
    "a minimum over its maximum": (bias(minimum=2, maximum=1), "the minimum 2 exceeds the maximum 1"),
    "texts of 10^12 tokens": ({"limits": {"tokens": 10**12}}, TOKENS),
    "texts of no token": ({"limits": {"tokens": 0}}, TOKENS),
    "texts of true tokens": ({"limits": {"tokens": True}}, TOKENS),
    "a reader without a name": ({"reader": {}}, "reader: must be an object with `use`, and"),
    "metrics of nobody": ({"own_metrics": {"": {"use": 5}}}, "own_metrics.: must be an object with `use`, `dist"),
    "metrics in a list": ({"own_metrics": []}, "own_metrics: must be an object"),
    "an example without a record": ({"golden": [5]}, "golden.1: must be an object with a record"),
    "an example that is a number": ({"golden": [{"record": 5, "answer": []}]}, "golden.1: must be .* `record` is 5"),
}


@pytest.mark.parametrize("name", STATED)
def test_what_a_manifest_states_is_bounded(name: str, tiny_bundle: Path, tmp_path: Path) -> None:
    changes, message = STATED[name]
    with pytest.raises(BundleError, match=message):
        load(forged(tiny_bundle, tmp_path, **changes), "cpu", threads=1)(TEXT)


def test_words_as_long_as_a_forger_likes_are_refused(tiny_bundle: Path, tmp_path: Path) -> None:
    inputs = manifest_content(bundle.read(tiny_bundle).manifest)["inputs"]
    inputs["chars"] = {**inputs["chars"], "longest": 10**12}
    with pytest.raises(BundleError, match=r"chars\.longest: 1000000000000 is not between 1 and 10,000"):
        load(forged(tiny_bundle, tmp_path, inputs=inputs), "cpu", threads=1)


def test_what_onnxruntime_raises_is_an_error_of_the_bundle(tiny_bundle: Path, tmp_path: Path) -> None:
    """It gathers behind the end of the table: onnxruntime raises an exception of its own."""
    crash = instead_of("virtual", constant("far", [10**6]), node("Add", ["virtual_given", "far"], ["virtual"]))
    model = load(with_graph(tiny_bundle, tmp_path, crash), "cpu", threads=1)
    with pytest.raises(BundleError, match="onnxruntime could not run the graph: "):
        model("Zoe")
    assert model("Anna")


def needs_memory(*factors: int) -> Change:
    """Makes as many numbers as the product of these, which shape arithmetic hides from the look at the graph."""

    def change(model: onnx.ModelProto) -> None:
        nodes = [node("Shape", ["ids"], ["many0"], end=1)]
        for i, factor in enumerate(factors):
            nodes += [constant(f"factor{i}", [factor]), node("Mul", [f"many{i}", f"factor{i}"], [f"many{i + 1}"])]
        nodes.append(node("ConstantOfShape", [f"many{len(factors)}"], ["all"]))
        del model.graph.input[-1]
        instead_of("bias", *nodes, node("ReduceMax", ["all"], ["bias"], keepdims=0))(model)

    return change


def test_memory_that_is_not_there_is_an_error_too(tiny_bundle: Path, tmp_path: Path) -> None:
    model = load(with_graph(tiny_bundle, tmp_path, needs_memory(10**8, 10**8), options={}), "cpu", threads=1)
    with pytest.raises(DataError, match="needs more memory for this input than available"):
        model(TEXT)


# ── pinned ───────────────────────────────────────────────────────────────────


def test_a_bundle_may_be_pinned_by_the_sha256_of_its_manifest(tiny_bundle: Path, tmp_path: Path) -> None:
    own = bundle.sha256((tiny_bundle / "bundle.json").read_bytes())
    assert load(tiny_bundle, "cpu", threads=1, sha256=own.upper()).sha256 == own
    done = seqpipe("verify", tiny_bundle, "--sha256", own, "--json", "--device", "cpu")
    assert (done.code, json.loads(done.out)["sha256"], own in done.err) == (0, own, True)
    other = forged(tiny_bundle, tmp_path, name="other")
    message = f"its sha256 is [0-9a-f]{{64}}, not {own}: this is not the bundle that you expect"
    with pytest.raises(BundleError, match=message):
        load(other, "cpu", threads=1, sha256=own)
    assert seqpipe("verify", other, "--sha256", own, "--device", "cpu").code == 6
    with pytest.raises(UsageError, match="'abc' is not 64 hexadecimal digits; give those that `sha256sum "):
        load(tiny_bundle, "cpu", sha256="abc")


# ── --untrusted ──────────────────────────────────────────────────────────────


def untrusted(path: Path, *arguments: str) -> CommandResult:
    return seqpipe("verify", path, "--untrusted", *arguments)


def test_a_sound_bundle_is_verified_within_the_limits(tiny_bundle: Path) -> None:
    done = untrusted(tiny_bundle, "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["golden"] == 1


def test_a_bundle_that_takes_more_time_or_memory_is_ended(tiny_bundle: Path, tmp_path: Path) -> None:
    """A loop that no deadline of a run ends, and 3 GB."""
    done = untrusted(with_graph(tiny_bundle, tmp_path, loops), "--timeout", "3")
    assert (done.code, "took more than 3 seconds, and was ended" in done.err) == (6, True), done.err
    path = with_graph(tiny_bundle, tmp_path, needs_memory(750_000_000), options={})
    done = untrusted(path, "--memory", "1")
    assert (done.code, "memory" in done.err, "Traceback" in done.err) == (6, True, False), done.err


@pytest.mark.parametrize("limits", [["--untrusted"], []])
def test_a_strangers_text_never_commands_the_terminal(limits: list[str], tiny_bundle: Path, tmp_path: Path) -> None:
    path = forged(tiny_bundle, tmp_path, golden=[], no_golden="\x1b[2Jevil")
    done = seqpipe("verify", path, *limits)
    assert (done.code, "\x1b" in done.err, "\\x1b[2Jevil" in done.err) == (0, False, True), done.err
    done = seqpipe("verify", forged(tiny_bundle, tmp_path, answer={"kind": "\x1b[2Jevil"}), *limits)
    assert (done.code, "\x1b" in done.err) == (6, False), done.err
    assert "unknown answer kind '\\x1b[2Jevil'; update seqpipe" in done.err
    for reason in ("a" * 1_001, 5, ["ties"]):
        with pytest.raises(BundleError, match="no_golden: must be a text of at most 1000 characters"):
            load(forged(tiny_bundle, tmp_path, golden=[], no_golden=reason), "cpu")


@pytest.mark.parametrize("limit", [["--memory", "0"], ["--timeout", "0"], ["--memory", "nan"], ["--timeout", "inf"]])
def test_limits_that_are_none_are_refused(limit: list[str], tiny_bundle: Path) -> None:
    done = untrusted(tiny_bundle, *limit)
    assert (done.code, "must be numbers above 0" in done.err) == (2, True)
    assert seqpipe("verify", tiny_bundle, *limit).code == 2


def test_limits_are_for_untrusted_bundles_on_the_cpu(tiny_bundle: Path) -> None:
    assert seqpipe("verify", tiny_bundle, "--timeout", "5").code == 2
    assert untrusted(tiny_bundle, "--device", "cuda").code == 2


def test_a_platform_without_limits_is_told_so(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "resource", None)
    fail_with(7, "cannot limit the memory and time of a process", "verify", tiny_bundle, "--untrusted")
