"""**Target**: what a command was told to run, as ``FILE[:NAME]`` or ``MODULE[:NAME]``, and finding it there.

A file or a module is run, and what it declares is found among its names: an app, a consumer, a graph, a pipeline, a
function. Every process loads it by itself, so that its functions need not travel.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Final, Generic, TypeVar

from detent.errors import DetentError, Invalid, NotFound
from detent.extras import install_command

Kind = TypeVar("Kind")

MODULE: Final = "__detent_user__"
"""A file's name as a module where it is not kept. It is among the imported ones only while the file is run, so that its
functions travel to Spark's workers by value: they could not import them."""

_EXTRAS: Final = {"pyspark": "spark", "pandas": "spark", "deltalake": "delta", "sqlalchemy": "sql"}

_is_loading: Final[ContextVar[bool]] = ContextVar("detent_is_loading", default=False)


@dataclass(frozen=True, slots=True)
class Sought(Generic[Kind]):
    """The objects that are looked for, and the words in which it is said that there are none."""

    cls: type[Kind] | tuple[type[Kind], ...]
    noun: str
    """What it is called, as in "declares a consumer"."""
    plural: str
    article: str
    example: str
    """How targets are written."""
    lines: str
    """What a file needs to have one."""
    usual: str = "app"
    """The name of the one that is meant where several are declared and none is named."""

    @property
    def purpose(self) -> str:
        """The end of the sentence "a Python file that ..."."""
        return f"declares {self.article} {self.noun}"

    @property
    def _class_name(self) -> str:
        return self.noun if isinstance(self.cls, tuple) else self.cls.__name__


@dataclass(frozen=True, slots=True)
class Target:
    """A file or a module, and the name of something in it; without a name, whatever it declares."""

    place: str
    name: str = ""

    @classmethod
    def parse(cls, text: str, example: str) -> Target:
        """The target that a user wrote; `Invalid` shows how to write one."""
        place, _, name = text.partition(":")
        if not place:
            raise Invalid(f"{text!r} names no module and no file: write {example}")
        return cls(place, name)

    @property
    def is_file(self) -> bool:
        """Whether the place is a file, and not a module."""
        return is_path(self.place)

    def load(self, sought: Sought[Kind], *, kept_as: str | None = None) -> Loaded[Kind]:
        """Run the file, or import the module. A file stays imported as `kept_as`, or under a name of its own: classes
        that are declared in it may look for their module at any time. Files that import each other, and are run
        together, have the same objects and classes: one that another has imported is not run again.

        Modules are looked for in the current folder too."""
        if kept_as is None and self.is_file:
            path = Path(self.place)
            known = _known(path)
            if known is not None:
                return Loaded(sought, self.place, vars(known))
            kept_as = _free_name(path.stem)
        token = _is_loading.set(True)
        try:
            if self.is_file:
                names: Mapping[str, object] = UserFile(Path(self.place), sought.purpose).run(kept_as=kept_as)
            else:
                names = _import(self.place, sought.example)
        finally:
            _is_loading.reset(token)
        return Loaded(sought, self.place, names)


