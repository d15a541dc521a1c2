"""Bundles whose hashes are right and that would hang, crash or fill the memory: each is refused, or ended in time."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from factory import Done, process, seqpipe
from forged import plain, write
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from seqpipe import load
from seqpipe.errors import BundleError, DataError, SeqpipeError, UsageError
from seqpipe.runtime import bundle, graph_check

Change = Callable[[onnx.ModelProto], None]
TEXT = "Anna in Bern"


def forged(source: Path, folder: Path, files: dict[str, bytes] | None = None, **changes: Any) -> Path:
    """The bundle with other files and another manifest, all hashes right."""
    content = bundle.read(source)
    return write(folder / "forged", {**content.files, **(files or {})}, plain(content.manifest) | changes)


def with_graph(source: Path, folder: Path, change: Change, **changes: Any) -> Path:
    model = onnx.load_from_string(bundle.read(source).files["model.onnx"])
    change(model)
    return forged(source, folder, {"model.onnx": model.SerializeToString()}, **changes)


def with_tokenizer(source: Path, folder: Path, change: Callable[[Tokenizer], None]) -> Path:
    tokenizer = Tokenizer.from_buffer(bundle.read(source).files["tokenizer.json"])
    change(tokenizer)
    return forged(source, folder, {"tokenizer.json": tokenizer.to_str().encode()})


def instead_of(name: str, *nodes: onnx.NodeProto) -> Change:
    """Puts nodes first that make `name`, which the toy's graph holds as a constant."""

    def change(model: onnx.ModelProto) -> None:
        (constant,) = (tensor for tensor in model.graph.initializer if tensor.name == name)
        constant.name = f"{name}_given"
        rest = list(model.graph.node)
        del model.graph.node[:]
        model.graph.node.extend([*nodes, *rest])

    return change


def endless() -> onnx.NodeProto:
    """A loop whose condition is always true."""
    inputs = [("i", TensorProto.INT64, []), ("go", TensorProto.BOOL, []), ("state", TensorProto.FLOAT, None)]
    outputs = [("on", TensorProto.BOOL, []), ("next", TensorProto.FLOAT, None)]
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Sin", ["state"], ["next"])],
        "body",
        [helper.make_tensor_value_info(*one) for one in inputs],
        [helper.make_tensor_value_info(*one) for one in outputs],
    )
    return helper.make_node("Loop", ["", "forever", "table_given"], ["table"], body=body)


def loops(model: onnx.ModelProto) -> None:
    forever = helper.make_node("Constant", [], ["forever"], value=helper.make_tensor("", TensorProto.BOOL, [], [True]))
    instead_of("table", forever, endless())(model)


def constant(name: str, values: Any, dtype: type[np.generic] = np.int64) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.array(values, dtype)))


def huge(operator: str) -> Change:
    """40 GB that an operator makes of a few bytes; the toy's bias is taken from it."""
    numbers = {"ConstantOfShape": ["many"], "Expand": ["bias_given", "many"], "Tile": ["bias_row", "many"]}
    inputs = numbers.get(operator, [])
    nodes = [constant("many", [10_000_000_000]), constant("axis", [0])]
    if operator == "Tile":
        nodes.append(helper.make_node("Unsqueeze", ["bias_given", "axis"], ["bias_row"]))
    if operator == "Range":
        nodes += [constant(name, number) for name, number in (("from", 0), ("to", 10_000_000_000), ("by", 1))]
        nodes.append(helper.make_node("Range", ["from", "to", "by"], ["numbers"]))
        nodes.append(helper.make_node("Cast", ["numbers"], ["all"], to=TensorProto.FLOAT))
    elif operator == "RandomUniform":
        nodes.append(helper.make_node("RandomUniform", [], ["all"], shape=[100_000, 100_000]))
    else:
        nodes.append(helper.make_node(operator, inputs, ["all"]))
    nodes.append(helper.make_node("ReduceMax", ["all"], ["bias"], keepdims=0))
    return instead_of("bias", *nodes)


def range_of(dtype: type[np.generic], most: float) -> list[onnx.NodeProto]:
    three = [constant(name, value, dtype) for name, value in (("from", 0), ("to", most), ("by", 1))]
    return [*three, helper.make_node("Range", ["from", "to", "by"], ["all"])]


def one_of_two_branches() -> list[onnx.NodeProto]:
    """Two branches that name a constant alike, the one of which takes 40 GB."""
    branches = [
        helper.make_graph(
            [constant("many", [size]), helper.make_node("ConstantOfShape", ["many"], ["all"])],
            "branch",
            [],
            [helper.make_tensor_value_info("all", TensorProto.FLOAT, None)],
        )
        for size in (10_000_000_000, 1)
    ]
    go = constant("go", True, np.bool_)
    return [go, helper.make_node("If", ["go"], ["all"], then_branch=branches[0], else_branch=branches[1])]


