"""A Python file of the user's that is run in this process: one that declares a pipeline, or has a transform in it."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Final

from detent.errors import DetentError, Invalid, NotFound

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
            raise self._no_python(error) from error
        except ValueError as error:
            raise Invalid(f"{path} is no Python: {error}") from error

    def run(self) -> dict[str, object]:
        """The names that the file has when it was run, as ``python FILE`` would run it."""
        module = ModuleType(MODULE)
        module.__file__ = str(self.path)
        folder = str(self.path.resolve().parent)
        if folder not in sys.path:
            sys.path.insert(0, folder)  # what lies beside the file can be imported, as by a script
        sys.modules[MODULE] = module  # dataclasses, for one, look for the module that they are in
        try:
            exec(self._code, module.__dict__)  # the user's own program
        except DetentError as error:
            raise type(error)(f"{self._place(error)}{error}") from error
        except ModuleNotFoundError as error:
            raise Invalid(self._missing(error)) from error
        except SyntaxError as error:
            raise self._no_python(error) from error
        except Exception as error:
            raise Invalid(f"{self._place(error)}{type(error).__name__}: {error}") from error
        finally:
            del sys.modules[MODULE]
        return vars(module)

    @staticmethod
    def _no_python(error: SyntaxError) -> Invalid:
        """The file itself, or one that it imports."""
        return Invalid(f"{error.filename}:{error.lineno}: this is no Python: {error.msg}")

    def _place(self, error: BaseException) -> str:
        """The line of the user's file in which something went wrong."""
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(self.path)]
        return f"{self.path}:{lines[-1]}: " if lines else f"{self.path}: "

    def _missing(self, error: ModuleNotFoundError) -> str:
        package = (error.name or "").split(".")[0]
        extra = _EXTRAS.get(package)
        advice = f"pip install 'detent[{extra}]'" if extra else "install it, or correct the name"
        return f"{self._place(error)}there is no module {error.name}: {advice}"