@dataclass(frozen=True, slots=True)
class Loaded(Generic[Kind]):
    """A module or a file that was run, and the names that are in it."""

    sought: Sought[Kind]
    shown: str
    """How the user called it."""
    names: Mapping[str, object]

    def chosen(self, name: str) -> Kind:
        """The object of that name; without a name, the only one, or the one that has the usual name."""
        return self.named(name) if name else self.only()

    def named(self, name: str) -> Kind:
        """The object of that name."""
        if name not in self.names:
            raise NotFound(f"{self.shown} has no {name!r}; {self._listed()}")
        found = self.names[name]
        if not isinstance(found, self.sought.cls):
            wrong = f"is no {self.sought._class_name} but a {type(found).__name__}"
            raise Invalid(f"{self.shown}:{name} {wrong}; {self._listed()}")
        return found

    def all(self) -> list[Kind]:
        """All of them, in the order in which they were declared, and one at least. One that has two names is one."""
        found = {id(one): one for one in self.names.values() if isinstance(one, self.sought.cls)}
        if not found:
            raise Invalid(f"{self.shown} declares no {self.sought.noun}; {self._listed()}")
        return list(found.values())

    def only(self) -> Kind:
        """The only one, or the one that has the usual name."""
        found = self.all()
        if len(found) == 1:
            return found[0]
        usual = self.names.get(self.sought.usual)
        if isinstance(usual, self.sought.cls):
            return usual
        many = f"{len(found)} {self.sought.plural}"
        raise Invalid(f"{self.shown} declares {many}: say which one; {self._listed()}")

    def name_of(self, found: object) -> str:
        """The name that an object has there."""
        return next(name for name, value in self.names.items() if value is found)

    def _listed(self) -> str:
        """Those that could have been meant."""
        found = sorted(name for name, value in self.names.items() if isinstance(value, self.sought.cls))
        if found:
            return "there is " + ", ".join(f"{self.shown}:{name}" for name in found)
        return f"it needs lines such as {self.sought.lines}"


def find(text: str, sought: Sought[Kind], *, kept_as: str | None = None) -> Kind:
    """The object that a target means: the one it names, the only one, or the one that has the usual name."""
    target = Target.parse(text, sought.example)
    return target.load(sought, kept_as=kept_as).chosen(target.name)


def is_path(place: str) -> bool:
    """Whether a place is a file, and not a module."""
    return place.endswith((".py", ".toml")) or os.sep in place


def refuse_while_loading(what: str) -> None:
    """`Invalid` in a file that is being loaded: a command that only looks would run it, and never come to look."""
    if _is_loading.get():
        raise Invalid(f'{what} runs whenever the file is loaded: put it under if __name__ == "__main__":')


# -- files ------------------------------------------------------------------------------------------------------------


class UserFile:
    """A Python file of the user's that was read and compiled, and what is wrong with it as far as that can be known
    without running it. `purpose` ends the sentence "a Python file that ..."."""

    def __init__(self, path: Path, purpose: str) -> None:
        self.path = path
        if path.is_dir():
            raise Invalid(f"{path} is a folder: give the Python file that {purpose}")
        try:
            source = path.read_bytes()
        except FileNotFoundError:
            raise NotFound(f"there is no file {path}: give a Python file that {purpose}") from None
        except OSError as error:
            raise Invalid(f"{path} cannot be read: {error}") from error
        try:
            self._code = compile(source, str(path), "exec", dont_inherit=True)
        except SyntaxError as error:
            raise _no_python(error) from error
        except ValueError as error:
            raise Invalid(f"{path} is not Python: {error}") from error

    def run(self, *, kept_as: str | None = None) -> dict[str, object]:
        """The names that the file has when it was run, as ``python FILE`` would run it. With `kept_as` it stays among
        the imported modules under that name, for classes that look for their module when they are used."""
        name = kept_as or MODULE
        module = ModuleType(name)
        module.__file__ = str(self.path)
        folder = str(self.path.resolve().parent)
        if folder not in sys.path:
            sys.path.insert(0, folder)  # what lies beside the file can be imported, as by a script
        sys.modules[name] = module  # dataclasses, for one, look for the module that they are in
        try:
            with explained(self.path):
                exec(self._code, module.__dict__)  # the user's own program
        except BaseException:
            del sys.modules[name]
            raise
        if kept_as is None:
            del sys.modules[name]
        return vars(module)


def _known(path: Path) -> ModuleType | None:
    """A file that is imported already under its own name."""
    known = sys.modules.get(path.stem)
    origin = getattr(known, "__file__", None)
    return known if origin is not None and Path(origin).resolve() == path.resolve() else None


def _free_name(stem: str) -> str:
    """The name of a file as a module: its own where that is free."""
    if stem.isidentifier() and stem not in {"__main__", *sys.stdlib_module_names, *sys.modules}:
        return stem
    return next(name for number in count() if (name := f"__detent_{stem}_{number}__") not in sys.modules)


# -- modules ----------------------------------------------------------------------------------------------------------


