"""Untrusted inputs, changed at random: each target takes bytes, and may raise nothing but errors of seqpipe.

`python tests/support/fuzzing.py TARGET --seconds 600` searches with the coverage of atheris (Linux, `pip install
atheris`); it writes new inputs to tests/fuzz/TARGET, and those that fail to tests/fuzz/TARGET/crash-*. Tests replay the
corpus, and a number of random changes of it.
"""

import argparse
import contextlib
import gc
import io
import json
import random
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any
from unittest import mock

import yaml
from repository_scripts import ROOT
from toy_bundles import write_bundle

import seqpipe
from seqpipe.config import loader
from seqpipe.config.plugins import Plugins
from seqpipe.config.signature import construct
from seqpipe.errors import SeqpipeError
from seqpipe.files import json_bytes
from seqpipe.init import init_yaml
from seqpipe.runtime.graph_check import refusal_reason
from seqpipe.runtime.manifest import MANIFEST

CORPUS = ROOT / "tests" / "fuzz"
TargetFunction = Callable[[bytes], None]
Targets = dict[str, tuple[list[bytes], TargetFunction]]  # by name, the first inputs and the function
_VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 1, 2**31, 2**63, 2**64, 10**30, 0.5, float("nan"), float("inf"), 1e308, "", " ", "text", "\x00",
    "\ud800", "\u202e", "../..", "/dev/zero", "a" * 5000, "(a*)*b", [], [[]], {}, {"": None}, [None], [0] * 1000, "{}",
)  # fmt: skip
_BYTES = (
    b"\x00", b"\xff", b"\xef\xbb\xbf", b"\r\n", b"\n\n", b"\t", b'"', b"'", b"{", b"[", b": ", b"- ", b"&a ", b"*a",
)  # fmt: skip


def reader_examples() -> dict[str, tuple[dict[str, Any], bytes]]:
    """Options of each reader, and a file that it reads."""
    question = {"id": "1", "question": "Who?", "answers": [{"text": "Ada", "answer_start": 0}]}
    squad = {"data": [{"title": "t", "paragraphs": [{"context": "Ada lives in Rome.", "qas": [question]}]}]}
    spans = {"text": "Ada in Rome", "spans": [{"start": 0, "end": 3, "label": "PER"}], "label": "x"}
    rows = [{"text": "a", "label": "x"}, {"text": "b", "label": "y"}]
    conllu = "# text = It rains\n1\tIt\tit\tPRON{0}2\tnsubj\t_\t_\n2\trains\train\tVERB{0}0\troot\t_\t_\n\n"
    return {
        "conll": ({}, b"-DOCSTART- -X- O\n\nAda B-PER\nin O\nNew B-LOC\nYork I-LOC\n\nrain O\n"),
        "conllu": ({}, conllu.format("\t_\t_\t").encode()),
        "annotations": ({"form": "rasa"}, b"nlu:\n- intent: go\n  examples: |\n    - fly to [Oslo](town)\n"),
        "csv": ({"text": "text", "label": "label"}, b'text,label\n"a, b",x\n"two\nlines",y\n'),
        "tsv": ({"text": "text", "labels": "labels"}, b"text\tlabels\na b\tx|y\nc\tz\n"),
        "jsonl": ({}, json_bytes(spans) + b"\n" + json_bytes({**spans, "spans": []}) + b"\n"),
        "json": ({"list": "data"}, json_bytes({"version": 1, "data": rows})),
        "fasttext": ({"multi": True}, b"__label__a __label__b one text\n__label__c another\n"),
        "segmented": ({}, "\u4eca\u5929 \u5929\u6c14 \u597d\nNew York\n".encode()),
        "squad": ({}, json_bytes(squad)),
        "text": ({"unit": "line"}, "One line.\nAnother \u2014 with a dash.\n".encode()),
        "points": ({}, b"0.1 0.2 0.3 0.4 output 1 2 1\n0.5 0.5 0.25 0.1 0.7 0.2 output 3 1 2 3\n"),
    }