HUGE: dict[str, list[onnx.NodeProto]] = {
    "Range of float32": range_of(np.float32, 1e10),
    "Range of float64": range_of(np.float64, 1e10),
    "Range of int32": range_of(np.int32, 2**30),
    "Range by attributes": [
        *(
            helper.make_node("Constant", [], [name], value_float=v)
            for name, v in (("from", 0.0), ("to", 1e10), ("by", 1.0))
        ),
        helper.make_node("Range", ["from", "to", "by"], ["all"]),
    ],
    "OneHot of int32": [
        constant("rows", [0]),
        constant("depth", 10**9, np.int32),
        constant("values", [0, 1], np.float32),
        helper.make_node("OneHot", ["rows", "depth", "values"], ["all"]),
    ],
    "Resize by factors": [
        constant("x", [[[0.0]]], np.float32),
        constant("by", [1, 1, 1e9], np.float32),
        helper.make_node("Resize", ["x", "", "by"], ["all"]),
    ],
    "ConstantOfShape in one of two branches": one_of_two_branches(),
}


@pytest.mark.parametrize("case", HUGE)
def test_a_size_is_seen_in_every_type_and_branch(case: str, tiny_bundle: Path, tmp_path: Path) -> None:
    nodes = [*HUGE[case], helper.make_node("Cast", ["all"], ["floats"], to=TensorProto.FLOAT)]
    nodes.append(helper.make_node("ReduceMax", ["floats"], ["bias"], keepdims=0))
    with pytest.raises(BundleError, match=rf"model\.onnx: {case.split()[0]} would create 1[\d,]+ elements"):
        load(with_graph(tiny_bundle, tmp_path, instead_of("bias", *nodes), inputs={}), "cpu", threads=1)


def test_sizes_below_zero_are_read_as_such() -> None:
    bounds = [helper.make_tensor(name, TensorProto.INT64, [], [n]) for name, n in (("a", -5), ("b", 5), ("c", 1))]
    assert bounds[0].int64_data  # a varint, of which a negative one states 64 bits
    output = helper.make_tensor_value_info("all", TensorProto.INT64, [None])
    graph = helper.make_graph([helper.make_node("Range", ["a", "b", "c"], ["all"])], "numbers", [], [output], bounds)
    model = helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 18)])
    assert graph_check.refusal_reason(model.SerializeToString()) == ""


def stated(model: onnx.ModelProto) -> None:
    """A tensor that states 40 GB and holds none of them."""
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == "table")
    del tensor.dims[:]
    tensor.dims.extend([100_000, 100_000])


def test_an_endless_loop_is_ended_and_the_next_call_answers(tiny_bundle: Path, tmp_path: Path) -> None:
    model = load(with_graph(tiny_bundle, tmp_path, loops), "cpu", threads=1, timeout=0.5)
    for _ in range(2):
        begun = time.monotonic()
        with pytest.raises(BundleError, match=r"0.5 seconds, and was ended; .* and `predict --timeout` allow more"):
            model(TEXT)
        assert time.monotonic() - begun < 10


def test_an_endless_loop_ends_the_command(tiny_bundle: Path, tmp_path: Path) -> None:
    path = with_graph(tiny_bundle, tmp_path, loops)
    done = seqpipe("predict", path, "--timeout", "0.5", "--device", "cpu", stdin=TEXT.encode())
    assert (done.code, "Traceback" in done.err) == (6, False)


@pytest.mark.parametrize("operator", ["ConstantOfShape", "Expand", "Tile", "Range", "RandomUniform"])
def test_an_operator_told_to_make_40_gigabytes_is_refused(operator: str, tiny_bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=rf"model\.onnx: {operator} would create 10,000,000,000 elements"):
        load(with_graph(tiny_bundle, tmp_path, huge(operator), inputs={}), "cpu", threads=1)


def test_a_tensor_that_states_more_than_it_holds_is_refused(tiny_bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"'table' declares the shape \[100000, 100000\] but has 256 bytes"):
        load(with_graph(tiny_bundle, tmp_path, stated), "cpu", threads=1)


# ── every field of the format ONNX ───────────────────────────────────────────

