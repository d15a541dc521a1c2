"""A command line in, an exit code out: `seqpipe run pipeline.yaml` and its kin.

Heavy modules load only where a command needs them.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqpipe.console import Console, printable
from seqpipe.errors import ConfigError, DataError, SeqpipeError, UsageError
from seqpipe.version import VERSION

if TYPE_CHECKING:
    from seqpipe.config.loader import Config
    from seqpipe.export.graph_cache import GraphCache

app = typer.Typer(
    name="seqpipe",
    help="Train a sequence model from one YAML; ship it as one ONNX bundle that needs no PyTorch.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
plugins_app = typer.Typer(
    help="What is installed: components, their options, and what is broken.", rich_markup_mode=None
)
app.add_typer(plugins_app, name="plugins", invoke_without_command=True)

YamlFile = Annotated[Path, typer.Argument(metavar="FILE", help="The pipeline's YAML.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Overrides, such as train.epochs=3.")
]
Sets = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="An override; may be repeated.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Short for --set train.seed=N.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N; one that is not there is an error.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Move an old run of this name aside and start anew.")]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Neither read nor write the graph cache.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON to standard output.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors and results.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say more.")]
Target = Annotated[Path, typer.Argument(metavar="RUN|BUNDLE", help="A run's folder or a bundle's.")]
BundlePath = Annotated[Path, typer.Argument(metavar="BUNDLE", help="A bundle's folder.")]


def _say_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"seqpipe {VERSION}")
        raise typer.Exit


@app.callback()
def common(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Show the version and end.")
    ] = False,
) -> None: ...


@app.command()
def run(
    file: YamlFile,
    overrides: Overrides = None,
    sets: Sets = None,
    seed: Seed = None,
    seeds: Annotated[
        int | None, typer.Option("--seeds", min=1, help="Train under seeds 1 to N; mean and deviation.")
    ] = None,
    device: Device = "auto",
    fresh: Fresh = False,
    no_cache: NoCache = False,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Check, train, evaluate, export, verify, and show answers. Goes on where an interrupted run stopped."""
    console = _console(quiet, verbose)
    config = _load(console, file, overrides, sets, seed)
    from seqpipe.commands.full_run import run_all, run_seeds

    if seeds:
        result = run_seeds(
            lambda more: _load(Console(-1), file, overrides, [*(sets or []), *more], seed),
            config.name,
            seeds,
            console,
            device,
            fresh,
            _cache(no_cache),
        )
    else:
        result = run_all(config, console, device, fresh, _cache(no_cache))
    _print_json(result, as_json)


