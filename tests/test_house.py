"""The rules of the house: abstract or final, small files, clean text, a README that runs."""

import ast
import collections
import enum
import importlib
import inspect
import pkgutil
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from types import FunctionType

import pytest
from mktestdocs import check_md_file, grab_code_blocks

import continua
from continua.cli.evaluate import Evaluate
from continua.cli.parsing import flag, values_of
from continua.cli.train import Train

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "continua"


# --- abstract or final


def house_classes() -> set[type]:
    """Every class that is defined in a module of the package."""
    names = [info.name for info in pkgutil.walk_packages(continua.__path__, "continua.")]
    modules = [continua, *(importlib.import_module(name) for name in names if not name.endswith("__main__"))]
    return {
        thing
        for module in modules
        for thing in vars(module).values()
        if isinstance(thing, type) and thing.__module__ == module.__name__
    }


def is_named_abstract(cls: type) -> bool:
    return cls.__name__.removeprefix("_").startswith("Abstract")


def is_free(cls: type) -> bool:
    """Families with rules of their own: named tuples, enumerations, protocols, exceptions."""
    named_tuple = issubclass(cls, tuple) and hasattr(cls, "_fields")
    return named_tuple or issubclass(cls, enum.Enum | BaseException) or getattr(cls, "_is_protocol", False)


def written_function(attribute: object) -> FunctionType | None:
    """The function behind a method, property or decorator, or nothing where no one wrote it."""
    if isinstance(attribute, property):
        attribute = attribute.fget
    elif isinstance(attribute, cached_property):
        attribute = attribute.func
    elif isinstance(attribute, staticmethod | classmethod):
        attribute = attribute.__func__
    function = inspect.unwrap(attribute) if callable(attribute) else None
    # What `dataclass` generates has a code object from "<string>", not from a file.
    if not isinstance(function, FunctionType) or function.__code__.co_filename == "<string>":
        return None
    return function


def naming_faults(classes: Iterable[type]) -> Iterator[str]:
    for cls in classes:
        if is_named_abstract(cls) and not inspect.isabstract(cls):
            yield f"{cls.__qualname__} is named abstract, but has no abstract method and can be instantiated"
        if not is_named_abstract(cls) and not is_free(cls) and inspect.isabstract(cls):
            missing = ", ".join(sorted(cls.__abstractmethods__))
            yield f"{cls.__qualname__} leaves {missing} abstract: write them, or name it Abstract..."


def subclass_faults(classes: set[type]) -> Iterator[str]:
    for cls in classes:
        for base in classes.intersection(cls.__bases__):
            if not is_named_abstract(base) and not is_free(base):
                yield f"{cls.__qualname__} subclasses {base.__qualname__}, which is final"


def override_faults(classes: set[type]) -> Iterator[str]:
    """Concrete methods written twice along one line of descent; constructors may be extended."""
    for cls in classes:
        bases = [base for base in cls.__mro__[1:] if base in classes and not is_free(base)]
        for name, attribute in vars(cls).items():
            if name in ("__init__", "__post_init__") or written_function(attribute) is None:
                continue
            for base in bases:
                inherited = vars(base).get(name)
                if written_function(inherited) is not None and not getattr(inherited, "__isabstractmethod__", False):
                    yield f"{cls.__qualname__}.{name} overrides the concrete {base.__qualname__}.{name}"


@pytest.mark.parametrize("faults", [naming_faults, subclass_faults, override_faults])
def test_every_class_is_abstract_or_final(faults):
    classes = house_classes()
    assert classes, "no class was found, so nothing was tested"
    assert sorted(faults(classes)) == []


def test_the_rule_of_abstract_or_final_has_teeth():
    class AbstractWithoutContract: ...

    class AbstractBase(ABC):
        @abstractmethod
        def asked(self): ...

        def given(self) -> int:
            return 1

        @property
        def told(self) -> int:
            return 1

        @classmethod
        def built(cls) -> int:
            return 1

    class Unfinished(AbstractBase): ...

    @dataclass(frozen=True)
    class Rewritten(AbstractBase):
        size: int = 1

        def asked(self): ...
        def given(self) -> int:
            return 2

        @property
        def told(self) -> int:
            return 2

        @classmethod
        def built(cls) -> int:
            return 2

    @dataclass(frozen=True)
    class Extended(Rewritten):
        width: int = 1

    class SomeError(RuntimeError): ...

    class DepthError(SomeError): ...

    classes = {
        AbstractWithoutContract,
        AbstractBase,
        Unfinished,
        Rewritten,
        Extended,
        SomeError,
        DepthError,
    }
    naming = sorted(naming_faults(classes))
    assert len(naming) == 2 and "AbstractWithoutContract" in naming[0] and "Unfinished" in naming[1]
    (subclass,) = subclass_faults(classes)
    assert "Extended subclasses" in subclass
    # Rewritten breaks it three times; Extended, whose only methods are generated, not once.
    overridden = sorted(fault.rsplit(".", 1)[1] for fault in override_faults(classes))
    assert overridden == ["built", "given", "told"]


# --- files and names


def test_no_file_is_too_long():
    lengths = {path: len(path.read_text().splitlines()) for path in PACKAGE.rglob("*.py")}
    assert lengths
    assert {path.name: length for path, length in lengths.items() if length > 600} == {}


def test_no_module_is_a_room_for_leftovers():
    refused = {"utils", "util", "misc", "common", "helpers"}
    assert [path for path in PACKAGE.rglob("*") if path.stem.strip("_") in refused] == []