SOUND: dict[Any, set[str]] = {
    onnx.ModelProto: {"ir_version", "opset_import", "producer_name", "producer_version", "domain", "model_version"}
    | {"doc_string", "graph", "metadata_props"},
    onnx.GraphProto: {"node", "name", "initializer", "doc_string", "input", "output", "value_info"}
    | {"metadata_props"},
    onnx.NodeProto: {"input", "output", "name", "op_type", "attribute", "doc_string", "metadata_props"},
    onnx.AttributeProto: {"name", "type", "f", "i", "s", "t", "g", "floats", "ints", "strings", "tensors", "graphs"}
    | {"doc_string"},
    onnx.TensorProto: {"dims", "data_type", "float_data", "int32_data", "string_data", "int64_data", "name"}
    | {"doc_string", "raw_data", "double_data", "uint64_data", "metadata_props"},
}
FIELDS = [(message, field.name) for message in SOUND for field in message.DESCRIPTOR.fields]


def branching(*nodes: onnx.NodeProto, initializers: list[onnx.TensorProto] | None = None) -> onnx.NodeProto:
    """A choice between two branches, both of which consist of these nodes."""
    branch = helper.make_graph(list(nodes), "branch", [], [], initializers or [])
    return helper.make_node("If", ["go"], ["all"], then_branch=branch, else_branch=branch)


def model_of(*nodes: onnx.NodeProto, initializers: list[onnx.TensorProto] | None = None) -> onnx.ModelProto:
    return helper.make_model(helper.make_graph(list(nodes), "graph", [], [], initializers or []))


@pytest.mark.parametrize(("message", "name"), FIELDS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_field_that_no_bundle_has_is_refused(message: Any, name: str) -> None:
    for within in (False, True):
        tensor = helper.make_tensor("weights", TensorProto.FLOAT, [1], [1.0])
        node = helper.make_node("Constant", [], ["weights"], value=tensor)
        model = model_of(branching(node, initializers=[tensor]) if within else node, initializers=[tensor])
        graph = model.graph.node[0].attribute[0].g if within else model.graph
        target = {
            onnx.ModelProto: model,
            onnx.GraphProto: graph,
            onnx.NodeProto: graph.node[0],
            onnx.AttributeProto: graph.node[0].attribute[0],
            onnx.TensorProto: graph.initializer[0],
        }[message]
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
        assert bool(reason) == (name not in SOUND[message]), reason


def key(number: int, wire: int) -> bytes:
    """The key of a field of protobuf."""
    tag = number << 3 | wire
    return bytes([tag]) if tag < 128 else bytes([tag & 127 | 128, tag >> 7])


@pytest.mark.parametrize(
    "domain", ["com.microsoft", "ai.onnx.ml", "com.ms.internal.nhwc", "com.microsoft.nchwc", "ai.onnx.training"]
)
def test_an_operator_of_another_domain_is_refused_without_an_import_too(
    domain: str, tiny_bundle: Path, tmp_path: Path
) -> None:
    node = helper.make_node("Gelu", ["bias_given"], ["bias"], domain=domain)
    with pytest.raises(BundleError, match=f"it has operators of '{domain}'; a bundle's are all of the domain ai"):
        load(with_graph(tiny_bundle, tmp_path, instead_of("bias", node), inputs={}), "cpu", threads=1)
    assert f"operators of '{domain}'" in graph_check.refusal_reason(model_of(branching(node)).SerializeToString())
    node.domain = "ai.onnx"
    assert graph_check.refusal_reason(model_of(branching(node)).SerializeToString()) == ""


KINDS = {name: number for name, number in TensorProto.DataType.items() if name != "UNDEFINED"}
WEIGHTS = {"FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16"}  # types that may hold NaN and infinity, and that bundles may have


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("raw", [False, True])
def test_weights_that_are_no_numbers_are_refused_in_every_type(kind: str, raw: bool) -> None:
    def reason(number: float, where: str) -> str:
        values = np.full(5, 0.5)
        values[3] = number
        elements: Any = values.astype(helper.tensor_dtype_to_np_dtype(KINDS[kind]))
        if kind == "STRING":
            elements = ["nan"] * 5
        tensor = helper.make_tensor("weights", KINDS[kind], [5], elements, raw=raw)
        node = helper.make_node("Constant", [], ["weights"], value=tensor)
        model = {
            "initializer": model_of(initializers=[tensor]),
            "constant": model_of(node),
            "initializer of a branch": model_of(branching(initializers=[tensor])),
            "constant of a branch": model_of(branching(node)),
        }[where]
        return graph_check.refusal_reason(model.SerializeToString())

    if kind == "STRING" and raw:
        return
    floats = kind.startswith(("FLOAT", "BFLOAT", "COMPLEX"))
    for where in ("initializer", "constant", "initializer of a branch", "constant of a branch"):
        for number in (np.nan, -np.nan, np.inf) if floats else ():
            assert reason(number, where), (where, number)
        if kind in WEIGHTS and (raw or kind in ("FLOAT", "DOUBLE")):
            assert "has numbers that are NaN or infinite: the weights overflowed" in reason(np.nan, where)
            assert [reason(number, where) for number in (-np.inf, -1.0, 0.0, 60_000.0)] == [""] * 4
        elif not floats and kind not in ("UINT2", "INT2"):  # onnxruntime has none of these
            assert reason(0, where) == ""


@pytest.mark.parametrize("attribute", ["value_float", "value_floats"])
def test_an_attribute_that_is_no_number_is_refused(attribute: str) -> None:
    for number in (np.nan, np.inf):
        value = [0.5, number] if attribute.endswith("s") else number
        node = helper.make_node("Constant", [], ["weights"], **{attribute: value})
        assert "NaN or infinite" in graph_check.refusal_reason(model_of(node).SerializeToString())


def test_a_bundle_of_weights_that_are_nan_is_not_loaded(tiny_bundle: Path, tmp_path: Path) -> None:
    def overflow(model: onnx.ModelProto) -> None:
        tensor = next(tensor for tensor in model.graph.initializer if tensor.name == "table")
        values = numpy_helper.to_array(tensor).copy()
        values.flat[-1] = np.nan
        tensor.CopyFrom(numpy_helper.from_array(values, "table"))

    with pytest.raises(BundleError, match=r"model\.onnx: 'table' has numbers that are NaN or infinite: .* train"):
        load(with_graph(tiny_bundle, tmp_path, overflow), "cpu", threads=1)


# ── every kind of step and model that tokenizer.json may hold ────────────────

LIGATURE = "\ufdfa"  # the code point that NFKC makes the longest of, 18
POINTS = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]


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


