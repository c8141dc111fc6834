"""The examples of docs/handlers.md run, one after another, as a reader would try them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

from busworld import app as _app  # noqa: F401 - what its modules need is loaded once, before processes are forked
from processes import Io, Processes
from servers import HOST  # noqa: F401

PAGE = Path(__file__).parents[2] / "docs" / "handlers.md"
