"""Rules of the whole source, read from its syntax trees."""

import ast
import importlib
import inspect
import io
import pkgutil
import re
import tokenize
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

import seqpipe
import seqpipe_plugins
from seqpipe import errors, nn, plugin
from seqpipe.answers.registry import ANSWER_KINDS, MultiHead
from seqpipe.config.contract import decode_options, has_member, member
from seqpipe.config.plugins import Plugins
from seqpipe.features.kinds.registry import feature_kinds
from seqpipe.types import OPTION_TYPES

PACKAGE = Path(seqpipe.__file__).parent
PLUGINS = Path(seqpipe_plugins.__file__).parent
CONTRACT = PACKAGE / "config" / "contract.py"
COMPONENTS = {"component", "embedding", "encoder", "head", "module", "reader", "stage", "tokenizer"}
MOST_MODULES = 8  # directly in the package
CLAUSE = re.compile(r"(What|Whether|How|Where|That|Of|Why|Which)\b")


def member_lookups(path: Path) -> Iterator[str]:
    """Places at which a file looks for a member of a component by `getattr` or `hasattr`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) > 1):
            continue
        owner, name = node.args[:2]
        of_component = (isinstance(owner, ast.Attribute) and owner.attr == "cls") or (
            isinstance(owner, ast.Name) and owner.id in COMPONENTS
        )
        of_python = isinstance(name, ast.Constant) and str(name.value).startswith("__")
        if node.func.id in ("getattr", "hasattr") and of_component and not of_python:
            yield f"{path.relative_to(PACKAGE)}:{node.lineno}"


def test_members_of_components_are_read_in_one_place() -> None:
    files = [path for path in PACKAGE.rglob("*.py") if path != CONTRACT]
    assert [place for path in files for place in member_lookups(path)] == []
    assert len([*member_lookups(CONTRACT)]) == 2


def test_a_member_that_the_contract_does_not_list_cannot_be_looked_for() -> None:
    for look in (member, has_member):
        with pytest.raises(KeyError):
            look(object, "no_such_member")


def imported_names(source: str) -> Iterator[tuple[str, str]]:
    """The names that a source text imports from seqpipe or takes from its modules, each with the module."""
    modules: dict[str, str] = {}
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.ImportFrom(module=str(module), names=aliases) if module.partition(".")[0] == "seqpipe":
                yield from ((module, alias.name) for alias in aliases)
                modules |= {alias.asname or alias.name: f"{module}.{alias.name}" for alias in aliases}
            case ast.Import(names=aliases):
                yield from ((alias.name, "") for alias in aliases if alias.name.partition(".")[0] == "seqpipe")
            case ast.Attribute(value=ast.Name(id=name), attr=attribute) if modules.get(name, "") in BUILDING_BLOCKS:
                yield modules[name], attribute


BUILDING_BLOCKS = {f"seqpipe.nn.{subject}": importlib.import_module(f"seqpipe.nn.{subject}") for subject in nn.__all__}
DOORS = {"seqpipe.plugin": plugin, "seqpipe.nn": nn, **BUILDING_BLOCKS}


def not_offered(source: str) -> list[tuple[str, str]]:
    """Imports of a source text from seqpipe other than from the two doors for authors."""
    return [
        (module, name)
        for module, name in imported_names(source)
        if module not in DOORS or name not in DOORS[module].__all__
    ]


def test_components_import_only_what_the_doors_for_authors_offer() -> None:
    built_in, strangers = sorted(PLUGINS.rglob("*.py")), sorted((PACKAGE.parent / "tests/strangers").rglob("*.py"))
    assert len(built_in) > 50
    assert len(strangers) > 15
    sources = {path: path.read_text(encoding="utf-8") for path in (*built_in, *strangers)}
    assert {path: names for path, source in sources.items() if (names := not_offered(source))} == {}


@pytest.mark.parametrize(
    "line",
    [
        "import seqpipe.runtime.bundle",
        "from seqpipe.errors import DataError",
        "from seqpipe.plugin import SeqpipeError",
        "from seqpipe.nn import torch_internals",
        "from seqpipe.nn.layers import merged_batch",
        "from seqpipe.nn import layers as blocks\nblocks.merged_batch",
    ],
)
def test_an_import_past_the_doors_is_seen(line: str) -> None:
    assert len(not_offered(line)) == 1


def test_the_front_door_offers_what_users_need_and_nothing_else() -> None:
    caught = {name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, Exception)}
    assert len(caught) == 13
    assert sorted(seqpipe.__all__) == dir(seqpipe)
    others = {"Bundle", "Classifier", "Model", "Pipeline", "Run", "__version__", "compare", "list_runs", "load", "show"}
    assert {*seqpipe.__all__} == others | caught
    for name in seqpipe.__all__:
        assert getattr(seqpipe, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'list_run'; did you mean 'list_runs'"):
        _ = seqpipe.list_run  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="has no attribute 'BOS'"):
        _ = seqpipe.BOS  # type: ignore[attr-defined]


def test_few_modules_stand_directly_in_the_package() -> None:
    assert len([*PACKAGE.glob("*.py")]) <= MOST_MODULES


def test_every_room_and_module_says_what_it_is_for() -> None:
    for path in PACKAGE.rglob("*.py"):
        if "templates" not in path.parts:
            assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), path


@dataclass(frozen=True)
class ClosedSet:
    """Kinds that only one room knows apart: the room's module, the kinds' names and classes."""

    room: str
    names: frozenset[str]
    classes: frozenset[str]

    def uses(self, source: str) -> Iterator[tuple[int, str]]:
        """Lines of a source text that compare with a kind's name, look one up by it, or use a kind's class."""
        for node in ast.walk(ast.parse(source)):
            match node:
                case ast.Compare(left=left, comparators=others):
                    constants = [part for side in (left, *others) for part in _parts(side)]
                case ast.Dict(keys=keys):
                    constants = [key for key in keys if key is not None]
                case ast.MatchValue(value=value):
                    constants = [value]
                case ast.Call(func=ast.Attribute(attr="get"), args=[key, *_]):
                    constants = [key]
                case ast.ImportFrom(module=str(module), names=aliases) if module.startswith(
                    (self.room, "seqpipe.plugin")
                ):
                    yield from ((node.lineno, alias.name) for alias in aliases if alias.name in self.classes)
                    continue
                case _:
                    continue
            for constant in constants:
                if isinstance(constant, ast.Constant) and constant.value in self.names:
                    yield node.lineno, repr(constant.value)


def _parts(side: ast.expr) -> list[ast.expr]:
    return side.elts if isinstance(side, ast.Tuple | ast.List | ast.Set) else [side]


def uses_outside(kinds: ClosedSet, other_meanings: Collection[str] = ()) -> list[str]:
    """Every use of a closed set's kinds outside its room, as `path:line use`.

    `other_meanings`, as `path use`: a name there is not that of a kind.
    """
    room = PACKAGE.joinpath(*kinds.room.split(".")[1:])
    uses = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE)
        if not path.is_relative_to(room) and str(name) != "plugin.py":  # which offers the classes to authors
            found = kinds.uses(path.read_text(encoding="utf-8"))
            uses += [f"{name}:{line} {use}" for line, use in found if f"{name} {use}" not in other_meanings]
    return uses


FEATURE_KINDS = ClosedSet(
    "seqpipe.features", frozenset(feature_kinds()), frozenset(cls.__name__ for cls in feature_kinds().values())
)


def test_nothing_outside_features_tells_feature_kinds_apart() -> None:
    over_sentences = ("config/checks.py 'sentences'", "explain/views.py 'sentences'")  # of attention
    option = ("nn/recurrent.py Column", "nn/recurrent.py 'column'")  # which encoders share, and its feature
    container = "commands/deploy.py 'image'"
    assert uses_outside(FEATURE_KINDS, (*over_sentences, *option, container)) == []


@pytest.mark.parametrize(
    "line",
    [
        "from seqpipe.features.kinds.text import Chars",
        "from seqpipe.plugin import Chars",
        "if feature.kind == 'chars': pass",
        "if 'chars' != kind: pass",
        "found = kind in ('ids', 'chars')",
        "found = 'chars' in kinds",
        "shapes = {'chars': '(B, T, C)'}",
        "shape = shapes.get('chars')",
        "match kind:\n    case 'chars': pass",
    ],
)
def test_every_form_of_a_switch_over_kinds_is_seen(line: str) -> None:
    assert len([*FEATURE_KINDS.uses(line)]) == 1


ANSWER_CLASSES = {cls.__name__ for cls in (*ANSWER_KINDS.values(), MultiHead)}
ANSWER_NAMES = {*ANSWER_KINDS, MultiHead.kind}
ABOUT_KINDS = re.compile(r"\.kind\b|\b(answer_kind|kinds?|answer)\b(?!\[)")  # what such a comparison is written with


def answer_kind_switches(source: str) -> Iterator[tuple[int, str]]:
    """Lines of a source text that tell answer kinds apart: by `isinstance`, by a kind's name, in a table of names."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, classes]):
                names = {part.id for part in ast.walk(classes) if isinstance(part, ast.Name)}
                if names & ANSWER_CLASSES:
                    yield node.lineno, ast.unparse(node)
            case ast.Compare(left=left, comparators=others):
                parts = [part for side in (left, *others) for part in _parts(side)]
                names = {part.value for part in parts if isinstance(part, ast.Constant)} & ANSWER_NAMES
                code = " ".join(ast.unparse(part) for part in parts if not isinstance(part, ast.Constant))
                if names and ABOUT_KINDS.search(code):
                    yield node.lineno, ast.unparse(node)
            case ast.Dict(keys=keys):
                names = {key.value for key in keys if isinstance(key, ast.Constant)}
                if len(names) > 2 and names <= ANSWER_NAMES:
                    yield node.lineno, ", ".join(map(str, sorted(names)))
            case ast.MatchValue(value=ast.Constant(value=str(name))) if name in ANSWER_NAMES:
                yield node.lineno, name