NORMALIZERS: dict[str, Any] = {
    "BertNormalizer": normalizers.BertNormalizer(),
    "ByteLevel": normalizers.ByteLevel(),
    "Lowercase": normalizers.Lowercase(),
    "NFC": normalizers.NFC(),
    "NFD": normalizers.NFD(),
    "NFKC": normalizers.NFKC(),
    "NFKD": normalizers.NFKD(),
    "Nmt": normalizers.Nmt(),
    "Precompiled": normalizers.Precompiled(charsmap("a", "aaa")),
    "Prepend": normalizers.Prepend("▁▁"),
    "Replace": normalizers.Replace("a", "bb"),
    "Sequence": normalizers.Sequence([normalizers.NFD(), normalizers.Replace(Regex("$"), "!")]),
    "Strip": normalizers.Strip(),
    "StripAccents": normalizers.StripAccents(),
}
PRE_TOKENIZERS: dict[str, Any] = {
    "BertPreTokenizer": pre_tokenizers.BertPreTokenizer(),
    "ByteLevel": pre_tokenizers.ByteLevel(add_prefix_space=True),
    "CharDelimiterSplit": pre_tokenizers.CharDelimiterSplit("a"),
    "Digits": pre_tokenizers.Digits(individual_digits=True),
    "FixedLength": pre_tokenizers.FixedLength(1),
    "Metaspace": pre_tokenizers.Metaspace(),
    "Punctuation": pre_tokenizers.Punctuation(),
    "Sequence": pre_tokenizers.Sequence([pre_tokenizers.FixedLength(1), pre_tokenizers.Metaspace()]),
    "Split": pre_tokenizers.Split("", "isolated"),
    "UnicodeScripts": pre_tokenizers.UnicodeScripts(),
    "Whitespace": pre_tokenizers.Whitespace(),
    "WhitespaceSplit": pre_tokenizers.WhitespaceSplit(),
}
DECODERS: dict[str, Any] = {
    "BPEDecoder": decoders.BPEDecoder(suffix=""),
    "ByteFallback": decoders.ByteFallback(),
    "ByteLevel": decoders.ByteLevel(),
    "CTC": decoders.CTC(word_delimiter_token="", cleanup=False),
    "Fuse": decoders.Fuse(),
    "Metaspace": decoders.Metaspace(),
    "Replace": decoders.Replace("a", "bb"),
    "Sequence": decoders.Sequence([decoders.Replace("a", "bb"), decoders.Replace("b", "cc")]),
    "Strip": decoders.Strip(),
    "WordPiece": decoders.WordPiece(cleanup=False),
}
STEPS = [
    *(("normalizer", name, step) for name, step in NORMALIZERS.items()),
    *(("pre_tokenizer", name, step) for name, step in PRE_TOKENIZERS.items()),
    *(("decoder", name, step) for name, step in DECODERS.items()),
]


