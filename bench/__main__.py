"""`python -m bench SUITE`: measure, print the table, write bench/results/SUITE.json."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from bench import report, suites
from bench.harness import Size, run
from bench.place import ROOT, new_place

ROUNDS = 5
QUICK_ROUNDS = 2


def main() -> int:
    options = _options()
    suite = suites.load(options.suite)
    names = [measurement.name for measurement in suite.measurements]
    if options.list:
        print("\n".join(names))
        return 0
    for name in options.only:
        if name not in names:
            sys.exit(f"there is no measurement {name!r}; choose from {', '.join(names)}")
    size = Size(options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS), options.quick, options.scale)
    progress, started = Progress(), time.monotonic()
    with new_place() as place:
        results = run(suite, place, size, only=options.only, progress=progress)
    progress.end()
    print(f"{options.suite}, {size.rounds} interleaved rounds, medians and ranges. {report.environment()}\n")
    print(report.table(results))
    print(f"\n{time.monotonic() - started:.0f} s")
    output = options.output
    if output is None and not (options.only or options.quick or size.rounds < ROUNDS or size.scale < 1):
        output = ROOT / "results" / f"{options.suite}.json"
    if output is None:
        print("not written: the result file holds full runs only (--output FILE writes this one)")
    else:
        report.write(results, output)
        print(f"written to {output}")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("suite", choices=sorted(suites.MODULES))
    parser.add_argument("--rounds", type=int, help=f"interleaved rounds (default {ROUNDS})")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="this measurement only; repeatable")
    parser.add_argument("--quick", action="store_true", help="less work and fewer rounds: a look, not a result")
    parser.add_argument("--scale", type=float, default=1.0, help="this part of the full work, such as 0.2")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the result here")
    parser.add_argument("--list", action="store_true", help="name the measurements and stop")
    options = parser.parse_args()
    if options.rounds is not None and options.rounds < 1:
        parser.error("--rounds is at least 1")
    if not 0 < options.scale <= 1:
        parser.error("--scale is a part of the work: more than 0, at most 1")
    return options


class Progress:
    """One line that is overwritten; without a terminal, a line for each measurement."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._terminal = sys.stderr.isatty()
        self._shown = ""

    def __call__(self, step: str) -> None:
        elapsed = f"{time.monotonic() - self._started:4.0f} s"
        if self._terminal:
            sys.stderr.write(f"\r\x1b[K{elapsed}  {step}")
        elif (name := step.partition(":")[0]) != self._shown:
            self._shown = name
            sys.stderr.write(f"{elapsed}  {name}\n")
        sys.stderr.flush()

    def end(self) -> None:
        if self._terminal:
            sys.stderr.write("\r\x1b[K")


if __name__ == "__main__":
    sys.exit(main())