@app.command()
def check(
    file: YamlFile,
    overrides: Overrides = None,
    sets: Sets = None,
    explain: Annotated[bool, typer.Option("--explain", help="Print who provides and who uses each name.")] = False,
    static: Annotated[bool, typer.Option("--static", help="Check the YAML alone; build and export nothing.")] = False,
    no_cache: NoCache = False,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Find every mistake in a YAML, then build it small, export it, run it and compare: exportable before trained."""
    console = _console(quiet, verbose)
    config = _load(console, file, overrides, sets, None)
    if explain:
        from seqpipe.config.dataflow import explain as explained

        typer.echo(explained(config.inputs, config.head))
    if static:
        console.say(f"{file}: ok")
        return
    from seqpipe.commands.check import check_export

    result = check_export(config, console, _cache(no_cache))
    console.say(f"\nnext: seqpipe run {file}")
    _print_json(result, as_json)


@app.command()
def train(
    file: YamlFile,
    overrides: Overrides = None,
    sets: Sets = None,
    seed: Seed = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an interrupted run; an error if there is none.")
    ] = False,
    device: Device = "auto",
    fresh: Fresh = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Train only."""
    console = _console(quiet, verbose)
    config = _load(console, file, overrides, sets, seed)
    from seqpipe.commands.run_folder import RUNS, start_run
    from seqpipe.commands.training_run import train_run
    from seqpipe.config.run_layout import STATE

    if resume and not (RUNS / config.name / STATE).exists():
        raise UsageError(f"--resume: {RUNS / config.name} is no run yet; leave --resume out to start one")
    with start_run(config, console, fresh) as begun:
        train_run(begun, console, device)
    console.say(f"\nnext: seqpipe evaluate {begun.folder}, then seqpipe export {begun.folder}")


@app.command()
def evaluate(
    target: Target,
    data: Annotated[Path | None, typer.Option("--data", help="Another file than the run's test sets.")] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Also score from the text alone, which is what deployment sees.")
    ] = False,
    by: Annotated[
        str | None, typer.Option("--by", metavar="FIELD", help="Split the scores by a field of the records.")
    ] = None,
    errors: Annotated[
        Path | None, typer.Option("--errors", metavar="FILE", help="List what went wrong, as JSONL.")
    ] = None,
    device: Device = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Score a run (PyTorch) or a bundle (onnxruntime) on its test sets or on a file."""
    from seqpipe.commands.evaluate import score_target

    console = _console(quiet, False)
    result = score_target(target, console, data=data, raw=raw, by=by, errors=errors, device=device)
    if errors:
        console.say(f"\nwhat went wrong is listed in {errors}")
    _print_json(result, as_json)


@app.command()
def export(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where the bundle goes; RUN/bundle by default.")
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Another key of `export`, such as export.explain=true."),
    ] = None,
    no_cache: NoCache = False,
    quiet: Quiet = False,
) -> None:
    """Export a trained run to a bundle, and compare its answers with PyTorch's."""
    from seqpipe.commands.held_out import held_out_records
    from seqpipe.commands.run_folder import load_trained, open_run
    from seqpipe.commands.run_lock import lock_around
    from seqpipe.export.exporter import export as export_bundle
    from seqpipe.runtime.bundle import refuse_other

    for item in sets or []:
        if not item.startswith("export."):
            raise UsageError(f"--set {item}: the run is trained; only keys of `export` can change, as export.opset=20")
    console = _console(quiet, False)
    path = output or folder / "bundle"
    refuse_other(path)
    cache = _cache(no_cache)
    with lock_around(path):
        opened = open_run(folder, console, sets=sets or [])
        export_bundle(
            load_trained(opened), opened.config, held_out_records(opened), path, console, opened.scores, cache
        )
    console.say(f"\nnext: seqpipe predict {path}")


@app.command()
def vectors(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file; RUN/vectors.vec, or .bin, by default.")
    ] = None,
    binary: Annotated[bool, typer.Option("--binary", help="As word2vec's binary, not as text.")] = False,
    stage: Annotated[
        str | None, typer.Option("--stage", metavar="KEY", help="Which embedding, of several: embedding.1.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Write the word vectors that a run has learned to a file, as word2vec does."""
    from seqpipe.commands.run_folder import load_trained, open_run
    from seqpipe.commands.run_lock import lock_around
    from seqpipe.commands.vectors import write_vectors

    console = _console(quiet, False)
    path = output or folder / ("vectors.bin" if binary else "vectors.vec")
    with lock_around(path):
        count = write_vectors(load_trained(open_run(folder, console, need_data=False)), folder, path, binary, stage)
    console.say(f"{count:,} words -> {path}\n\nnext: embedding: {{use: vectors, path: {path}}}")


@app.command()
def verify(
    bundle: BundlePath,
    device: Device = "auto",
    sha256: Annotated[
        str | None, typer.Option("--sha256", metavar="DIGITS", help="The SHA-256 that its bundle.json must have.")
    ] = None,
    untrusted: Annotated[
        bool,
        typer.Option("--untrusted", help="Open it in a process of its own with limits of memory and time, on the CPU."),
    ] = False,
    memory: Annotated[
        float | None, typer.Option("--memory", metavar="GIB", help="With --untrusted: GiB it may take; 4 by default.")
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", metavar="SECONDS", help="With --untrusted: seconds it may take; 120 by default."),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Check a bundle's hashes and repeat its golden examples on this machine. Needs no PyTorch."""
    if untrusted:
        from seqpipe.runtime.untrusted import Limits, verify_untrusted

        if device not in ("auto", "cpu"):
            raise UsageError(f"--device {device}: with --untrusted a bundle is opened on the CPU; leave it out")
        limits = Limits(Limits.memory if memory is None else memory, Limits.seconds if timeout is None else timeout)
        result = verify_untrusted(bundle, limits, sha256)
    else:
        from seqpipe.runtime.model import verify_bundle

        if memory is not None or timeout is not None:
            raise UsageError("--memory and --timeout are limits of --untrusted; give that too")
        result = verify_bundle(bundle, device, sha256=sha256)
    summary = f"hashes right, {result['golden']} golden examples answered the same on {result['device']}"
    summary += f"; {printable(result['no_golden'])}" if "no_golden" in result else ""
    _console(quiet, False).say(f"{bundle}: {summary}\nsha256 of its bundle.json: {result['sha256']}")
    _print_json(result, as_json)


@app.command()
def predict(
    bundle: BundlePath,
    input: Annotated[Path | None, typer.Option("--input", "-i", help="A file; standard input by default.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A file; standard output by default.")] = None,
    form: Annotated[
        str, typer.Option("--format", help="text, jsonl or conll; by the file's ending if left out.")
    ] = "auto",
    documents: Annotated[
        bool, typer.Option("--documents", help="Take each text as a document and split it into sentences.")
    ] = False,
    stream: Annotated[
        bool, typer.Option("--stream", help="Print each text as it is written; for a head that goes on with texts.")
    ] = False,
    on_error: Annotated[
        str, typer.Option("--on-error", help="stop at a line without an answer, or skip: it gets its error instead.")
    ] = "stop",
    options: Annotated[
        list[str] | None, typer.Option("--option", metavar="KEY=VALUE", help="A decode option, such as n_best=3.")
    ] = None,
    beams: Annotated[int | None, typer.Option("--beams", help="Short for --option beams=N.")] = None,
    n_best: Annotated[int | None, typer.Option("--n-best", help="Short for --option n_best=N.")] = None,
    device: Device = "auto",
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, help="Runs at once; one a core by default.")
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.1, help="Seconds that one run of the graph may take.")
    ] = 600.0,
) -> None:
    """Answer texts, one a line, in order, one line of JSON each. Needs no PyTorch."""
    from seqpipe import load
    from seqpipe.runtime.file_io import predict_file, stream_file

    model = load(bundle, device, threads, timeout=timeout)
    chosen = _decode_options(options or [], {"beams": beams, "n_best": n_best}, model.manifest["options"])
    if stream and on_error != "stop":
        raise UsageError("--on-error: --stream stops at a line without an answer; leave one of the two out")
    if stream:
        stream_file(model, input, output, form, chosen)
    else:
        predict_file(model, input, output, form, documents, chosen, on_error)


@app.command()
def explain(
    bundle: BundlePath,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The text to look at; - reads standard input.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The heat map: a file ending in .html, .png or .json.")
    ] = None,
    font: Annotated[
        Path | None, typer.Option("--font", metavar="FILE", help="For .png: a font that has the text's characters.")
    ] = None,
    options: Annotated[
        list[str] | None, typer.Option("--option", metavar="KEY=VALUE", help="A decode option, such as n_best=3.")
    ] = None,
    device: Device = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show what a model looked at: its attention weights over a text, as a heat map or a table. Needs no PyTorch."""
    from seqpipe import load
    from seqpipe.features.vocabulary import clean
    from seqpipe.runtime.explain.drawing import draw, ending
    from seqpipe.runtime.file_io import one_record

    if output:
        ending(output)
    elif font:
        raise UsageError("--font: is for a picture; write -o FILE.png")
    model = load(bundle, device, threads=1)
    chosen = _decode_options(options or [], {}, model.manifest["options"])
    found = model.explain(one_record(model, _text(text)), **chosen)
    if output:
        draw(found, output, font)
        _console(quiet, False).say(f"wrote {output}")
    elif not as_json:
        typer.echo(clean(found.table()))
    _print_json(found.data(), as_json)


@app.command()
def init(
    data: Annotated[
        Path, typer.Option("--data", help="Your CoNLL, CoNLL-U, JSONL, CSV or TSV file with training examples.")
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The YAML to write; DATA's name .yaml by default.")
    ] = None,
) -> None:
    """Look at a data file and write the YAML for it, commented."""
    from seqpipe.commands.init.template import init_yaml

    path = init_yaml(data, output)
    Console().say(f"wrote {path}\nnext: seqpipe check {path}")


@plugins_app.callback()
def plugins_default(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        plugins_list()


@plugins_app.command("list")
def plugins_list() -> None:
    """List every component and every broken plugin."""
    from seqpipe.commands.plugins import listing

    typer.echo(listing())


@plugins_app.command("show")
def plugins_show(
    name: Annotated[str, typer.Argument(help="A component, such as lstm, or encoder/lstm to be exact.")],
) -> None:
    """Show a component's options with their types, defaults and meaning."""
    from seqpipe.commands.plugins import shown

    typer.echo(shown(name))


@plugins_app.command("new")
def plugins_new(
    name: Annotated[str, typer.Argument(help="The distribution's name, such as acme-conv.")],
    kind: Annotated[str, typer.Option("--kind", help="encoder, head, embedding, tokenizer or reader.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where the package's folder goes; here by default.")
    ] = None,
    use: Annotated[
        str | None, typer.Option("--use", help="What a YAML calls the component; the distribution's name by default.")
    ] = None,
    license: Annotated[str, typer.Option("--license", help="Apache-2.0, MIT, BSD-3-Clause or none.")] = "Apache-2.0",
    quiet: Quiet = False,
) -> None:
    """Write a plugin package that installs and whose test passes, to start from."""
    from seqpipe.commands.scaffold import new

    folder = new(name, kind, output, license, use)
    console = _console(quiet, False)
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        console.say(f"wrote {path}")
    console.say(f"\nnext: pip install -e {folder} && pytest {folder}")


@plugins_app.command("check")
def plugins_check(
    package: Annotated[str, typer.Argument(help="An installed distribution, such as acme-conv.")],
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="OPTION=VALUE", help="An option of the components that have it; repeatable."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run the conformance kit on every component of an installed package."""
    from seqpipe.testing import check_package, table

    reports = check_package(package, _decode_options(sets or [], {}, {}, "--set"))
    if as_json:
        _print_json([asdict(report) for report in reports], True)
    else:
        typer.echo(table(reports))
    if any(finding.state == "failed" for report in reports for finding in report.findings):
        raise typer.Exit(5)


@app.command()
def schema(
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A file; standard output by default.")] = None,
) -> None:
    """Print the JSON Schema of pipelines, with the components of every installed plugin, for editors."""
    from seqpipe.config.json_schema import schema as made
    from seqpipe.files import write

    text = json.dumps(made(tell=Console().say), ensure_ascii=False, indent=1) + "\n"
    if output:
        write(output, text)
    else:
        typer.echo(text, nl=False)


@app.command()
def doctor(
    require: Annotated[
        str | None,
        typer.Option("--require", metavar="cuda", help="An error (exit 7) unless a graph runs on CUDA here."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Look at this machine: onnxruntime and its providers, CUDA, telemetry, wheels in conflict, threads."""
    from seqpipe.commands.doctor import examine

    if require not in (None, "cuda"):
        raise UsageError(f"--require {require}: must be cuda")
    findings = examine(require is not None)
    if as_json:
        _print_json([finding.__dict__ for finding in findings], True)
    else:
        for finding in findings:
            typer.echo(f"{finding.state:<5} {finding.what}: {finding.detail}")
    if any(finding.state == "error" for finding in findings):
        raise typer.Exit(7)


def main() -> None:
    """The `seqpipe` command."""
    # Imports and traces make millions of objects that live on. To look for cycles among them at every 700th new one, as
    # Python does, is a fifth of the time of `seqpipe check`.
    gc.set_threshold(50_000, 20, 50)
    debug = "--debug" in sys.argv
    before = signal.signal(signal.SIGTERM, _end)
    try:
        app(args=[*(["--debug"] if debug else []), *(a for a in sys.argv[1:] if a != "--debug")], standalone_mode=True)
    except SeqpipeError as error:
        if debug:
            raise
        _complain(error)
        sys.exit(error.exit_code)
    except _TerminatedError as end:
        with contextlib.suppress(OSError):
            sys.stderr.flush()
        os._exit(end.number)  # Python would wait for threads, one of which may have been starting just then
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)
    except (OSError, MemoryError) as error:
        if debug:
            raise
        sys.stderr.write(f"{_of_the_machine(error)}\n")
        sys.exit(7)
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
        _drop_unwritable_output()


class _TerminatedError(BaseException):
    """The process is to end with this code, once what was half written is removed."""

    def __init__(self, number: int):
        self.number = number


def _end(number: int, frame: object) -> None:
    raise _TerminatedError(128 + number)


def _drop_unwritable_output() -> None:
    """What standard output did not take was told once; Python would try again at its end, and end with code 120."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _of_the_machine(error: OSError | MemoryError) -> str:
    """What failed, where, and the cure."""
    if isinstance(error, MemoryError):
        return "out of memory; give shorter texts, a smaller train.batch_tokens, or fewer --threads"
    cures = {
        errno.ENOSPC: "make room, or write to another place",
        errno.EDQUOT: "make room, or write to another place",
        errno.ENOTDIR: "a file stands where a folder has to be; move it, or give another path",
        errno.EEXIST: "a file stands where a folder has to be; move it, or give another path",
        errno.EISDIR: "it is a folder; name a file in it",
        errno.EACCES: "this user may not do that; give another path, or change its permissions",
        errno.EPERM: "this user may not do that; give another path, or change its permissions",
        errno.EROFS: "it cannot be written to; give another path",
    }
    cure = cures.get(error.errno or 0, "seqpipe --debug shows where it happened")
    return f"{error.filename or 'standard output or error'}: {error.strerror or error}; {cure}"


def _complain(error: SeqpipeError) -> None:
    text = str(error)
    if isinstance(error, ConfigError):
        count = len(error.problems)
        text += f"\n{count} problem{'s' if count > 1 else ''}; nothing was run"
    sys.stderr.write(printable(text) + "\n")  # messages quote files, which strangers may have written


def _cache(unused: bool) -> GraphCache | None:
    """Where traced graphs are kept between commands."""
    from seqpipe.export.graph_cache import default_cache

    return None if unused else default_cache()


def _console(quiet: bool, verbose: bool) -> Console:
    return Console(-1 if quiet else 1 if verbose else 0)


def _load(
    console: Console, file: Path, overrides: list[str] | None, sets: list[str] | None, seed: int | None
) -> Config:
    from seqpipe.config.loader import load

    chosen = [*(overrides or []), *(sets or []), *([f"train.seed={seed}"] if seed is not None else [])]
    config = load(file, chosen)
    for note in config.drift:
        console.say(note)
    return config


def _text(given: str) -> str:
    """The argument, or what standard input holds where it is a dash."""
    if given != "-":
        return given
    data = sys.stdin.buffer.read()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"standard input: byte {error.start + 1} is not UTF-8; convert it: iconv -f latin1 -t utf-8"
        ) from error


def _decode_options(
    given: list[str], short: dict[str, Any], known: Mapping[str, Mapping[str, Any]], flag: str = "--option"
) -> dict[str, Any]:
    """Values as a YAML has them; what an option takes as tokens is a text as it stands, unless quoted or a list."""
    from seqpipe.config.yaml import scalar

    options = {name: value for name, value in short.items() if value is not None}
    for item in given:
        name, equals, value = item.partition("=")
        if not equals:
            raise UsageError(f"{flag} {item}: must be KEY=VALUE")
        plain = known.get(name, {}).get("type") == "tokens" and value[:1] not in ("[", '"', "'")
        options[name] = value if plain else scalar(value, f"{flag} {item}")
    return options


def _print_json(result: Any, wanted: bool) -> None:
    if wanted:
        from seqpipe.files import finite

        typer.echo(json.dumps(finite(result), ensure_ascii=False, indent=1))
