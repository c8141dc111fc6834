"""A Python file of the user's that is run in this process: one that declares a pipeline or a consumer, or has a
transform in it."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Final

from detent.errors import DetentError, Invalid, NotFound
from detent.extras import install_command

MODULE: Final = "__detent_user__"
"""The file's name as a module. It is among the imported ones only while the file is run, so that its functions travel
to Spark's workers by value: there, nobody could import them."""

_EXTRAS: Final = {"pyspark": "spark", "pandas": "spark", "deltalake": "delta", "sqlalchemy": "sql"}


class UserFile:
    """A file that was read and compiled, and what is wrong with it as far as that can be known without running it.
    `purpose` ends the sentence "a Python file that ..."."""

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
            raise Invalid(f"{path} is no Python: {error}") from error

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


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """What a file of the user's raises while it is run, as an error that says in which line, and what to do."""
    try:
        yield
    except DetentError as error:
        raise type(error)(f"{_place(path, error)}{error}") from error
    except ModuleNotFoundError as error:
        raise Invalid(f"{_place(path, error)}{_missing(error)}") from error
    except SyntaxError as error:
        raise _no_python(error) from error
    except SystemExit as error:  # a command that has done nothing is not to end as if it had
        advice = 'put what ends the program under if __name__ == "__main__":'
        raise Invalid(f"{_place(path, error)}the file ends the program while it is loaded: {advice}") from error
    except Exception as error:
        raise Invalid(f"{_place(path, error)}{type(error).__name__}: {error}") from error


def _no_python(error: SyntaxError) -> Invalid:
    """The file itself, or one that it imports."""
    return Invalid(f"{error.filename}:{error.lineno}: this is no Python: {error.msg}")


def _place(path: Path, error: BaseException) -> str:
    """The line of the user's file in which something went wrong."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    return f"{path}:{lines[-1]}: " if lines else f"{path}: "


def _missing(error: ModuleNotFoundError) -> str:
    package = (error.name or "").split(".")[0]
    extra = _EXTRAS.get(package)
    advice = install_command(extra) if extra else "install it, or correct the name"
    return f"there is no module {error.name}: {advice}"
