"""Damage to WALs that knows what the bytes mean: one function of each kind of damage."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from google.protobuf.message import DecodeError

from fuzz.cursor import Part, varint
from fuzz.reference import EMPTY_TRAILER, Taken
from walferry.formats.proto import hbase_pb2

NUMBERS = (0, 1, 2, 11, 12, 127, 128, 255, 32767, 32768, 65535, 65536, 1 << 20, 1 << 29, (1 << 31) - 1, 1 << 31,
           (1 << 32) - 1, 1 << 62, (1 << 63) - 1, -1)  # fmt: skip


@dataclass(frozen=True)
class Base:
    """A file that HBase wrote, or its beginning up to an entry, and what is in it."""

    name: str
    data: bytes
    taken: Taken


@dataclass(frozen=True)
class Mutant:
    """A damaged file: equal to its base before `same`, and, but for flipped bytes before it, from `until` on."""

    what: str
    data: bytes
    same: int
    until: int
    shift: int | None = None
    """by how much later the rest of the base comes when one length, and nothing else, was enlarged"""


def beginning(base: Base, rng: random.Random) -> Base:
    """A base's first entries, mostly few, with or without a trailer."""
    entries = base.taken.entries
    count = min(len(entries), 1 + int(rng.expovariate(1 / 25)))
    if rng.random() < 0.05:
        count = len(entries)
    taken = replace(base.taken, entries=entries[:count])
    taken.parts = [part for part in base.taken.parts if part.end <= taken.end]
    return Base(base.name, base.data[: taken.end] + (EMPTY_TRAILER if rng.random() < 0.7 else b""), taken)


def mutant(base: Base, others: Sequence[Base], rng: random.Random) -> Mutant:
    """One damaged form of a base; halves of `others` may be spliced in."""
    kind = rng.choice(KINDS)
    found = kind(base, others, rng)
    for _ in range(rng.choice((0, 0, 0, 0, 1, 2))):
        if not found.data:
            break
        at = rng.randrange(len(found.data))
        flipped = found.data[:at] + bytes([found.data[at] ^ rng.randrange(1, 256)]) + found.data[at + 1 :]
        found = Mutant(f"{found.what}, flipped {at}", flipped, min(found.same, at), max(found.until, at + 1))
    return found


def put(base: Base, what: str, start: int, end: int, new: bytes) -> Mutant:
    data = base.data[:start] + new + base.data[end:]
    return Mutant(f"{what} at {start}..{end}: {new[:20].hex()}", data, start, start + len(new))


def parts(base: Base, *kinds: str) -> list[Part]:
    return [part for part in base.taken.parts if part.kind in kinds] or base.taken.parts


def truncated(base: Base, others: Sequence[Base], rng: random.Random) -> Mutant:
    part = rng.choice(base.taken.parts)
    places = (part.start, part.end, rng.randrange(part.start, part.end), rng.randrange(len(base.data) + 1))
    cut = max(0, min(len(base.data), rng.choice(places)))
    if rng.random() < 0.2:
        cut = max(0, len(base.data) - rng.randrange(20))
    return Mutant(f"cut at {cut}", base.data[:cut], cut, cut)


def number(base: Base, others: Sequence[Base], rng: random.Random) -> Mutant:
    """Another length, count, time or sequence number."""
    part = rng.choice(parts(base, *rng.choice((("varint",), ("count",), ("int32", "int64"), ("varint", "int32")))))
    old = base.data[part.start : part.end]
    if part.kind in ("int32", "int64"):
        near = int.from_bytes(old, "big") + rng.choice((-1, 1, -8, 8, 256))
        value = near if rng.random() < 0.5 else rng.choice(NUMBERS)
        return put(base, part.kind, part.start, part.end, (value % (1 << 8 * len(old))).to_bytes(len(old), "big"))
    value = value_of(old)
    new = varint(value + rng.choice((-1, 1, -2, 2, 100, 127, 16384)) if rng.random() < 0.6 else rng.choice(NUMBERS))
    if rng.random() < 0.2:  # longer than it needs to be
        new = new[:-1] + bytes([new[-1] | 0x80]) + b"\x80" * rng.randrange(3) + b"\0"
    return put(base, part.kind, part.start, part.end, new)