def test_nothing_outside_answers_tells_answer_kinds_apart() -> None:
    switches = []
    for path in sorted(PACKAGE.rglob("*.py")):
        if not path.is_relative_to(PACKAGE / "answers"):
            found = answer_kind_switches(path.read_text(encoding="utf-8"))
            switches += [f"{path.relative_to(PACKAGE)}:{line} {code}" for line, code in found]
    assert switches == []


@pytest.mark.parametrize(
    "line",
    [
        "if isinstance(kind, Text): pass",
        "if issubclass(cls, Tags | Spans): pass",
        "if kind.kind == 'spans': pass",
        "if 'fill-mask' != answer_kind(head): pass",
        "tagging = manifest.answer in ('tags', 'spans')",
        "makers = {'label': a, 'labels': b, 'text': c}",
        "match answer:\n    case 'structured': pass",
    ],
)
def test_every_form_of_a_switch_over_answer_kinds_is_seen(line: str) -> None:
    assert len([*answer_kind_switches(line)]) == 1


LANGUAGE_MODELS = re.compile(r"\b(is_language_model\w*|corpus_settings)\b")


def test_only_training_and_the_check_of_a_pipeline_ask_whether_a_head_is_a_language_model() -> None:
    files = [path for path in PACKAGE.rglob("*.py") if LANGUAGE_MODELS.search(path.read_text(encoding="utf-8"))]
    rooms = {path.relative_to(PACKAGE).parts[0] for path in files}
    assert rooms <= {"config", "training", "testing"}  # the kit chooses a causal toy encoder for such a head


