"""How a command is read: tyro parses the words, and whatever it refuses is told in one line.

A command is one frozen dataclass; its fields are options, or groups of them (frozen dataclasses again) that `--help`
shows under their names. Words on the command line, a TOML file and the options that a run has kept go the same way,
through tyro, and so are refused by the same sentences.
"""

import contextlib
import dataclasses
import difflib
import io
import math
import re
import shlex
import shutil
import textwrap
import tomllib
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NoReturn

import tyro
from tyro import _docstrings as tyro_docstrings
from tyro import _errors as tyro_errors
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from continua.core.errors import ArgumentError, reject

_SHELLS = ("bash", "zsh", "tcsh")
_LARGEST = 2**63
"""Whole numbers that torch can hold are smaller."""
_LONG = "\u2010-\u2015\u2212"
_LONG_DASH = re.compile(rf"[-{_LONG}]*[{_LONG}][-{_LONG}]*(?=[^\W\d])")
_HELP = ("-h", "--help")
_FLAT = (tyro.conf.OmitArgPrefixes,)
_OTHERWISE = {"file": "series", "run": "resume", "folder": "output", "batch": "batch_size", "steps": "depth_steps"}
"""Arguments of the library that have other names as options."""
_ELSEWHERE = {
    "--updates": ("epochs", "num-epochs", "num-train-epochs", "max-epochs", "max-steps", "max-iters", "iterations"),
    "--batch-size": ("per-device-train-batch-size", "bs"),
    "--width": ("d-model", "n-embd", "embed-dim", "hidden-size"),
    "--head-nodes": ("heads", "num-heads", "n-head"),
    "--depth-length": ("depth",),
    "--depth-steps": ("steps", "num-steps"),
    "--time-column": ("time", "time-col"),
    "--id-column": ("id", "id-col"),
    "--context-length": ("block-size", "seq-len", "sequence-length"),
    "--clip": ("grad-clip", "clip-grad", "max-grad-norm"),
    "--resume": ("continue", "resume-from-checkpoint"),
    "--output": ("out-dir", "save-dir"),
    "--weight-decay": ("wd",),
    "--stepper": ("method", "solver"),
    "--series": ("data", "csv", "input", "dataset", "data-file", "train-file"),
    "--num-return-sequences": ("samples", "num-samples"),
    "--max-new-tokens": ("max-length", "length"),
    "--temperature": ("temp",),
}
"""What other programs call an option, where the nearest spelling is another option or none."""
_INSTEAD = {
    **dict.fromkeys(
        ("num-layers", "n-layer", "n-layers", "layers"),
        (
            "--depth-modes",
            "N layers are N constant pieces, each a step of length 1, with plain vectors and counted heads: "
            "--field piecewise --depth-modes N --depth-steps N --depth-length N --axis-nodes 1 --head-modes 0 "
            "--refined 0. ",
        ),
    ),
    "steps": ("--updates", "--updates counts those of the optimiser, --depth-steps those of the solve along depth. "),
    "damping": (
        "--flow-damping",
        "--flow-damping is the gamma of -gamma x in the flow; that of K-FAC is an argument of continua.KFAC. ",
    ),
    "file": ("--series", "--series names the file of csv and uea, --text that of text. "),
}
"""What other programs say by one option and this one by several, where it has that which is named first."""
_BY_FILE = {".csv": "csv --series", ".ts": "uea --series", ".txt": "text --text"}
"""The task and the option that read a file, by how its name ends."""
_NEAR = 0.65
"""How alike two words are, by `difflib`, of which one may be meant: below, `restart` would be taken for `preset`."""


class MisuseError(ValueError):
    """Words that are no use of a command: what is wrong, and where to read on."""


# Kinds of options. tyro's own readers take `inf`, numbers that torch cannot hold, and an empty path, which would be the
# folder one is in; and they name Python's types where a person wants to know what to write.


def _reader(read: Callable[[str], Any], metavar: str = "VALUE") -> PrimitiveConstructorSpec[Any]:
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=lambda words: read(words[0]),
        is_instance=lambda _: True,
        str_from_instance=lambda value: [str(value)],
    )


def _read_whole(word: str) -> int:
    try:
        value = int(word)
    except ValueError:
        try:
            near = round(float(word))  # what was meant by `1e3` or `8.0`
        except (ValueError, OverflowError):
            near = 8
        raise ValueError(f"{word!r}: this is no whole number. Pass one, such as {near}.") from None
    if abs(value) >= _LARGEST:
        raise ValueError(f"{value}: this number is too large. Pass a smaller one.")
    return value