# Verbs for what acts, nouns for what is: a function called `told` says neither what it does nor to whom.
IRREGULAR = re.compile(
    "told|kept|held|built|drawn|met|seen|heard|made|found|given|taken|chosen|written|known|shown|bound|said|sent|lost|"
    "left|grown|thrown|begun|done|gone|sought|taught|brought|caught|dealt|spent|hidden|forgotten|broken|frozen|torn|"
    "driven|sunk|swept|stood|led|fed|hung|struck|spun"
)
ENDS_LIKE_ONE = {"seed", "need", "feed", "speed", "embed", "exceed", "proceed", "succeed"}


def is_participle(name: str) -> bool:
    word = name.strip("_")
    regular = re.fullmatch(r"[a-z]{2,}ed", word) is not None
    return word not in ENDS_LIKE_ONE and (regular or IRREGULAR.fullmatch(word) is not None)


def definitions(kind: type | tuple[type, ...]) -> Iterator[tuple[str, str]]:
    """(place, name) of every function or class of the package."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, kind):
                yield f"{path.relative_to(PACKAGE)}:{node.lineno}", node.name


def test_no_function_is_a_bare_participle():
    assert [where for where, name in definitions((ast.FunctionDef, ast.AsyncFunctionDef)) if is_participle(name)] == []


@pytest.mark.parametrize("name", ["told", "_kept", "asked", "evaluated"])
def test_participles_are_seen(name):
    assert is_participle(name)


@pytest.mark.parametrize("name", ["seed", "fresh_seed", "held_out_rows", "build", "masses", "read"])
def test_other_names_are_let_through(name):
    assert not is_participle(name)


def test_no_class_name_is_defined_twice():
    places = collections.defaultdict(list)
    for where, name in definitions(ast.ClassDef):
        places[name].append(where)
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


# --- clean text

TEXT = {
    ".py",
    ".md",
    ".toml",
    ".txt",
    ".cff",
    ".yml",
    ".yaml",
    ".json",
    ".cfg",
    ".html",
    ".svg",
    ".css",
    ".js",
    ".sh",
}
TEXT_NAMES = {"Makefile", "LICENSE", "run", ".gitignore", "py.typed"}
LEFT_ALONE = {"runs", "bench-results", "build", "dist", "node_modules", "__pycache__"}
# Alternatives and escapes keep this file from matching its own patterns.
MACHINE = re.compile(
    r"(?<![\w.)\]}*-])/(?:work|root|opt|home|Users)(?:/|\b)"  # a folder of somebody's machine
    r"|\.\./shared"
    r"|pypi\.org|python[h]osted\.org|download\.pytorch\.org|index[-]url|find[-]links"  # a place to install from
    r"|https?://(?:\d+\.){3}\d+"
)


def text_files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            hidden = path.name.startswith(".") and path.name not in (".ci", ".github")
            if not hidden and path.name not in LEFT_ALONE and not (path / "pyvenv.cfg").exists():
                yield from text_files(path)
        elif path.suffix in TEXT or path.name in TEXT_NAMES:
            yield path


def test_no_text_names_a_machine_or_a_registry():
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match.group()}"
        for path in text_files(ROOT)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if (match := MACHINE.search(line))
    ]
    assert found == []


@pytest.mark.parametrize("parts", [("", "work", "main"), ("at ", "opt", "wheels"), ("'", "home", "someone")])
def test_machine_paths_are_seen(parts):
    assert MACHINE.search("/".join(parts))


@pytest.mark.parametrize("text", ["forward/work", "docs/home/index.md", "a / root", "https://semver.org"])
def test_other_text_is_let_through(text):
    assert MACHINE.search(text) is None


# --- what a reader meets first


@pytest.mark.parametrize(
    "page", sorted(str(p.relative_to(ROOT)) for p in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
)
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", text)
    missing = [target for target in targets if not ((ROOT / page).parent / target).exists()]
    assert not missing, f"{page} links to {missing}"


def test_readme_names_the_two_commands():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make demo" in readme and "make test" in readme


@pytest.mark.parametrize("page", ["README.md", "docs/how-to.md", "docs/index.md"])
def test_examples_run(page, tmp_path, monkeypatch, unchecked):
    readme = ROOT / page
    assert grab_code_blocks(readme.read_text(encoding="utf-8"), lang="python"), f"{page} has no python example"
    monkeypatch.chdir(tmp_path)  # what an example saves does not belong in the repository
    check_md_file(readme, memory=True)


PAGES = ("tasks", "results", "how-to", "mathematics", "choose", "scale")


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{name}.md" for name in PAGES)])
def test_options_of_training_exist(page):
    values = values_of(Train())
    known = {flag(name) for name in values} | {flag(each.name) for each in fields(Evaluate)} | {"--help"}
    known |= {flag(name).replace("--", "--no-", 1) for name, value in values.items() if isinstance(value, bool)}
    text = (ROOT / page).read_text(encoding="utf-8")
    if page == "README.md":  # it shows other commands too
        text = "\n".join(re.findall(r"continua train[^#`\n]*", text))
    assert sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", text)) - known) == []


def is_documented(name: str, thing: object) -> bool:
    # `dataclass` and `NamedTuple` write "Name(field, ...)" where nobody wrote anything.
    return bool(thing.__doc__) and not thing.__doc__.startswith(f"{name}(")


def test_public_names_are_documented():
    assert continua.__all__
    undocumented = [name for name in continua.__all__ if not is_documented(name, getattr(continua, name))]
    assert undocumented == []