def growth(part: str, step: Any) -> float:
    """How many times longer a step makes the text that it makes the longest."""
    if part == "normalizer":
        return max(len(step.normalize_str(point)) for point in POINTS)
    if part == "decoder":
        return max(len(step.decode(list(text))) / len(text) for text in ("a" * 99, "ab" * 99, "你" * 99))
    return max(
        sum(len(piece) for piece, _ in step.pre_tokenize_str(text)) / len(text)
        for text in ("\U0010ffff", "a", "a b", "a.b", "1", "你 你")
    )


def with_special_tokens(model: Any = None) -> Tokenizer:
    special = {name: i for i, name in enumerate(["[PAD]", "[UNK]", "[BOS]", "[EOS]"])}
    return Tokenizer(model or models.WordLevel(special, unk_token="[UNK]"))


def test_every_kind_that_the_library_offers_has_a_case() -> None:
    assert classes(normalizers, "Normalizer") == {*NORMALIZERS}
    assert classes(pre_tokenizers, "PreTokenizer") == {*PRE_TOKENIZERS}
    assert classes(decoders, "Decoder", "DecodeStream") == {*DECODERS}
    assert classes(models, "Model") == {*MODELS}


@pytest.mark.parametrize(("part", "name", "step"), STEPS, ids=lambda value: value if isinstance(value, str) else "")
def test_every_kind_of_step_is_counted_at_its_worst(part: str, name: str, step: Any) -> None:
    tokenizer = with_special_tokens()
    setattr(tokenizer, part, step)
    bundle.check_tokenizer(tokenizer, "tokenizer.json")
    # The step behind one that makes the text just so much longer that both are over the limit.
    times = "x" * int(bundle.MOST_GROWTH / growth(part, step) + 1)
    if part == "decoder":
        tokenizer.decoder = decoders.Sequence([decoders.Replace("x", times), step])
    else:
        tokenizer.normalizer = normalizers.Replace("x", times)
    if part == "normalizer":
        tokenizer.normalizer = normalizers.Sequence([tokenizer.normalizer, step])
    with pytest.raises(BundleError, match=r"tokenizer\.json: makes a text up to \S+ times longer in (en|de)coding; at"):
        bundle.check_tokenizer(tokenizer, "tokenizer.json")


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
            bundle.check_tokenizer(stand_in, "it")  # type: ignore[arg-type]
        setattr(stand_in, part, None)
        stand_in.model = Unknown()
        with pytest.raises(BundleError, match="the model Unknown is not one of BPE, Unigram, WordLevel, WordPiece"):
            bundle.check_tokenizer(stand_in, "it")  # type: ignore[arg-type]


SPECIAL = {name: i for i, name in enumerate(["[PAD]", "[UNK]", "[BOS]", "[EOS]"])}
LONG = "u" * 1000
MODELS: dict[str, list[Any]] = {
    "BPE": [
        models.BPE(SPECIAL | {LONG: 4}, [], unk_token=LONG),
        models.BPE(SPECIAL, [], continuing_subword_prefix=LONG),
    ],
    "Unigram": [],
    "WordLevel": [models.WordLevel(SPECIAL | {LONG: 4}, unk_token=LONG)],
    "WordPiece": [
        models.WordPiece(SPECIAL | {LONG: 4}, unk_token=LONG),
        models.WordPiece(SPECIAL, unk_token="[UNK]", continuing_subword_prefix=LONG),
    ],
}


@pytest.mark.parametrize("name", MODELS)
def test_every_kind_of_model_is_bounded(name: str) -> None:
    sound = {
        "BPE": models.BPE(SPECIAL, [], unk_token="[UNK]", byte_fallback=True),
        "Unigram": models.Unigram([(token, -1.0) for token in SPECIAL], 1, True),
        "WordLevel": models.WordLevel(SPECIAL, unk_token="[UNK]"),
        "WordPiece": models.WordPiece(SPECIAL, unk_token="[UNK]"),
    }[name]
    bundle.check_tokenizer(with_special_tokens(sound), "it")
    for model in MODELS[name]:
        with pytest.raises(BundleError, match=r"times longer in writing an unknown word"):
            bundle.check_tokenizer(with_special_tokens(model), "it")


