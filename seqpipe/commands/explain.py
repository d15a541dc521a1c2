"""`seqpipe explain`: the words that matter for an answer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from seqpipe.commands.options import AnswerOptions, BundlePath, DecodeOptions, parse_decode_options, with_options
from seqpipe.errors import DataError, UsageError


@with_options(AnswerOptions)
def explain(
    result: AnswerOptions,
    bundle: BundlePath,
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TEXT]...", help="Texts; - reads one from standard input. Of pictures and sounds their files."
        ),
    ] = None,
    file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A file of texts, one per line, or of JSON lines.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A data file: print the words that matter most for each label.")
    ] = None,
    top: Annotated[int, typer.Option(metavar="N", min=1, help="With --data: words of each label.")] = 10,
    method: Annotated[
        Literal["attention", "occlusion"] | None,
        typer.Option(help="Default: attention if the bundle has it, else occlusion."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Output file with the extension .html or .json.")
    ] = None,
    options: DecodeOptions = None,
) -> None:
    """Show which words matter for the answer to a text, as a heat map or a table. Needs no PyTorch."""
    from seqpipe import load
    from seqpipe.batch.files import input_format, one_record, read_inputs
    from seqpipe.console import text_table
    from seqpipe.explain.html import check_ending, draw
    from seqpipe.features.vocabulary import replace_surrogates
    from seqpipe.files import encoding_fix, json_bytes
    from seqpipe.runtime.predictor import raise_error

    inputs = [*(texts or [])]
    if sum([bool(inputs), file is not None, data is not None]) != 1:
        raise UsageError("give texts, or one of --file and --data")
    if output:
        check_ending(output)
        if len(inputs) != 1:
            raise UsageError(f"-o {output}: a page shows one text; print several with --json")
    model = load(bundle, result.device, threads=1)
    decode_options = parse_decode_options(options or [], {}, model.predictor.options)
    if data:
        rows = model.explain_data(data, top=top, **decode_options)
        if not result.as_json:
            cells = [["label", "word", "importance", "count"], *([*row.values()] for row in rows)]
            typer.echo(replace_surrogates("\n".join(text_table(cells))))
        result.print(rows)
        return
    if "-" in inputs:
        content = sys.stdin.buffer.read()
        try:
            inputs[inputs.index("-")] = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            fix = encoding_fix(content)
            raise DataError(f"standard input: byte {error.start + 1} is not UTF-8; {fix}") from error
    records = (one_record(model, text) for text in inputs)
    if file:
        lines = read_inputs(model, file, input_format(model, "auto", file))
        records = (raise_error(record) for record, _ in lines)
    for number, record in enumerate(records):
        explanation = model.explain(record, method=method, **decode_options)
        if output:
            draw(explanation, output, {"Model": model.manifest.name, "SHA-256": model.sha256[:12]})
            result.console.say(f"wrote {output}")
        elif not result.as_json:
            typer.echo("\n" * bool(number) + replace_surrogates(explanation.table()))
        if result.as_json and (file or len(inputs) > 1):
            typer.echo(json_bytes(explanation.data()))
        else:
            result.print(explanation.data())
