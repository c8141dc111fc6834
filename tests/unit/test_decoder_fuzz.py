"""Damaged bytes meet every decoder: the answer is a value or a `DetentError`, soon, and in little memory.

The cases follow from the seed alone. A failure names the case; the same seed runs it again:

    DETENT_FUZZ_SEED=… pytest tests/unit/test_decoder_fuzz.py -k 'name'

`DETENT_SOAK=1` runs many more.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import tracemalloc
from collections.abc import Callable, Iterator
from types import FrameType

import pytest

from decoders import DECODERS, DecoderCase
from detent.errors import Corrupt, DetentError

SEED = os.environ.get("DETENT_FUZZ_SEED", "1")
CASES = 200_000 if os.environ.get("DETENT_SOAK") else 1_500

CASE_CPU_SECONDS = 5.0
"""CPU time, not the clock's: a busy machine is no failure."""

MEMORY_FACTOR = 64
MEMORY_BASE = 1 << 20
"""What a decoder may have allocated at its peak: MEMORY_FACTOR x input + MEMORY_BASE bytes."""

RESIDENT_GROWTH_KIB = 256 << 10
"""What the process may grow by over all cases of one decoder: finds memory that tracemalloc does not see."""

RANDOM_BYTES_MAX = 400
HUGE = [b"\xff", b"\x7f", b"\x80", b"\x00", b"\xff\xff", b"\xff\xff\xff\x7f", b"\x00\x00\x00\x80"]
HUGE += [b"\xff" * 4, b"\xff" * 8, b"\xff" * 7 + b"\x7f", b"\x7f" + b"\xff" * 7, b"\x00\x00\x00\x40"]

Mutation = Callable[[random.Random, bytes, bytes], bytes]


def random_bytes(rng: random.Random, _: bytes, __: bytes) -> bytes:
    return rng.randbytes(rng.randrange(RANDOM_BYTES_MAX))


def flip_bits(rng: random.Random, data: bytes, __: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(rng.randint(1, 8) if out else 0):
        out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def truncate(rng: random.Random, data: bytes, _: bytes) -> bytes:
    return data[: rng.randrange(len(data))] if data else data


def extend(rng: random.Random, data: bytes, _: bytes) -> bytes:
    return data + rng.choice([rng.randbytes(rng.randint(1, 40)), bytes(rng.randint(1, 9)), data])


def set_huge(rng: random.Random, data: bytes, _: bytes) -> bytes:
    """Some field, perhaps a length, becomes extreme."""
    at, patch = rng.randrange(len(data) + 1), rng.choice(HUGE)
    return data[:at] + patch + data[at + len(patch) :]


def cut_out(rng: random.Random, data: bytes, _: bytes) -> bytes:
    start, end = sorted((rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)))
    return data[:start] + data[end:]


def splice(rng: random.Random, data: bytes, other: bytes) -> bytes:
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :]


MUTATIONS: list[Mutation] = [random_bytes, flip_bits, truncate, extend, set_huge, cut_out, splice]


def cases(case: DecoderCase, seed: str, count: int) -> Iterator[bytes]:
    rng = random.Random(f"{case.name}/{seed}")
    yield b""
    for _ in range(count):
        data = rng.choice(case.samples)
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            data = rng.choice(MUTATIONS)(rng, data, rng.choice(case.samples))
        yield data


class Hung(BaseException):
    """Not an Exception, so that a decoder that catches everything does not catch this."""


@contextlib.contextmanager
def cpu_limit() -> Iterator[None]:
    # The timer of CPU time: pytest-timeout has the other one.
    def expired(_: int, __: FrameType | None) -> None:
        raise Hung

    previous = signal.signal(signal.SIGVTALRM, expired)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, previous)


def run_one(decode: Callable[[bytes], object], data: bytes) -> str | None:
    """What is wrong with the decoder's answer, or None."""
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    signal.setitimer(signal.ITIMER_VIRTUAL, CASE_CPU_SECONDS)
    try:
        decode(data)
    except DetentError:
        pass
    except KeyboardInterrupt:
        raise
    except Hung:
        return f"no answer after {CASE_CPU_SECONDS} s of CPU"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    used = tracemalloc.get_traced_memory()[1] - before
    if used > MEMORY_FACTOR * len(data) + MEMORY_BASE:
        return f"{used} bytes of memory for {len(data)} bytes of input"
    return None


def fuzz(case: DecoderCase, *, seed: str = SEED, count: int = CASES) -> str | None:
    """Run one decoder's cases; the first failure, told so that it can be repeated, or None."""
    for sample in case.samples:  # also warms up what the decoder imports and caches
        case.decode(sample)
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tracemalloc.start()
    try:
        with cpu_limit():
            for number, data in enumerate(cases(case, seed, count)):
                problem = run_one(case.decode, data)
                if problem:
                    return f"{case.name}, seed {seed}, case {number}: {problem}; input {data.hex()}"
    finally:
        tracemalloc.stop()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - resident
    if grown > RESIDENT_GROWTH_KIB:
        return f"{case.name}, seed {seed}: the process grew by {grown} KiB"
    return None


@pytest.mark.parametrize("case", DECODERS, ids=lambda case: case.name)
def test_damaged_bytes(case: DecoderCase) -> None:
    problem = fuzz(case)
    assert problem is None, problem


def test_names_are_unique_and_samples_exist() -> None:
    assert len({case.name for case in DECODERS}) == len(DECODERS)
    assert all(case.samples for case in DECODERS)


def test_cases_follow_from_the_seed() -> None:
    case = DECODERS[0]
    assert list(cases(case, "a", 200)) == list(cases(case, "a", 200))
    assert list(cases(case, "a", 200)) != list(cases(case, "b", 200))


class TestTheFuzzCanFail:
    """Decoders with the usual mistakes; each must be found."""

    def check(self, decode: Callable[[bytes], object], sample: bytes, problem: str) -> None:
        found = fuzz(DecoderCase("broken", decode, [sample]), seed="1", count=2_000)
        assert found is not None
        assert problem in found

    def test_over_read(self) -> None:
        self.check(lambda data: data[1 + data[0]], b"\x02abc", "IndexError")

    def test_unchecked_text(self) -> None:
        self.check(lambda data: data.decode(), b"hello", "UnicodeDecodeError")

    def test_a_length_that_is_believed(self) -> None:
        def decode(data: bytes) -> bytearray:
            if len(data) < 4:
                raise Corrupt("short")
            return bytearray(int.from_bytes(data[:4], "little") & 0xFFF_FFFF)

        self.check(decode, b"\x04\x00\x00\x00abcd", "bytes of memory")

    def test_a_loop_without_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(f"{__name__}.CASE_CPU_SECONDS", 0.05)

        def decode(data: bytes) -> int:
            at = 0
            while at < len(data):
                at += data[at]  # a record of length 0 never ends
            return at

        self.check(decode, b"\x02a\x03bc", "no answer")

    def test_an_exception_that_is_no_error_of_ours(self) -> None:
        def decode(data: bytes) -> int:
            if not data:
                raise SystemExit(1)
            return len(data)

        self.check(decode, b"x", "SystemExit")