def test_a_token_of_megabytes_is_refused(tiny_bundle: Path, tmp_path: Path) -> None:
    content = json.loads(bundle.read(tiny_bundle).files["tokenizer.json"])
    for letter in ("x", '"', "\\", "你"):
        stated = copy.deepcopy(content)
        stated["model"]["vocab"][letter * 10_000] = len(stated["model"]["vocab"])
        path = forged(tiny_bundle, tmp_path / str(ord(letter)), {"tokenizer.json": json.dumps(stated).encode()})
        with pytest.raises(BundleError, match=r"tokenizer\.json: has a token of more than 4,096 bytes"):
            load(path, "cpu", threads=1)


def with_charsmaps(*steps: Any) -> Callable[[Tokenizer], None]:
    def change(tokenizer: Tokenizer) -> None:
        tokenizer.normalizer = normalizers.Sequence(list(steps))

    return change


def decodes_to_more(tokenizer: Tokenizer) -> None:
    tokenizer.decoder = decoders.Sequence([decoders.Fuse(), decoders.Replace("a", "a" * 1000)])


def pads(tokenizer: Tokenizer) -> None:
    tokenizer.enable_padding(length=10**9)


MAPS = [normalizers.Precompiled(charsmap("a", "a" * 1000)) for _ in range(3)]
TOKENIZERS: dict[str, tuple[Callable[[Tokenizer], None], str]] = {
    "a normalizer that grows a text by 10^12": (
        with_charsmaps(*[normalizers.Replace("a", "a" * 1000)] * 4),
        r"makes a text up to 1e\+12 times longer",
    ),
    "charsmaps that grow a text by 10^9": (with_charsmaps(*MAPS), r"makes a text up to 1e\+09 times longer"),
    "a charsmap behind a form": (
        with_charsmaps(normalizers.NFKD(), normalizers.Precompiled(charsmap("a", "a" * 20))),
        r"makes a text up to 3\.6e\+02 times longer",
    ),
    "forms with a ligature between them": (
        with_charsmaps(normalizers.NFKC(), normalizers.Replace("a", LIGATURE), normalizers.NFKC()),
        r"makes a text up to 3\.2e\+02 times longer",
    ),
    "a decoder that grows a text by 1000": (decodes_to_more, r"makes a text up to 1e\+03 times longer in decoding"),
    "padding to 10^9 tokens": (pads, "pads or truncates texts"),
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_tokenizer_that_takes_any_memory_is_refused(name: str, tiny_bundle: Path, tmp_path: Path) -> None:
    change, message = TOKENIZERS[name]
    with pytest.raises(BundleError, match=message):
        load(with_tokenizer(tiny_bundle, tmp_path, change), "cpu", threads=1)


def test_normalizers_of_public_checkpoints_are_within_the_limit() -> None:
    blanks = normalizers.Replace(Regex(" {2,}"), " ")
    of_form = normalizers.Precompiled(charsmap(LIGATURE, normalizers.NFKC().normalize_str(LIGATURE)))
    assert len(of_form.normalize_str(LIGATURE)) == 18
    accents = [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
    for steps in ([of_form, blanks], [*accents, of_form, blanks], [normalizers.NFKC(), *accents, normalizers.NFKC()]):
        tokenizer = with_special_tokens()
        tokenizer.normalizer = normalizers.Sequence(steps)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
        )
        bundle.check_tokenizer(tokenizer, "it")


def splits_in_exponential_time(tokenizer: Tokenizer) -> None:
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("(x+x+)+y"), "removed", invert=True)


def replaces_in_exponential_time(tokenizer: Tokenizer) -> None:
    tokenizer.normalizer = normalizers.Replace(Regex("(x+x+)+y"), "z")


@pytest.mark.parametrize("change", [splits_in_exponential_time, replaces_in_exponential_time])
def test_a_regular_expression_of_a_tokenizer_ends_in_an_error(
    change: Callable[[Tokenizer], None], tiny_bundle: Path, tmp_path: Path
) -> None:
    model = load(with_tokenizer(tiny_bundle, tmp_path, change), "cpu", threads=1)
    with pytest.raises(SeqpipeError):
        model("x" * 28)


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