def requests(bundles: Mapping[str, Path], stack: contextlib.ExitStack) -> tuple[list[bytes], TargetFunction]:
    """The first requests to a server of these bundles, and a function that sends one: no status may be 500."""
    from starlette.testclient import TestClient

    from seqpipe.serve.app import make_app
    from seqpipe.serve.settings import Settings

    settings = Settings(bundles=bundles, timeout_s=1, max_body_bytes=1 << 16, access_log=False)
    models = {name: seqpipe.load(path, "cpu", threads=1, timeout=1) for name, path in bundles.items()}
    # The client runs the application in a thread, where no signal can be handled.
    stack.enter_context(mock.patch("asyncio.unix_events._UnixSelectorEventLoop.add_signal_handler"))
    app = make_app(settings, models)
    client = stack.enter_context(TestClient(app, "http://127.0.0.1", raise_server_exceptions=False))
    tensor = {"name": "text", "datatype": "BYTES", "shape": [2], "data": ["Anna in Bern", "b"]}
    first: list[tuple[str, Any]] = []
    for name in bundles:
        prompt = {"model": name, "prompt": "a", "max_tokens": 3, "n": 1, "temperature": 0.5, "seed": 1, "top_p": 0.9}
        first += [
            (f"/v1/{name}", {"inputs": ["Anna in Bern", {"text": "New York"}], "options": {}}),
            (f"/v1/{name}", {"inputs": "Anna in Bern", "explain": True}),
            (f"/v2/models/{name}/infer", {"id": "1", "inputs": [tensor], "parameters": {}}),
            ("/v1/completions", {**prompt, "stop": ["b"], "stream": False, "echo": True}),
            ("/v1/embeddings", {"model": name, "input": ["Anna"], "encoding_format": "base64"}),
        ]

    def send(data: bytes) -> None:
        path, body = first[len(data) % len(first)][0], data
        with contextlib.suppress(ValueError, RecursionError, TypeError, KeyError, IndexError):
            number, value = json.loads(data)
            path, body = first[number][0], json.dumps(value).encode()
        response = client.post(path, content=body, headers={"Content-Type": "application/json"})
        assert response.status_code < 500 or response.status_code == 504, (path, response.text)

    answered = [client.post(path, json=body).status_code == 200 for path, body in first]
    assert sum(answered) > len(first) / 2, answered
    return [json_bytes([number, body]) for number, (_, body) in enumerate(first)], send


