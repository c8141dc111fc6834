"""Byte vectors that the reference implementation of the formats produces, as data."""

from __future__ import annotations

METADATA_LOG = b"opendata-queue/default/messages/metadata/0"

TERMINATED: list[tuple[bytes, str]] = [
    (b"", "00"),
    (b"hello", "68656c6c6f00"),
    (b"orders", "6f726465727300"),
    (b"\x00", "010100"),
    (b"\x01", "010200"),
    (b"\xff", "ff00"),
    (b"a\x00b\x01c\xffd", "61010162010263ff6400"),
    (b"a", "6100"),
    (b"ab", "616200"),
    (b"a\xff", "61ff00"),
]

TERMINATED_REFUSED: list[tuple[str, str]] = [
    ("61010300", "an escape that an abandoned draft gave to FF"),
    ("6101", "ends inside an escape, no terminator"),
    ("616263", "no terminator"),
    ("610100", "terminator inside an escape"),
    ("6101ff00", "no such escape"),
    ("", "nothing"),
]

VAR_U64: list[tuple[int, str]] = [
    (0, "00"),
    (5, "05"),
    (15, "0f"),
    (16, "1010"),
    (100, "1064"),
    (255, "10ff"),
    (4095, "1fff"),
    (4096, "201000"),
    (1048575, "2fffff"),
    (1048576, "30100000"),
    (268435455, "3fffffff"),
    (268435456, "4010000000"),
    (68719476735, "4fffffffff"),
    (68719476736, "501000000000"),
    (17592186044416, "60100000000000"),
    (4503599627370495, "6fffffffffffff"),
    (4503599627370496, "7010000000000000"),
    (1152921504606846975, "7fffffffffffffff"),
    (1152921504606846976, "801000000000000000"),
    (18446744073709551615, "80ffffffffffffffff"),
]

VAR_U64_REFUSED: list[tuple[str, str]] = [
    ("1005", "5 in two bytes: the reference takes it"),
    ("8fffffffffffffffff", "bits beyond 64: the reference drops them"),
    ("81ffffffffffffffff", "one bit beyond 64"),
    ("100f", "15 in two bytes"),
    ("200fff", "4,095 in three bytes"),
    ("800fffffffffffffff", "60 bits in nine bytes"),
    ("90ffffffffffffffffff", "length code 9"),
    ("f0" + "ff" * 15, "length code 15"),
    ("", "nothing"),
    ("10", "ends inside"),
    ("80ffffffffffffff", "ends inside"),
]

VAR_U32: list[tuple[int, str]] = [
    (0, "00"),
    (31, "1f"),
    (32, "2020"),
    (8191, "3fff"),
    (8192, "402000"),
    (2097151, "5fffff"),
    (2097152, "60200000"),
    (536870911, "7fffffff"),
    (536870912, "8020000000"),
    (4294967295, "80ffffffff"),
]

VAR_U32_REFUSED: list[tuple[str, str]] = [
    ("2005", "5 in two bytes"),
    ("401fff", "8,191 in three bytes"),
    ("801fffffff", "29 bits in five bytes"),
    ("81ffffffff", "a bit beyond 32"),
    ("9fffffffff", "bits beyond 32"),
    ("a0ffffffffff", "length code 5"),
    ("e0" + "ff" * 7, "length code 7"),
    ("", "nothing"),
    ("20", "ends inside"),
]

UTF8: list[tuple[str, str]] = [
    ("", "0000"),
    ("hello", "050068656c6c6f"),
    ("ab", "02006162"),
    ("c", "010063"),
    ("é", "0200c3a9"),
    ("世界", "0600e4b896e7958c"),
]

SEQUENCE_BLOCKS: list[tuple[int, int, str]] = [
    (0, 4096, "00000000000000000000000000001000"),
    (4096, 4096, "00000000000010000000000000001000"),
    (1000, 100, "00000000000003e80000000000000064"),
]

SEQUENCE_BLOCK_KEY = "03010000000020"

SEGMENT_KEYS: list[tuple[int, str]] = [
    (1, "0301000000003000000001"),
    (42, "030100000000300000002a"),
]

SEGMENTS: list[tuple[int, int, str]] = [
    (0, 1_700_000_000_000, "00000000000000000000018bcfe56800"),
    (4096, 1_700_000_000_000, "00000000000010000000018bcfe56800"),
]

LISTINGS: list[tuple[int, bytes, str]] = [
    (1, b"orders", "030100000001406f7264657273"),
    (42, b"test_key", "03010000002a40746573745f6b6579"),
    (
        1,
        METADATA_LOG,
        "030100000001406f70656e646174612d71756575652f64656661756c742f6d657373616765732f6d657461646174612f30",
    ),
]

ENTRIES: list[tuple[int, bytes, int, int, str]] = [
    # segment, user key, sequence, the segment's start, key
    (1, b"k", 100, 0, "030100000001106b001064"),
    (1, b"k", 1005, 1000, "030100000001106b0005"),
    (42, b"test_key", 12345, 10000, "03010000002a10746573745f6b6579001929"),
    (
        1,
        METADATA_LOG,
        0,
        0,
        "030100000001106f70656e646174612d71756575652f64656661756c742f6d657373616765732f6d657461646174612f300000",
    ),
    (
        2,
        METADATA_LOG,
        5000,
        4096,
        "030100000002106f70656e646174612d71756575652f64656661756c742f6d657373616765732f6d657461646174612f30001388",
    ),
]