def value_of(number: bytes) -> int:
    """That of a varint."""
    return sum((byte & 0x7F) << 7 * i for i, byte in enumerate(number))


def index(base: Base, others: Sequence[Base], rng: random.Random) -> Mutant:
    """Another number of a name, or a name instead of it."""
    part = rng.choice(parts(base, "index", "literal"))
    new = rng.choice(
        (
            rng.randrange(8).to_bytes(2, "big"),
            rng.randrange(130).to_bytes(2, "big"),
            rng.choice((b"\x7f\xff", b"\x7f\xfe", b"\x80\0", b"\xfe\0", b"\xff\0", b"\xff\x01a", b"\xff\x7f", b"")),
        )
    )
    return put(base, part.kind, part.start, part.end, new)


def header(base: Base, others: Sequence[Base], rng: random.Random) -> Mutant:
    """A header that says something else."""
    part = next(part for part in base.taken.parts if part.kind == "header")
    old = base.data[part.start : part.end]
    message = hbase_pb2.WALHeader.FromString(old)
    name = rng.choice([field.name for field in message.DESCRIPTOR.fields])
    value = getattr(message, name)
    if isinstance(value, bool):
        setattr(message, name, not value)
    elif isinstance(value, int):
        setattr(message, name, rng.randrange(12))
    elif rng.random() < 0.3:
        message.ClearField(name)
    elif isinstance(value, str):
        setattr(message, name, value[: rng.randrange(len(value) + 1)] + rng.choice(("", "X")))
    elif value:
        wrong = bytearray(value)
        wrong[rng.randrange(len(wrong))] ^= rng.randrange(1, 256)
        setattr(message, name, bytes(wrong))
    try:
        new = message.SerializeToString()
        hbase_pb2.WALHeader.FromString(new)
    except DecodeError:
        new = old[:-1]
    size = next(one for one in base.taken.parts if one.end == part.start)
    length = varint(len(new) if rng.random() < 0.8 else rng.choice(NUMBERS))
    return put(base, f"header's {name}", size.start, part.end, length + new)


def trailer(base: Base, others: Sequence[Base], rng: random.Random) -> Mutant:
    end = base.taken.end
    size = rng.choice((*NUMBERS[:8], (1 << 31) - 1, (1 << 31), (1 << 32) - 1, rng.randrange(len(base.data))))
    new = rng.choice(
        (
            b"",
            EMPTY_TRAILER * 2,
            EMPTY_TRAILER + b"\0" * rng.randrange(1, 9),
            EMPTY_TRAILER[: rng.randrange(9)],
            EMPTY_TRAILER[rng.randrange(9) :],
            (size % (1 << 32)).to_bytes(4, "big") + b"LAWP",
            rng.randbytes(rng.randrange(12)) + EMPTY_TRAILER,
            b"\x0a\x03abc\0\0\0\x05LAWP",
        )
    )
    if rng.random() < 0.3:
        at = rng.choice(base.taken.entries).start
        return put(base, "trailer", at, at, new)
    return Mutant(f"trailer {new.hex()}", base.data[:end] + new, end, end + len(new))


def spliced(base: Base, others: Sequence[Base], rng: random.Random) -> Mutant:
    """The first half of one file, the second of another."""
    other = rng.choice(others)
    first = rng.choice((rng.choice(base.taken.entries).end, rng.choice(base.taken.parts).end, base.taken.first))
    second = rng.choice((rng.choice(other.taken.entries).start, rng.choice(other.taken.parts).start))
    tail = other.data[second : second + rng.choice((500, 4000, 1 << 20))]
    if len(tail) < 9 or rng.random() < 0.5:
        tail += EMPTY_TRAILER
    data = base.data[:first] + tail
    return Mutant(f"{first} bytes, then {len(tail)} of {other.name} from {second}", data, first, len(data))