def targets(bundles: Mapping[str, Path], folder: Path, stack: contextlib.ExitStack) -> Targets:
    """The first inputs and the function of each target.

    Args:
        bundles: Small bundles by name; the first is changed.
        folder: A folder for files.
        stack: Closes clients and undoes patches.
    """
    bundle = next(iter(bundles.values()))
    files = {name: (bundle / name).read_bytes() for name in ("model.onnx", "tokenizer.json")}
    stated = json.loads((bundle / MANIFEST).read_bytes())
    content = {key: value for key, value in stated.items() if key not in ("files", "sha256", "format", "version")}

    def answer(content: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
        model = seqpipe.load(write_bundle(folder / "bundle", files, content), "cpu", threads=1, timeout=5)
        model("Anna in\r\nNew York")

    def manifest(data: bytes) -> None:
        try:
            json_bytes(value := json.loads(data))
        except (ValueError, RecursionError):  # it could not be sealed
            return
        if isinstance(value, dict):
            answer(value, files)

    def graph(data: bytes) -> None:
        assert isinstance(refusal_reason(data), str)

    def input_file(data: bytes) -> Path:
        path = folder / "input.yaml"
        path.write_bytes(data)
        return path

    def first_yaml(data: bytes) -> None:
        (folder / "first.yaml").unlink(missing_ok=True)
        init_yaml(input_file(data), folder / "first.yaml")

    def read(data: bytes, reader: Any) -> None:
        path = input_file(data)
        for record in reader.read(path):
            assert re.match(rf"{re.escape(str(path))}:\d+", record["where"])

    yamls = [path.read_bytes() for path in sorted((ROOT / "pipelines").glob("*.yaml"))]
    by_name: Targets = {
        "manifest": ([json_bytes(content)], manifest),
        "tokenizer": (
            [files["tokenizer.json"]],
            lambda data: answer({**content, "golden": []}, {**files, "tokenizer.json": data}),
        ),
        "graph": ([files["model.onnx"]], graph),
        "yaml": (yamls, lambda data: loader.load_config(input_file(data), files=False, runs=False)),
        "requests": requests(bundles, stack),
        "init": ([data for _, data in reader_examples().values()], first_yaml),
    }
    for use, (options, example) in reader_examples().items():
        reader = construct(Plugins().find("reader", use).load(), **options)
        by_name[f"reader-{use}"] = ([example], partial(read, reader=reader))
    return by_name


def run_target(run: TargetFunction, data: bytes) -> None:
    """Run a target on bytes: anything but an error of seqpipe is raised."""
    with contextlib.suppress(SeqpipeError), contextlib.redirect_stderr(io.StringIO()):
        run(data)


def _places(value: Any, depth: int = 0) -> Iterator[tuple[Any, Any]]:
    """Each container within a value, with a key of it; not those that are nested very deeply."""
    keys = [*value] if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        if depth < 100:
            yield from _places(value[key], depth + 1)


def mutated(data: bytes, dice: random.Random) -> bytes:
    """The bytes with one to four changes: of the values within, where they are JSON or YAML, or of the bytes."""
    value: Any = None
    for parse in (json.loads, yaml.safe_load) if dice.random() < 0.6 else ():
        if value is None and (parse is json.loads or b": " in data):
            with contextlib.suppress(ValueError, RecursionError, yaml.YAMLError):
                value = parse(data)
    for _ in range(dice.randint(1, 4)):
        places = [*_places(value)]
        if not places:
            data = _changed_bytes(data, dice)
            continue
        within, key = dice.choice(places)
        match dice.randrange(5):
            case 0:
                del within[key]
            case 1:
                within[key] = dice.choice(_VALUES)
            case 2:
                source, name = dice.choice(places)
                with contextlib.suppress(KeyError, IndexError, ValueError, RecursionError):
                    within[key] = json.loads(json.dumps(source[name]))
            case 3:
                within[key] = [within[key]] * dice.choice((1, 2, 100))
            case 4 if isinstance(within, dict):
                within[dice.choice(("", "use", "text", "type", "name", str(key).upper()))] = within[key]
            case _:
                within[key] = {str(key): within[key]}
        value = value if isinstance(value, dict | list) else None
    if value is None:
        return data
    with contextlib.suppress(ValueError, RecursionError):
        return json.dumps(value, ensure_ascii=dice.random() < 0.5).encode("utf-8", "surrogatepass")
    return data


def _changed_bytes(data: bytes, dice: random.Random) -> bytes:
    at, end = sorted((dice.randrange(len(data) + 1), dice.randrange(len(data) + 1)))
    end = min(end, at + dice.choice((1, 4, 64)))
    match dice.randrange(5):
        case 0:
            return data[:at] + data[end:]
        case 1:
            return data[:at] + dice.choice(_BYTES) * dice.choice((1, 1, 50)) + data[at:]
        case 2:
            return data[:at] + data[at:end] * dice.choice((2, 100)) + data[end:]
        case 3:
            return data[:at] + dice.randbytes(end - at) + data[end:]
        case _:
            return data[:at] + bytes(byte ^ 1 << dice.randrange(8) for byte in data[at:end]) + data[end:]


def stored_inputs(name: str) -> list[bytes]:
    """The inputs of earlier searches for a target, in order of their names."""
    return [path.read_bytes() for path in sorted((CORPUS / name).glob("*")) if path.is_file()]


def main() -> None:
    import atheris

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("--bundles", type=Path, nargs="+", required=True, help="small bundles, the first to be changed")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--found", type=Path, help="folder for new inputs; default: the corpus")
    arguments = parser.parse_args()
    bundles, folder = {path.name: path for path in arguments.bundles}, Path(tempfile.mkdtemp(prefix="fuzz-"))
    seeds, run = targets(bundles, folder, contextlib.ExitStack())[arguments.target]
    new_inputs = arguments.found or CORPUS / arguments.target
    new_inputs.mkdir(parents=True, exist_ok=True)
    first = Path(tempfile.mkdtemp(prefix="seeds-"))
    for number, data in enumerate(seeds):
        (first / str(number)).write_bytes(data)

    def mutator(data: bytes, most: int, seed: int) -> bytes:
        dice = random.Random(seed)
        return mutated(data, dice)[:most] if dice.random() < 0.7 else bytes(atheris.Mutate(data, most))

    packages = ("seqpipe", "seqpipe_plugins")
    for function in gc.get_objects():
        if isinstance(function, FunctionType) and (function.__module__ or "").partition(".")[0] in packages:
            atheris.instrument_func(function)
    options = [f"-max_total_time={arguments.seconds}", "-timeout=30", "-rss_limit_mb=4096", "-max_len=65536"]
    options += ["-print_final_stats=1", f"-artifact_prefix={new_inputs}/crash-"]
    command = [sys.argv[0], *options, str(new_inputs), str(first)]
    atheris.Setup(command, lambda data: run_target(run, data), custom_mutator=mutator)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