def test_options_of_heads_are_read_by_that_head_alone() -> None:
    named = re.compile(r"(head|component|stage)(\[[^]]*\])?\.options(\.get\(|\[)[\"']")
    places = [
        f"{path.relative_to(PACKAGE)}: {match.group()}"
        for path in PACKAGE.rglob("*.py")
        for match in named.finditer(path.read_text(encoding="utf-8"))
    ]
    assert places == []


HEADS = [offer.load() for offer in Plugins().offers if (offer.kind, offer.distribution) == ("head", "seqpipe-nlp")]
DECODE_OPTIONS = {name for head in HEADS for name in decode_options(head)}
# Other meanings of these names, and the versions of bundles and protocols that have them.
NAMED_ELSEWHERE = {
    "k": {"init/yaml.py"},
    "longest": {"features/document.py", "features/kinds/text.py", "runs/convert.py"}
    | {"training/artifacts.py", "training/datasets.py"},
    "max_length": {"config/members.py", "config/signature.py", "runs/convert.py", "training/network.py"},
    "min_length": {"config/signature.py"},
    "prefix": {"init/tags.py"},
    "stop": {"batch/files.py", "batch/job.py", "batch/shards.py", "commands/predict.py", "runtime/manifest.py"}
    | {"runtime/opened.py", "runtime/predictor.py", "runtime/streams.py", "serve/openapi.py", "serve/v1.py"},
    "threshold": {"runs/self_training.py"},
}
OF_DECODE_OPTIONS = {"runtime/decode_options.py", "serve/openai.py", "types.py"}