def _import(module: str, example: str) -> Mapping[str, object]:
    if (folder := os.getcwd()) not in sys.path:
        sys.path.insert(0, folder)
    if (known := sys.modules.get(module)) is not None:  # also a file that was run under this name, which has no spec
        return vars(known)
    origin = _origin(module, example)
    with explained(origin):
        return vars(importlib.import_module(module))


def _origin(module: str, example: str) -> Path:
    """The file of a module. The packages that it is in are imported for that, and may be what is wrong."""
    parents = module.split(".")[:-1]
    for depth in range(len(parts := [*parents, module.rpartition(".")[2]])):
        name = ".".join(parts[: depth + 1])
        try:
            spec = importlib.util.find_spec(name)
        except (ModuleNotFoundError, ValueError):  # what is before the dot is not a package; a name such as "..x"
            spec = None
        if spec is None:
            raise NotFound(
                f"there is no module {name!r}, neither in {os.getcwd()} nor where Python looks: write {example}"
            )
        origin = Path(spec.origin or name)
        if depth < len(parents):
            with explained(origin):
                importlib.import_module(name)
    return origin


# -- functions that are named in settings -----------------------------------------------------------------------------


Run = Callable[["UserFile"], Mapping[str, object]]


def find_function(text: str, what: str, *, path_of: Callable[[str], str]) -> Callable[[Run], Callable[..., object]]:
    """What loads the function that "file.py:function" or "module:function" names: `what` it is to be. What can be known
    to be wrong is raised here; the answer is called with what runs a file. `path_of` says where the file is."""
    if text.count(":") != 1:
        raise Invalid(f'{what} is "file.py:function" or "module:function", not {text!r}')
    place, _, name = text.partition(":")
    if place.endswith(".py"):
        file = UserFile(Path(path_of(place)), f"has the {what} {name} in it")
        return lambda run: _function(run(file).get(name), place, name)
    if not _is_there(place):
        raise Invalid(f"there is no module {place}, which the {what} is to be in")
    return lambda _run: _function(getattr(_imported(place, what), name, None), place, name)


def _is_there(module: str) -> bool:
    if module in sys.modules:
        return True
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # a package of its is not there, or it is not a name
        return False


def _imported(module: str, what: str) -> object:
    try:
        return importlib.import_module(module)
    except Exception as error:
        raise Invalid(
            f"the module {module}, which the {what} is in, cannot be imported: {type(error).__name__}: {error}"
        ) from error


def _function(found: object, place: str, name: str) -> Callable[..., object]:
    if not callable(found):
        raise Invalid(f"there is no function {name} in {place}")
    return found


# -- what is wrong ----------------------------------------------------------------------------------------------------


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """What a file of the user's raises while it is run, as an error that says in which line, and what to do."""
    try:
        yield
    except DetentError as error:
        raise type(error)(f"{_line(path, error)}{error}") from error
    except ModuleNotFoundError as error:
        raise Invalid(f"{_line(path, error)}{_missing(error)}") from error
    except SyntaxError as error:
        raise _no_python(error) from error
    except SystemExit as error:  # a command that has done nothing is not to end as if it had
        advice = 'put what ends the program under if __name__ == "__main__":'
        raise Invalid(f"{_line(path, error)}the file ends the program while it is loaded: {advice}") from error
    except Exception as error:
        raise Invalid(f"{_line(path, error)}{type(error).__name__}: {error}") from error


def _no_python(error: SyntaxError) -> Invalid:
    """The file itself, or one that it imports."""
    return Invalid(f"{error.filename}:{error.lineno}: this is not Python: {error.msg}")


def _line(path: Path, error: BaseException) -> str:
    """The line of the user's file in which something went wrong."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    return f"{path}:{lines[-1]}: " if lines else f"{path}: "


def _missing(error: ModuleNotFoundError) -> str:
    package = (error.name or "").split(".")[0]
    extra = _EXTRAS.get(package)
    advice = install_command(extra) if extra else "install it, or correct the name"
    return f"there is no module {error.name}: {advice}"