STATED: dict[str, tuple[dict[str, Any], str]] = {
    "fewer labels than tags": ({"answer": {"kind": "tags", "labels": ["O"], "target": None}}, "not an answer of kind"),
    "a size of 10^8": ({"options": {"bias": {"type": "size", "default": 10**8}}}, "more than the limit of 1,000,000"),
    "a size of 10^12": ({"options": {"bias": {"type": "size", "default": 10**12}}}, "more than the limit of 1,000,000"),
    "a size that may be 10^12": (
        {"options": {"bias": {"type": "size", "default": 1, "maximum": 10**12}}},
        "not a valid bound of a size",
    ),
    "a bound that is text": (
        {"options": {"bias": {"type": "float", "default": 0.0, "minimum": "0"}}},
        "its `minimum` is '0'",
    ),
    "a bound that no float holds": (
        {"options": {"bias": {"type": "float", "default": 0.0, "maximum": 10**400}}},
        "options.bias: a bound exceeds every number",
    ),
    "a minimum over its maximum": (
        {"options": {"bias": {"type": "float", "default": 0.0, "minimum": 2, "maximum": 1}}},
        "the minimum 2 exceeds the maximum 1",
    ),
    "texts of 10^12 tokens": ({"limits": {"tokens": 10**12}}, "must be a whole number from 1 to 1,000,000"),
    "texts of no token": ({"limits": {"tokens": 0}}, "must be a whole number from 1 to 1,000,000"),
    "texts of true tokens": ({"limits": {"tokens": True}}, "must be a whole number from 1 to 1,000,000"),
    "a reader without a name": ({"reader": {}}, "reader: must be an object with `use`, and"),
    "metrics of nobody": ({"own_metrics": {"": {"use": 5}}}, "own_metrics.: must be an object with `use`, `dist"),
    "metrics in a list": ({"own_metrics": []}, "own_metrics: must be an object"),
    "an example without a record": ({"golden": [5]}, "golden.1: must be an object with a record"),
    "an example that is a number": (
        {"golden": [{"record": 5, "answer": []}]},
        "golden.1: must be .* its `record` is 5",
    ),
}


@pytest.mark.parametrize("name", STATED)
def test_what_a_manifest_states_is_bounded(name: str, tiny_bundle: Path, tmp_path: Path) -> None:
    changes, message = STATED[name]
    with pytest.raises(BundleError, match=message):
        load(forged(tiny_bundle, tmp_path, **changes), "cpu", threads=1)(TEXT)


def test_words_as_long_as_a_forger_likes_are_refused(tiny_bundle: Path, tmp_path: Path) -> None:
    inputs = plain(bundle.read(tiny_bundle).manifest)["inputs"]
    inputs["chars"] = {**inputs["chars"], "longest": 10**12}
    with pytest.raises(BundleError, match=r"chars\.longest: 1000000000000 is not between 1 and 10,000"):
        load(forged(tiny_bundle, tmp_path, inputs=inputs), "cpu", threads=1)


def crashes(model: onnx.ModelProto) -> None:
    """Gathers behind the end of the table: onnxruntime raises an exception of its own."""
    instead_of("virtual", constant("far", [10**6]), helper.make_node("Add", ["virtual_given", "far"], ["virtual"]))(
        model
    )


def test_what_onnxruntime_raises_is_an_error_of_the_bundle(tiny_bundle: Path, tmp_path: Path) -> None:
    model = load(with_graph(tiny_bundle, tmp_path, crashes), "cpu", threads=1)
    with pytest.raises(BundleError, match="onnxruntime could not run the graph: "):
        model("Zoe")
    assert model("Anna")


def needs_memory(model: onnx.ModelProto) -> None:
    """Makes 10^17 numbers, which shape arithmetic hides from the look at the graph."""
    nodes = [
        constant("ten", [10**8]),
        helper.make_node("Shape", ["ids"], ["rows"], end=1),
        helper.make_node("Mul", ["rows", "ten"], ["many"]),
        helper.make_node("Mul", ["many", "ten"], ["more"]),
        helper.make_node("ConstantOfShape", ["more"], ["all"]),
        helper.make_node("ReduceMax", ["all"], ["bias"], keepdims=0),
    ]
    del model.graph.input[-1]
    instead_of("bias", *nodes)(model)


def test_memory_that_is_not_there_is_an_error_too(tiny_bundle: Path, tmp_path: Path) -> None:
    model = load(with_graph(tiny_bundle, tmp_path, needs_memory, options={}), "cpu", threads=1)
    with pytest.raises(DataError, match="needs more memory for this input than available"):
        model(TEXT)


# ── pinned ───────────────────────────────────────────────────────────────────


