"""`seqpipe deploy`: write the files that Triton, Docker, KServe or systemd needs to run a bundle.

For every target, the bundle and its name are checked, and the folder is written atomically.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from string import Template
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqpipe.commands.help import Command
from seqpipe.commands.options import BundlePath, Quiet, make_console
from seqpipe.errors import BundleError, UsageError
from seqpipe.version import VERSION

if TYPE_CHECKING:
    from seqpipe.runtime.bundle import BundleContent

app = typer.Typer(help="Write the files that another tool needs to run a bundle.", rich_markup_mode=None)

DISTRIBUTION = "seqpipe-nlp"
DOCKER_IMAGE = "python:3.12-slim"
TRITON_IMAGE = "nvcr.io/nvidia/tritonserver:25.08-py3"
ANSWER_TENSOR = "answer_json"  # as `seqpipe serve` calls it in the Open Inference Protocol
BATCH_AXIS = "batch_size"  # the first axis of every input and output of a graph that seqpipe exported
TENSOR_TYPES = {"tensor(bool)": "TYPE_BOOL", "tensor(int64)": "TYPE_INT64", "tensor(float)": "TYPE_FP32"}
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_HOST = r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]+)?"
_IMAGE_NAME = re.compile(rf"(?:{_HOST}/)?{_PART}(?:/{_PART})*(?::[\w][\w.-]{{0,127}})?(?:@sha256:[0-9a-f]{{64}})?")
_UNIT_PATH = re.compile(r"(/[A-Za-z0-9_.+@-]+)+")
_HIDDEN_FOLDERS = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")  # by ProtectHome and PrivateTmp
_NAME, _IN_WORDS = r"[A-Za-z0-9][A-Za-z0-9_.-]*", "letters, digits, '.', '_' and '-'"
_NAMES = {  # of each target: a pattern, the maximum number of characters, and the pattern in words
    "Triton": (_NAME, 90, _IN_WORDS),
    "Docker": (_PART, 100, "lower-case letters and digits, with single '.', '_' or '-' between them"),
    # KServe appends -predictor and the number of a revision.
    "KServe": (r"[a-z]([a-z0-9-]*[a-z0-9])?", 40, "lower-case letters, digits and '-', a letter first and no '-' last"),
    "systemd": (_NAME, 100, _IN_WORDS),
}


Output = Annotated[Path, typer.Option("--output", "-o", help="Folder to write; it must be new or empty.")]
Name = Annotated[str | None, typer.Option("--name", help="Name to serve the bundle as; default: the bundle's own.")]
OnCuda = Annotated[bool, typer.Option("--cuda", help="Run on an NVIDIA GPU instead of the CPU.")]
Port = Annotated[int, typer.Option("--port", "-p", min=1, max=65535, help="Port on which the server listens.")]


@app.command(cls=Command)
def triton(bundle: BundlePath, output: Output, name: Name = None, cuda: OnCuda = False, quiet: Quiet = False) -> None:
    """Write a model repository for NVIDIA Triton: NAME reads texts, NAME_graph reads the tensors of the graph."""
    from seqpipe.api.model import Model
    from seqpipe.features.sources import read_fields

    content, name = checked_bundle("Triton", bundle, output, name, cuda)
    model = Model(content, "cpu", threads=1)
    files: dict[str, bytes | str] = {
        f"{name}/config.pbtxt": text_config(name, read_fields(model.predictor.featurizer), cuda),
        f"{name}/1/model.py": template("model.py", distribution=requirement(cuda), answer=ANSWER_TENSOR),
        **files_under(content, f"{name}/1/bundle"),
        f"{name}_graph/config.pbtxt": graph_config(f"{name}_graph", model.session, cuda),
        f"{name}_graph/1/model.onnx": content.files["model.onnx"],
    }
    gpus = "--gpus all " if cuda else ""
    ports = "-p 8000:8000 -p 8001:8001 -p 8002:8002"
    inside = f"pip install '{requirement(cuda)}' && tritonserver --model-repository /models"
    mount = f"{_quote(output.resolve())}:/models:ro"
    write_files(output, files, quiet, f'docker run --rm {gpus}{ports} -v {mount} {TRITON_IMAGE} sh -c "{inside}"')


@app.command(cls=Command)
def docker(
    bundle: BundlePath, output: Output, name: Name = None, cuda: OnCuda = False, port: Port = 8000, quiet: Quiet = False
) -> None:
    """Write a Dockerfile, and the bundle beside it: an image that runs `seqpipe serve`."""
    content, name = checked_bundle("Docker", bundle, output, name, cuda)
    tag = f"seqpipe-{name}"
    gpus = "--gpus all " if cuda else ""
    write_files(
        output,
        image_files(content, name, cuda, port),
        quiet,
        f"docker build -t {tag} {_quote(output)}",
        f"docker run --rm {gpus}--read-only --tmpfs /tmp -p {port}:{port} {tag}",
    )


@app.command(cls=Command)
def kserve(
    bundle: BundlePath,
    output: Output,
    image: Annotated[str, typer.Option("--image", help="Name of the image, such as registry.example.com/ner:1.")],
    name: Name = None,
    cuda: OnCuda = False,
    port: Port = 8000,
    quiet: Quiet = False,
) -> None:
    """Write an InferenceService for KServe, the same for Kubernetes alone, and the image that they run."""
    if not _IMAGE_NAME.fullmatch(image):
        raise UsageError(f"--image {image}: is not an image name; use one such as registry.example.com/ner:1")
    content, name = checked_bundle("KServe", bundle, output, name, cuda)
    # The runtime needs 768 MiB, and the weights may be in memory four times while the bundle is opened.
    mib = 768 + 4 * sum(map(len, content.files.values())) / (1 << 20)
    memory, gpu = f"{256 * -(-int(mib) // 256)}Mi", ', nvidia.com/gpu: "1"' if cuda else ""
    values = {"name": name, "image": image, "port": port, "memory": memory, "gpu": gpu}
    files = {f"image/{file}": data for file, data in image_files(content, name, cuda, port).items()}
    for file in ("inference-service.yaml", "deployment.yaml"):
        files[file] = template(file, **values)
    write_files(
        output,
        files,
        quiet,
        f"docker build -t {image} {_quote(output / 'image')} && docker push {image}",
        f"kubectl apply -f {_quote(output / 'inference-service.yaml')}",
    )


@app.command(cls=Command)
def systemd(
    bundle: BundlePath,
    output: Output,
    name: Name = None,
    command: Annotated[
        str, typer.Option("--command", metavar="PATH", help="The command seqpipe on the machine that serves.")
    ] = "/opt/seqpipe/bin/seqpipe",
    place: Annotated[
        str | None,
        typer.Option("--place", metavar="FOLDER", help="The bundle on that machine; default: /srv/seqpipe/NAME."),
    ] = None,
    cuda: OnCuda = False,
    port: Port = 8000,
    quiet: Quiet = False,
) -> None:
    """Write a unit for systemd, and the bundle beside it."""
    content, name = checked_bundle("systemd", bundle, output, name, cuda)
    program, folder = PurePosixPath(command), PurePosixPath(place or f"/srv/seqpipe/{name}")
    for flag, path in (("--command", program), ("--place", folder)):
        if not _UNIT_PATH.fullmatch(str(path)) or ".." in path.parts:
            raise UsageError(f"{flag} {path}: must be an absolute path of letters, digits and . _ + @ -")
        hidden = next((parent for parent in _HIDDEN_FOLDERS if path.is_relative_to(parent)), None)
        if hidden:
            raise UsageError(f"{flag} {path}: the service cannot read {hidden}; choose a folder such as /opt or /srv")
    service = f"seqpipe-{name}.service"
    unit = template(
        "unit.service",
        name=name,
        command=program,
        place=folder,
        port=port,
        device="cuda" if cuda else "cpu",
        devices="" if cuda else "PrivateDevices=yes\n",
    )
    write_files(
        output,
        {service: unit, **files_under(content, "bundle")},
        quiet,
        f"sudo mkdir -p {folder.parent} && sudo cp -rT {_quote(output / 'bundle')} {folder}",
        f"sudo cp {_quote(output / service)} /etc/systemd/system/",
        f"sudo systemctl daemon-reload && sudo systemctl enable --now {service}",
    )


def checked_bundle(target: str, path: Path, output: Path, name: str | None, cuda: bool) -> tuple[BundleContent, str]:
    """Return a bundle that answers its golden examples on this machine, and its name; `output` is new or empty.

    With `cuda` they are answered on a GPU if this machine has one: it need not be the machine that serves.

    Raises:
        UsageError: if the output exists already, CUDA cannot run the bundle, or the target does not accept the name.
        BundleError: if the bundle is damaged, or answers differently.
    """
    from seqpipe.runtime import bundle
    from seqpipe.runtime.opened import verify_bundle
    from seqpipe.runtime.session import INT8
    from seqpipe.serve.settings import check_name

    if output.is_dir():
        if any(output.iterdir()):
            raise UsageError(f"{output} exists and is not empty; name another folder with --output, or remove it")
    elif output.exists() or output.is_symlink():
        raise UsageError(f"{output} exists and is not a folder; name another folder with --output")
    report = verify_bundle(path, "auto" if cuda else "cpu", threads=1)
    content = bundle.read(path, report["sha256"])
    if cuda and content.manifest.parity.get("precision") == "int8":
        raise UsageError(f"--cuda: {INT8}")
    name, (pattern, longest, words) = content.manifest.name if name is None else name, _NAMES[target]
    if not re.fullmatch(pattern, name) or len(name) > longest:
        rule = f"{words}, at most {longest} characters"
        raise UsageError(f"{target} does not accept the name {name!r}; set one with --name: {rule}")
    check_name(name)
    return content, name


def files_under(content: BundleContent, folder: str) -> dict[str, bytes]:
    """Return the files of a bundle by their paths below the folder of the target."""
    from seqpipe.runtime.bundle import MANIFEST

    files = {f"{folder}/{name}": data for name, data in content.files.items()}
    return {**files, f"{folder}/{MANIFEST}": (content.path / MANIFEST).read_bytes()}


def image_files(content: BundleContent, name: str, cuda: bool, port: int) -> dict[str, bytes | str]:
    """Return the files that `docker build` needs."""
    values = {
        "image": DOCKER_IMAGE,
        "requirement": requirement(cuda, "serve"),
        "name": name,
        "port": port,
        "device": "cuda" if cuda else "cpu",
        "gpu": template("gpu.Dockerfile") if cuda else "",
    }
    return {
        "Dockerfile": template("Dockerfile", **values),
        ".dockerignore": "*\n!bundle\n",
        **files_under(content, "bundle"),
    }


def write_files(output: Path, files: Mapping[str, bytes | str], quiet: bool, *next_steps: str) -> None:
    """Write the folder atomically, readable for every account whatever the umask; print the next command.

    The server runs under an account of its own, such as that of the image, which is not the account that wrote.
    """
    from seqpipe.files import writing_folder

    with writing_folder(output) as temporary:
        for name, data in files.items():
            path = temporary / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data if isinstance(data, bytes) else data.encode())
        for path in (temporary, *temporary.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
    make_console(quiet).say("\n".join([f"wrote {output}", "", "next:", *(f"  {line}" for line in next_steps)]))


def requirement(cuda: bool, *extras: str) -> str:
    """Return the requirement for pip: this version, with the onnxruntime of the device."""
    return f"{DISTRIBUTION}[{','.join(['gpu' if cuda else 'cpu', *extras])}]=={VERSION}"


def template(name: str, /, **values: object) -> str:
    """Return the text of a template with its values filled in."""
    from importlib import resources

    file = resources.files("seqpipe.commands") / "templates" / "deploy" / f"{name}.txt"
    return Template(file.read_text(encoding="utf-8")).substitute(values)


def _quote(path: Path) -> str:
    """Return a path quoted for a shell."""
    return shlex.quote(str(path))


def text_config(name: str, fields: Sequence[str], cuda: bool) -> str:
    """Return the config.pbtxt of the model that reads texts: one input for each field of a record."""
    from seqpipe.runtime.predictor import RUN_ROWS

    inputs = [_tensor(field, "TYPE_STRING", [1]) for field in fields]
    outputs = [_tensor(ANSWER_TENSOR, "TYPE_STRING", [1])]
    batching = "dynamic_batching { } # passes on waiting requests without a delay"
    # A batch is of texts, which the runtime divides among the cores.
    return _config(name, "python", 8 * RUN_ROWS, inputs, outputs, batching, cuda)


def graph_config(name: str, session: Any, cuda: bool) -> str:
    """Return the config.pbtxt of the graph, batched if the batch is the first axis of all its tensors.

    Raises:
        BundleError: if a tensor has an unsupported type.
    """
    from seqpipe.runtime.predictor import RUN_ROWS

    tensors = [*session.get_inputs(), *session.get_outputs()]
    is_batched = all(tensor.shape and tensor.shape[0] == BATCH_AXIS for tensor in tensors)
    inputs = [_graph_tensor(tensor, is_batched) for tensor in session.get_inputs()]
    outputs = [_graph_tensor(tensor, is_batched) for tensor in session.get_outputs()]
    optional = ", ".join(tensor.name for tensor in session.get_overridable_initializers())
    note = f"# These inputs stay at their defaults, as they have no batch: {optional}.\n" if optional else ""
    batching = "dynamic_batching { } # of requests with equal shapes, without a delay" if is_batched else ""
    config = _config(name, "onnxruntime", RUN_ROWS if is_batched else 0, inputs, outputs, batching, cuda)
    return note + config + (template("cuda.pbtxt") if cuda else "")


def _config(
    name: str, backend: str, rows: int, inputs: Sequence[str], outputs: Sequence[str], batching: str, cuda: bool
) -> str:
    lines = [f"name: {_text(name)}", f'backend: "{backend}"', f"max_batch_size: {rows}"]
    for key, items in (("input", inputs), ("output", outputs)):
        lines += [f"{key} [", ",\n".join(f"  {item}" for item in items), "]"]
    lines += [batching] if batching else []
    return "\n".join([*lines, f"instance_group [ {{ count: 1 kind: {'KIND_GPU' if cuda else 'KIND_CPU'} }} ]", ""])


def _graph_tensor(tensor: Any, is_batched: bool) -> str:
    if tensor.type not in TENSOR_TYPES:
        raise BundleError(f"model.onnx: {tensor.name} is a {tensor.type}, which no bundle has; export it again")
    shape = tensor.shape[1:] if is_batched else tensor.shape
    return _tensor(tensor.name, TENSOR_TYPES[tensor.type], [size if isinstance(size, int) else -1 for size in shape])


def _tensor(name: str, type: str, dims: Sequence[int]) -> str:
    """Return an input or output; Triton has no dims of length 0, but reshapes one number to them."""
    shape = f"dims: [ {', '.join(map(str, dims))} ]" if dims else "dims: [ 1 ] reshape { shape: [ ] }"
    return f"{{ name: {_text(name)} data_type: {type} {shape} }}"


def _text(text: str) -> str:
    """Return a string in the notation that protobuf's text format and JSON share."""
    return json.dumps(text, ensure_ascii=False)