def named_options(source: str) -> set[str]:
    """The decode options of built-in heads that a source text names."""
    return {node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)} & DECODE_OPTIONS


def test_one_file_and_the_protocol_of_openai_name_decode_options_of_heads() -> None:
    assert named_options('n = options.get("n_best", 1) != other["beams"]') == {"n_best", "beams"}
    named: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        place = path.relative_to(PACKAGE).as_posix()
        if place not in OF_DECODE_OPTIONS and path.relative_to(PACKAGE).parts[0] not in ("answers", "nn"):  # of heads
            for name in named_options(path.read_text(encoding="utf-8")):
                named.setdefault(name, set()).add(place)
    found = {name: places for name, places in named.items() if places - NAMED_ELSEWHERE.get(name, set())}
    assert found == {}


ABOUT_TYPES = re.compile(r"\btypes?\b|\boption")  # what such a comparison is written with


def option_type_switches(source: str) -> Iterator[str]:
    """Code that tells types of decode options apart: a comparison with a name, a table of names, or a `case`."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Compare(left=left, comparators=others):
                parts = [part for side in (left, *others) for part in _parts(side)]
                names = [part.value for part in parts if isinstance(part, ast.Constant) and part.value in OPTION_TYPES]
                if names and ABOUT_TYPES.search(ast.unparse(node)):
                    yield ast.unparse(node)
            case ast.Dict(keys=parts) | ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
                constants = [part.value for part in parts if isinstance(part, ast.Constant)]
                if len(constants) > 1 and all(name in OPTION_TYPES for name in constants):
                    yield ast.unparse(node)
            case ast.MatchValue(value=ast.Constant(value=str(name))) if name in OPTION_TYPES:
                yield name
            case ast.Subscript(value=ast.Name(id="OPTION_TYPES"), slice=ast.Constant()):
                yield ast.unparse(node)


def test_one_table_tells_types_of_decode_options_apart() -> None:
    switches = [
        f"{path.relative_to(PACKAGE).as_posix()}: {code}"
        for folder in (PACKAGE, PLUGINS)
        for path in folder.rglob("*.py")
        if path != PACKAGE / "types.py"
        for code in option_type_switches(path.read_text(encoding="utf-8"))
    ]
    assert switches == ["runtime/manifest.py: manifest.options['stop']['type'] == 'tokens'"]  # of bundles of version 2
    tensors = [name for name, option_type in OPTION_TYPES.items() if option_type.is_input and not option_type.accepts]
    for path in (PACKAGE / "serve" / "page").glob("*.js"):
        assert not re.search(f"[\"'`]({'|'.join(tensors)})[\"'`]", path.read_text(encoding="utf-8")), path


@pytest.mark.parametrize(
    "line",
    [
        "if option['type'] == 'trie': pass",
        "is_text = known.get(name, {}).get('type') in ('tokens', 'texts')",
        "if option.type != 'size': pass",
        "axes = {'size': 1, 'uniform': 3}",
        "for kind in ('texts', 'automaton'): pass",
        "match option['type']:\n    case 'ranking': pass",
        "if of is OPTION_TYPES['trie']: pass",
    ],
)
def test_every_form_of_a_switch_over_option_types_is_seen(line: str) -> None:
    assert [*option_type_switches(line)] != []


def test_benchmarks_import_only_what_there_is() -> None:
    missing = []
    for path in sorted((PACKAGE.parent / "benchmarks").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "seqpipe":
                module = importlib.import_module(str(node.module))
                names = [alias.name for alias in node.names if not hasattr(module, alias.name)]
                modules = {found.name for found in pkgutil.iter_modules(getattr(module, "__path__", []))}
                missing += [f"{path.name}:{node.lineno}: {name}" for name in names if name not in modules]
    assert missing == []


# Python files of both packages, and lines of code in all languages: raised only by the commit of an issue, within its
# budget.
FILES, CODE_LINES = 317, 47_200
LANGUAGES = {".py", ".js", ".mjs", ".ts", ".css", ".jinja", ".html", ".cpp", ".h", ".sh"}
NOT_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
MOST_IN_A_FOLDER = 20


@dataclass(frozen=True)
class Ratios:
    """Shares in percent: functions that one place alone names, private or of at most 8 lines, and lines of imports."""

    private: float
    short: float
    imports: float


LIMITS = {PACKAGE: Ratios(private=7.8, short=6, imports=7.5), PLUGINS: Ratios(private=9, short=7, imports=7.5)}


def ratios(sources: Collection[str]) -> Ratios:
    """The ratios of source texts. Dunder methods, decorated functions and names defined twice or more do not count."""
    trees = [ast.parse(source) for source in sources]
    functions: dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]] = {}
    uses: Counter[str] = Counter()
    imports = 0
    for node in (node for tree in trees for node in ast.walk(tree)):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                functions.setdefault(node.name, []).append(node)
            case ast.Name(id=name, ctx=ast.Load()) | ast.Attribute(attr=name):
                uses[name] += 1
            case ast.Import() | ast.ImportFrom():
                imports += (node.end_lineno or 0) - node.lineno + 1
    once = [
        nodes[0]
        for name, nodes in functions.items()
        if len(nodes) == 1 and not nodes[0].decorator_list and uses[name] == 1 and not name.startswith("__")
    ]
    count = sum(map(len, functions.values()))
    return Ratios(
        100 * sum(node.name.startswith("_") for node in once) / count,
        100 * sum((node.end_lineno or 0) - node.lineno < 8 for node in once) / count,
        100 * imports / sum(source.count("\n") for source in sources),
    )


@pytest.mark.parametrize("folder", LIMITS, ids=lambda folder: folder.name)
def test_modules_are_subjects_and_functions_earn_their_names(folder: Path) -> None:
    measured = ratios([path.read_text(encoding="utf-8") for path in folder.rglob("*.py")])
    limits = LIMITS[folder]
    exceeded = [name for name in ("private", "short", "imports") if getattr(measured, name) > getattr(limits, name)]
    assert exceeded == [], f"{measured}, at most {limits}"


def test_the_ratios_are_those_of_a_source_counted_by_hand() -> None:
    source = (
        "import os\ndef _once(): return os.sep\ndef twice(): return _once()\n"
        "class A:\n    def __init__(self): twice()\n    def long(self):\n" + 8 * "        twice()\n" + "A().long()\n"
    )
    assert ratios([source]) == Ratios(private=25, short=25, imports=100 / 15)


def code_lines(source: str, suffix: str) -> int:
    """The lines with code: none that is blank, a comment or, in Python, a docstring."""
    if suffix != ".py":
        lines = [line.strip() for line in source.splitlines()]
        return sum(bool(line) and not line.startswith(("//", "/*", "*", "#", "<!--")) for line in lines)
    numbers: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NOT_CODE:
            numbers.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            numbers.difference_update(range(node.lineno, (node.end_lineno or 0) + 1))
    return len(numbers)


def test_the_lines_of_code_are_those_of_a_source_counted_by_hand() -> None:
    assert (
        code_lines('"""Say.\n\nMore.\n"""\n\n# why\ndef f():\n    """Do."""\n    return (\n\n        1\n    )\n', ".py")
        == 4
    )
    assert code_lines("// why\n\nlet a = 1;\n/* that */\n  * so\n}\n", ".js") == 2


def test_files_and_lines_of_code_stay_within_their_baseline() -> None:
    files = [path for folder in (PACKAGE, PLUGINS) for path in folder.rglob("*.py")]
    assert len(files) <= FILES
    sources = [path for folder in (PACKAGE, PLUGINS) for path in folder.rglob("*") if path.suffix in LANGUAGES]
    assert sum(code_lines(path.read_text(encoding="utf-8"), path.suffix) for path in sources) <= CODE_LINES
    folders = Counter(path.parent for path in files)
    assert {str(folder): count for folder, count in folders.items() if count > MOST_IN_A_FOLDER} == {}


PRIVATE_TORCH = re.compile(
    r"\b(torch(\.\w+)*|onnxscript(\.\w+)*)(\._[a-z]\w*| import _\w+)|torch\.fx\.experimental|torch\._C"
)


def test_one_file_owns_the_private_parts_of_torch() -> None:
    files = [path for folder in (PACKAGE, PLUGINS) for path in folder.rglob("*.py")]
    sources = {path: re.sub("`[^`\n]*`", "", path.read_text(encoding="utf-8")) for path in files}
    users = {path.relative_to(PACKAGE.parent).as_posix() for path in files if PRIVATE_TORCH.search(sources[path])}
    assert users == {"seqpipe/nn/torch_internals.py"}


DOCUMENTED = {"_asdict", "_exit", "_getframe", "_replace"}  # of named tuples, os and sys


def private_attributes(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """The attributes with a leading underscore that no class of these sources has, by the name of the source."""
    attributes: dict[str, set[str]] = {name: set() for name in sources}
    known = set(DOCUMENTED)
    for name, source in sources.items():
        for node in ast.walk(ast.parse(source)):
            match node:
                case ast.FunctionDef(name=member) | ast.AsyncFunctionDef(name=member):
                    known.add(member)
                case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=member, ctx=ast.Store()):
                    known.add(member)
                case ast.Name(id=member, ctx=ast.Store()):  # of a class
                    known.add(member)
                case ast.Attribute(value=ast.Name(id="aten")):  # an operator
                    pass
                case ast.Attribute(attr=member) if re.match("_[^_]", member):
                    attributes[name].add(member)
    return {name: members - known for name, members in attributes.items() if members - known}


def test_private_attributes_of_other_packages_are_in_that_file_too() -> None:
    source = "class A:\n    _y = 1\n    def _f(self): self._x = 1\n"
    source += "a._x, a._y, a._f, a._z, a.b._w._asdict(), a.__doc__\na._v = 1"
    assert private_attributes({"a": source, "b": "a._x"}) == {"a": {"_z", "_w", "_v"}}
    files = [path for folder in (PACKAGE, PLUGINS) for path in folder.rglob("*.py")]
    sources = {path.relative_to(PACKAGE.parent).as_posix(): path.read_text(encoding="utf-8") for path in files}
    del sources["seqpipe/nn/torch_internals.py"]
    sacrebleu = {"_extract_corpus_statistics", "_compute_score_from_stats"}
    assert private_attributes(sources) == {"seqpipe/answers/metrics/text.py": sacrebleu}
    assert [name for name in sources if "found_inf" in sources[name]] == ["seqpipe/training/optim.py"]


def clauses(source: str) -> list[str]:
    """The docstrings of a source text that open with a clause, of which no reader knows yet what it is about."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, documented)]
    return [text for text in map(ast.get_docstring, nodes) if text and CLAUSE.match(text)]


def test_docstrings_say_what_something_is_or_does() -> None:
    assert clauses('def f():\n    """What it is."""') == ["What it is."]
    files = [path for root in (PACKAGE, PLUGINS) for path in root.rglob("*.py")]
    assert [text for path in files for text in clauses(path.read_text(encoding="utf-8"))] == []