def _read_number(word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        raise ValueError(f"{word!r}: this is no number. Pass one, such as 0.5.") from None
    if not math.isfinite(value):
        raise ValueError(f"{value}: this is no finite number. Pass a finite number.")
    return value


def _read_path(word: str) -> Path:
    if word == "":
        raise ValueError("'': this is empty. Pass a path, or leave it out.")
    return Path(word)


def _read_amount(word: str) -> float:
    found = re.fullmatch(r"([0-9.eE+-]+?)\s*([kKMGTP]?)(i?)(B|FLOPS|flops)?(/s)?", word)
    try:
        value = float(found[1]) if found else math.nan
    except ValueError:
        value = math.nan
    if found is None or not 0.0 < value < math.inf:
        raise ValueError(f"{word!r}: this is no amount. Pass one, such as 80GiB, 900GB or 400T.")
    return value * (1024.0 if found[3] else 1000.0) ** " KMGTP".index(found[2].upper() or " ")


_WHOLE, _NUMBER = _reader(_read_whole, "INT"), _reader(_read_number, "FLOAT")
_PATH = _reader(_read_path)
_READERS = ConstructorRegistry()


@_READERS.primitive_rule
def _read_primitive(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    return _WHOLE if info.type is int else _NUMBER if info.type is float else None


_PATHS = dataclasses.replace(
    _PATH, nargs="*", instance_from_str=lambda words: tuple(map(_read_path, words)), str_from_instance=list
)
_NO_HINT = tyro.conf.arg(help_behavior_hint="")  # the text says what holds without it: "(default: None)" says nothing

Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff, _NO_HINT]
Toggle = Annotated[bool, _NO_HINT]  # has --no-..., since a file of options may have turned it on
Count = Annotated[int | None, _WHOLE, tyro.conf.arg(metavar="INT"), _NO_HINT]
Measure = Annotated[float | None, _NUMBER, tyro.conf.arg(metavar="FLOAT"), _NO_HINT]
Amount = Annotated[float, _reader(_read_amount), tyro.conf.arg(metavar="AMOUNT"), _NO_HINT]
SomeAmount = Annotated[float | None, _reader(_read_amount), tyro.conf.arg(metavar="AMOUNT"), _NO_HINT]
Word = Annotated[str | None, tyro.conf.arg(metavar="NAME"), _NO_HINT]
Folder = Annotated[Path, _PATH, tyro.conf.arg(metavar="PATH")]
SomeFolder = Annotated[Path | None, _PATH, tyro.conf.arg(metavar="PATH"), _NO_HINT]
SomeFile = Annotated[Path | None, _PATH, tyro.conf.arg(metavar="FILE"), _NO_HINT]
SomeFiles = Annotated[
    tuple[Annotated[Path, _PATH], ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="FILE"), _NO_HINT
]
File = Annotated[Path, _PATH, tyro.conf.Positional, tyro.conf.arg(metavar="CONFIG")]
RunFolder = Annotated[Path, _PATH, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
RunFolders = Annotated[
    tuple[Path, ...],
    _PATHS,
    tyro.conf.Positional,
    tyro.conf.arg(metavar="RUN [RUN ...]", help_behavior_hint="(required)"),
]


class _Option(NamedTuple):
    """How an option is written, and what kind of field it fills."""

    names: tuple[str, ...]
    positional: bool
    flag: bool


def _options(kind: type[Any]) -> dict[str, _Option]:
    """The options of a command by their fields, whatever group they are in."""
    found = {}
    for name, hint in typing.get_type_hints(kind, include_extras=True).items():
        if dataclasses.is_dataclass(hint):
            found |= _options(typing.cast(type[Any], hint))
            continue
        extras = getattr(hint, "__metadata__", ())
        metavars = [each.metavar for each in extras if getattr(each, "metavar", None)]
        aliases = [alias for each in extras for alias in getattr(each, "aliases", None) or ()]
        positional = tyro.conf.Positional in extras
        names = (metavars[-1],) if positional else (flag(name), *aliases)
        found[name] = _Option(names, positional, hint is bool or typing.get_args(hint)[:1] == (bool,))
    return found


def flag(name: str) -> str:
    """The option that fills a field."""
    return f"--{name.replace('_', '-')}"


def values_of(options: Any) -> dict[str, Any]:
    """All options by name, whatever group they are in."""
    found = {}
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        found |= values_of(value) if dataclasses.is_dataclass(value) else {field.name: value}
    return found


def read_command(kind: type[Any], command: str, words: Sequence[str]) -> Any:
    """The options that the words give, above those of the files that `--config` names; of these the last counts.

    Where defaults hang on other options, as those of `train` on task and preset, a command has `defaults()`: what was
    read says which they are, and is read again above them.
    """
    default = None
    if hasattr(kind, "defaults"):
        plain = [word for word in words if word not in _HELP]
        try:
            default = _read_above(kind, command, plain, None).defaults()
        except ValueError:
            if len(plain) == len(words):
                raise  # but whoever asks for help gets it
        if len(plain) < len(words):
            words = _HELP[-1:]  # tyro leaves out of the usage what stands beside --help
    options = _read_above(kind, command, words, default)
    if hasattr(kind, "check_idle"):  # a file of options may say all of them
        options.check_idle(_read_fields(kind, words, command))
    return options


def _read_above(kind: type[Any], command: str, words: Sequence[str], default: Any) -> Any:
    options, table = _parse(kind, command, words, default), default
    for file in values_of(options).get("config", ()):
        table = read_values(kind, command, _load(file), str(file), table)
    return options if table is default else _parse(kind, command, words, table)


def read_values(kind: type[Any], command: str, values: Mapping[str, Any], source: str, default: Any = None) -> Any:
    """The options that a table gives by name; `source` says where it comes from."""
    try:
        return _parse(kind, command, _as_words(kind, values), default)
    except ValueError as error:
        raise MisuseError(f"{source}: {error}") from None


def _parse(kind: type[Any], command: str, words: Sequence[str], default: Any = None) -> Any:
    def refuse(event: tyro_errors.ParseErrorEvent) -> NoReturn:
        raise MisuseError(f"{_describe(event, kind, command)} {more(command)}")

    above = {} if default is None else {"default": default}
    if {*_HELP} & {*words}:
        _unwrap_help(kind)
    with _READERS, tyro_errors.on_parse_error(refuse):
        about = _wrap(kind.__doc__ or "")
        options = tyro.cli(kind, prog=f"continua {command}", description=about, args=words, config=_FLAT, **above)
    given = _read_fields(kind, words, command)
    if hasattr(kind, "check_given"):
        options.check_given(given)
    return options


def _wrap(text: str) -> str:
    """Paragraphs in lines that the terminal holds; tyro, which knows no width here, keeps lines that are indented."""
    width = shutil.get_terminal_size().columns
    like = {"initial_indent": "  ", "subsequent_indent": "  ", "break_on_hyphens": False, "break_long_words": False}
    return "\n\n".join(textwrap.fill(" ".join(each.split()), width, **like) for each in text.split("\n\n"))


def _unwrap_help(kind: type[Any]) -> None:
    """Takes line breaks out of the help of all options: tyro would keep those of the source amid a sentence."""
    texts = tyro_docstrings.parse_docstring_from_object(kind)  # cached, so that tyro reads what is changed here
    texts.update({name: " ".join(text.split()) for name, text in texts.items()})
    for hint in typing.get_type_hints(kind).values():
        if dataclasses.is_dataclass(hint):
            _unwrap_help(typing.cast(type[Any], hint))


def _read_fields(kind: type[Any], words: Sequence[str], command: str) -> list[str]:
    """The fields of the options among the words; none is given twice, but of `train`, in layers, the last wins."""
    fields = {name: field for field, option in _options(kind).items() for name in option.names if not option.positional}
    before = words[: list(words).index("--")] if "--" in words else words
    found = [fields[name] for word in before if (name := word.partition("=")[0].replace("_", "-")) in fields]
    for field in found:
        if found.count(field) > 1 and not hasattr(kind, "defaults") and not _options(kind)[field].flag:
            raise MisuseError(f"{flag(field)} is given twice. Pass it once. {more(command)}")
    return found


def _as_words(kind: type[Any], values: Mapping[str, Any]) -> list[str]:
    options, given, placed = _options(kind), list[str](), list[str]()
    for name, value in values.items():
        known = options.get(name)
        if isinstance(value, dict):
            reject(name, value, "this is a table", f"Write its keys without the line [{name}].")
        if name == "config":
            reject(name, value, "a file of options names no other", "Pass both to --config.")
        if known is not None and known.flag and not isinstance(value, bool):
            reject(name, value, "true or false is needed", "Write it without quotes.")
        if known is not None and known.positional:
            placed.append(str(value))
        elif known is None or not known.flag:
            word = ",".join(map(str, value)) if isinstance(value, list) else str(value)
            given.append(f"{flag(name)}={word}")
        else:
            given.append(flag(name if value else f"no_{name}"))
    return [*given, "--", *placed] if placed else given


def _load(file: Path) -> dict[str, Any]:
    if not file.is_file():
        why = "this is a folder" if file.is_dir() else "there is no such file"
        reject("--config", str(file), why, "Pass the path of a TOML file.")
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        reject("--config", str(file), f"this is no TOML ({error})", "Write lines such as learning_rate = 0.003.")


def _describe(event: tyro_errors.ParseErrorEvent, kind: type[Any], command: str) -> str:
    """What is wrong, in a sentence that names the option, its value and the cure."""
    match event:
        case tyro_errors.UnrecognizedArgs(tokens=[word, *_]):
            return _describe_stranger(word, list(_options(kind).values()), command)
        case tyro_errors.MissingArgs(missing_arguments=[first, *_]):
            refuse_missing(command, str(first.arg.lowered.metavar))
        case tyro_errors.BadValue(argument=argument):
            return f"{_name(argument)} needs a value. Write it behind: {_name(argument)} {argument.lowered.metavar}."
        case tyro_errors.InvalidChoice(argument=argument, value=value, choices=choices):
            what = str(argument.get_output_key()).rpartition(".")[2].lower().replace("-", " ")
            near = offer(value, [choice for choice in choices if choice != "None"])
            if what == "task" and (task := _BY_FILE.get(Path(value).suffix.lower())):
                near = f"For a file: `continua train {task} {shlex.quote(value)}`."
            return f"{_name(argument)} = {value!r}: there is no such {what}. {near}"
        case tyro_errors.InstantiationFailure(message=message, argument=argument) if argument is not None:
            return f"{_name(argument)} = {message}"
    return f"these words cannot be read ({type(event).__name__})."


def _describe_stranger(word: str, options: list[_Option], command: str) -> str:
    if word.startswith("-") or _LONG_DASH.match(word):
        given = word.partition("=")[0]
        known = [name for option in options if not option.positional for name in option.names]
        near = suggest(given.replace("_", "-"), known)
        return f"there is no option {given!r} of `continua {command}`. {near}".strip()
    places = " ".join(name for option in options if option.positional for name in option.names)
    takes = f"{places} and options" if places else "options, which begin with --"
    if word.endswith((".csv", ".ts")) and any("--series" in option.names for option in options):
        takes += f", and a file by --series {word}"
    return f"{word!r} is one word too many: `continua {command}` takes {takes}."


def refuse_missing(command: str, metavar: str) -> NoReturn:
    """Says what to write where a word is missing."""
    raise MisuseError(f"{metavar.split()[0]} is missing. Write `continua {command} {metavar}`. {more(command)}")


def describe_error(error: Exception, kind: type[Any]) -> str:
    """The message of an error, where an argument that is an option of the command has the name that the user typed."""
    if not isinstance(error, ArgumentError):
        return str(error)
    options = _options(kind)
    for name in (error.argument, _OTHERWISE.get(error.argument, "")):
        if name in options and not options[name].positional:
            return error.message_for(flag(name))
    return error.message_for("RUN") if error.argument == "run" else str(error)


def _name(argument: Any) -> str:
    if argument.is_positional():
        return str(argument.lowered.metavar).split()[0].strip("[]")
    return argument.lowered.name_or_flags[-1]  # aliases come first


def suggest(word: str, known: Iterable[str]) -> str:
    """The question whether the nearest of the known words is meant, or nothing where none is near."""
    if dash := _LONG_DASH.match(word):  # as web pages print options
        return f"It begins with a long dash, and options with two short ones: write --{word[dash.end() :]}. "
    names = {name.lstrip("-"): name for name in known}  # dashes, which all options share, would make any two alike
    bare = word.lstrip("-")
    if bare in _INSTEAD and _INSTEAD[bare][0] in names.values():
        return _INSTEAD[bare][1]
    others = [option[2:] for option, words in _ELSEWHERE.items() if bare in words and option in names.values()]
    near = others or difflib.get_close_matches(bare, names, n=1, cutoff=_NEAR)
    return f"Did you mean {names[near[0]]!r}? " if near else ""


def more(command: str) -> str:
    """Where to read on."""
    return f"`continua {command} --help` tells more."


def choose(argument: str, word: str, known: Iterable[str], what: str, command: str) -> str:
    """The word, which is among the known ones; another one is refused with the nearest and with all of them."""
    names = list(known)
    if word not in names:
        reject(argument, word, f"there is no such {what}", f"{offer(word, names)} {more(command)}")
    return word


def offer(word: str, names: Sequence[str]) -> str:
    """The nearest of the names, and all of them."""
    return f"{suggest(word, names)}Choose from {', '.join(names)}."


def completion(shell: str, commands: Mapping[str, type[Any]]) -> str:
    """The script that teaches a shell all commands with their options, as tyro writes it."""
    if shell not in _SHELLS:
        reject("--completion", shell, "there is no completion for this shell", offer(shell, _SHELLS))
    written = io.StringIO()
    with contextlib.redirect_stdout(written), contextlib.suppress(SystemExit):
        words = ["--tyro-print-completion", shell]
        tyro.extras.subcommand_cli_from_dict(dict(commands), prog="continua", args=words, config=_FLAT)
    return written.getvalue()