def moved(base: Base, others: Sequence[Base], rng: random.Random) -> Mutant:
    """A part or an entry that is left out, comes twice or comes somewhere else."""
    entries: list[Part] = [Part("entry", one.start, one.end) for one in base.taken.entries]
    chosen = entries if rng.random() < 0.5 else base.taken.parts
    part, to = rng.choice(chosen), rng.choice(chosen)
    bytes_of = base.data[part.start : part.end]
    what = rng.randrange(3)
    if what == 0:
        return put(base, f"no {part.kind}", part.start, part.end, b"")
    if what == 1:
        return put(base, f"{part.kind} twice", part.end, part.end, bytes_of)
    return put(base, f"{part.kind} of {part.start}", to.start, to.end, bytes_of)


def overwritten(base: Base, others: Sequence[Base], rng: random.Random) -> Mutant:
    """Noise, zeros or ones in place of something, or between two things."""
    part = rng.choice(base.taken.parts)
    size = rng.choice((part.end - part.start, 1, 4, 16, 300))
    new = rng.choice((rng.randbytes(size), bytes(size), b"\xff" * size))
    end = part.start if rng.random() < 0.3 else min(len(base.data), part.start + size)
    return put(base, f"{part.kind} overwritten", part.start, end, new)


def enlarged(base: Base, others: Sequence[Base], rng: random.Random) -> Mutant:
    """A length that takes in what comes after it, in a file without trailer."""
    base = Base(base.name, base.data[: base.taken.end], base.taken)
    later = [one for one in base.taken.entries if one.cells][-3:]
    places = [part for part in base.taken.parts if part.end <= later[-1].start] if later else []
    numbers = [part for part in places if part.kind == "varint" and part.start >= base.taken.first]
    lengths = [  # of a plain cell and of its value
        (one, other)
        for one, middle, other in zip(places, places[1:], places[2:], strict=False)
        if {one.kind, middle.kind, other.kind} == {"int32"} and one.end + 4 == other.start
    ]
    more = rng.choice((300, 10_000, 1 << 20))
    if lengths and rng.random() < 0.7:
        one, other = rng.choice(lengths)
        new = bytearray(base.data[one.start : other.end])
        for at in (0, 8):
            new[at : at + 4] = (int.from_bytes(new[at : at + 4], "big") + more).to_bytes(4, "big")
        found = put(base, "enlarged", one.start, other.end, bytes(new))
    elif numbers:
        part = rng.choice(numbers)
        found = put(base, "enlarged", part.start, part.end, varint(value_of(base.data[part.start : part.end]) + more))
    else:
        return number(base, others, rng)
    return replace(found, shift=len(found.data) - len(base.data))


def appended(base: Base, others: Sequence[Base], rng: random.Random) -> Mutant:
    """More bytes in a compressed value, or in its first chunk, whose lengths say so."""
    pairs = [
        (size, value)
        for size, value in zip(base.taken.parts, base.taken.parts[1:], strict=False)
        if (size.kind, value.kind, size.end) == ("varint", "bytes", value.start)
        and value_of(base.data[size.start : size.end]) == value.end - value.start
    ]
    if not pairs:
        return number(base, others, rng)
    size, part = rng.choice(pairs)
    value = base.data[part.start : part.end]
    extra = rng.choice((b"\0", b"junk", b"\x50\x2a\x4d\x18\x03\0\0\0abc", value, value[8:], rng.randbytes(20)))
    extra += rng.choice((b"", value[-4:]))
    if rng.random() < 0.6 and int.from_bytes(value[4:8], "big") == len(value) - 8:
        value = value[:4] + (len(value) - 8 + len(extra)).to_bytes(4, "big") + value[8:]
    return put(base, "appended", size.start, part.end, varint(len(value + extra)) + value + extra)


Kind = Callable[[Base, Sequence[Base], random.Random], Mutant]
KINDS: Sequence[Kind] = (
    truncated,
    number,
    number,
    index,
    header,
    trailer,
    spliced,
    moved,
    overwritten,
    enlarged,
    appended,
)