def test_a_bundle_may_be_pinned_by_the_sha256_of_its_manifest(tiny_bundle: Path, tmp_path: Path) -> None:
    own = bundle.sha256((tiny_bundle / "bundle.json").read_bytes())
    assert load(tiny_bundle, "cpu", threads=1, sha256=own.upper()).sha256 == own
    done = seqpipe("verify", tiny_bundle, "--sha256", own, "--json", "--device", "cpu")
    assert (done.code, json.loads(done.out)["sha256"], own in done.err) == (0, own, True)
    other = forged(tiny_bundle, tmp_path, name="other")
    with pytest.raises(
        BundleError, match=f"its sha256 is [0-9a-f]{{64}}, not {own}: this is not the bundle that you expect"
    ):
        load(other, "cpu", threads=1, sha256=own)
    assert seqpipe("verify", other, "--sha256", own, "--device", "cpu").code == 6
    with pytest.raises(UsageError, match="'abc' is not 64 hexadecimal digits; give those that `sha256sum "):
        load(tiny_bundle, "cpu", sha256="abc")


# ── --untrusted ──────────────────────────────────────────────────────────────


def untrusted(path: Path, folder: Path, *arguments: str) -> Done:
    return process("verify", path, "--untrusted", *arguments, folder=folder)


def test_a_sound_bundle_is_verified_within_the_limits(tiny_bundle: Path, tmp_path: Path) -> None:
    done = untrusted(tiny_bundle, tmp_path, "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["golden"] == 1


def test_a_loop_that_no_deadline_of_a_run_ends_is_killed(tiny_bundle: Path, tmp_path: Path) -> None:
    begun = time.monotonic()
    done = untrusted(with_graph(tiny_bundle, tmp_path, loops), tmp_path, "--timeout", "3")
    assert (done.code, "took more than 3 seconds, and was ended" in done.err) == (6, True), done.err
    assert time.monotonic() - begun < 30


def fills_memory(model: onnx.ModelProto) -> None:
    """Makes 3 GB, which shape arithmetic hides from the look at the graph."""
    nodes = [
        constant("ten", [750_000_000]),
        helper.make_node("Shape", ["ids"], ["rows"], end=1),
        helper.make_node("Mul", ["rows", "ten"], ["many"]),
        helper.make_node("ConstantOfShape", ["many"], ["all"]),
        helper.make_node("ReduceMax", ["all"], ["bias"], keepdims=0),
    ]
    del model.graph.input[-1]
    instead_of("bias", *nodes)(model)


def test_a_bundle_that_takes_more_memory_is_ended(tiny_bundle: Path, tmp_path: Path) -> None:
    path = with_graph(tiny_bundle, tmp_path, fills_memory, options={})
    done = untrusted(path, tmp_path, "--memory", "1")
    assert (done.code, "memory" in done.err, "Traceback" in done.err) == (6, True, False), done.err


def test_a_refused_bundle_says_why_without_commands_to_the_terminal(tiny_bundle: Path, tmp_path: Path) -> None:
    answer = {"kind": "\x1b[2Jevil"}
    done = untrusted(forged(tiny_bundle, tmp_path, answer=answer), tmp_path)
    assert (done.code, "\x1b" in done.err) == (6, False), done.err
    assert "unknown answer kind '\\x1b[2Jevil'; update seqpipe" in done.err


@pytest.mark.parametrize("limits", [["--untrusted"], []])
def test_a_strangers_reason_for_no_golden_examples_commands_no_terminal(
    limits: list[str], tiny_bundle: Path, tmp_path: Path
) -> None:
    path = forged(tiny_bundle, tmp_path, golden=[], no_golden="\x1b[2Jevil")
    done = seqpipe("verify", path, *limits)
    assert (done.code, "\x1b" in done.err, "\\x1b[2Jevil" in done.err) == (0, False, True), done.err
    for reason in ("a" * 1_001, 5, ["ties"]):
        with pytest.raises(BundleError, match="no_golden: must be a text of at most 1000 characters"):
            load(forged(tiny_bundle, tmp_path, golden=[], no_golden=reason), "cpu")


@pytest.mark.parametrize("limit", [["--memory", "0"], ["--timeout", "0"], ["--memory", "nan"], ["--timeout", "inf"]])
def test_limits_that_are_none_are_refused(limit: list[str], tiny_bundle: Path) -> None:
    done = seqpipe("verify", tiny_bundle, "--untrusted", *limit)
    assert (done.code, "must be numbers above 0" in done.err) == (2, True)
    assert seqpipe("verify", tiny_bundle, *limit).code == 2


def test_limits_are_for_untrusted_bundles_on_the_cpu(tiny_bundle: Path) -> None:
    assert seqpipe("verify", tiny_bundle, "--timeout", "5").code == 2
    assert seqpipe("verify", tiny_bundle, "--untrusted", "--device", "cuda").code == 2


def test_a_platform_without_limits_is_told_so(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "resource", None)
    done = seqpipe("verify", tiny_bundle, "--untrusted")
    assert (done.code, "cannot limit the memory and time of a process" in done.err) == (7, True)
