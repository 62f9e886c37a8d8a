"""Numba kernels that cut entries into runs of cells of one row, and write each run as a message of JSON.

docs/streams.md describes the message. The cells are checked ones (`WalReader`), uint8 buffers, positions int64.
"""

from __future__ import annotations

import numpy as np

from walferry.formats.changes import CHANGE_TYPES, FIRST_SNAPSHOT_INDEX, INCARNATION_BITS, SEQUENCE_NUMBER_BITS
from walferry.formats.kernels import (
    FAMILY_LENGTH,
    FAMILY_START,
    QUALIFIER_LENGTH,
    QUALIFIER_START,
    TAGS_LENGTH,
    TAGS_START,
    TIMESTAMP,
    TYPE,
    VALUE_LENGTH,
    VALUE_START,
    copy_bytes,
    int16_at,
    int32_at,
    kernel,
    locate_cell,
    same_bytes,
)
from walferry.streams.message._json_kernels import MOST_DIGITS, TEXT, bytes_bound, put_bytes, put_number

RUN_FIELDS = 7
PICK, INDEX, START, CELLS, FIRST, REASON, DETAIL = range(RUN_FIELDS)
"""of a run: number of its entry among the picked ones; its number in that entry; where its first cell is; number of its
cells; the number of its first one among all picked cells; why it is refused, with a number that says more"""

FINE, UNKNOWN_TYPE, WIDE_INCARNATION, WIDE_SEQUENCE_NUMBER, WIDE_INDEX, NOT_DECODED = range(6)

PUT, DELETE_VERSION, DELETE_COLUMN = 4, 8, 12  # CellType
_NAMES = {int(kind): name.encode() for kind, name in CHANGE_TYPES.items()}
_KINDS = [b',{"kind":"%s","family":' % _NAMES[number] if number in _NAMES else b"" for number in range(256)]
_KIND_TEXTS = np.frombuffer(b"".join(_KINDS), np.uint8)
_KIND_ENDS = np.cumsum(np.array([len(text) for text in _KINDS]))
"""how a cell of each type begins: nothing for types that HBase does not store"""

_WRITE_TIME = np.frombuffer(b',"write_time":', np.uint8)
_QUALIFIER = np.frombuffer(b',"qualifier":', np.uint8)
_TIMESTAMP = np.frombuffer(b',"timestamp":', np.uint8)
_VALUE = np.frombuffer(b',"value":', np.uint8)
_TAGS = np.frombuffer(b',"tags":[', np.uint8)
_TAG_TYPE = np.frombuffer(b',{"type":', np.uint8)
_CELLS = np.frombuffer(b'],"cells":[', np.uint8)
_COMMA, _OPEN, _CLOSE, _OPEN_LIST, _CLOSE_LIST = 0x2C, 0x7B, 0x7D, 0x5B, 0x5D
CELL_BOUND = max(len(text) for text in _KINDS) + len(_QUALIFIER) + len(_TIMESTAMP) + len(_VALUE) + MOST_DIGITS + 1
TAG_BOUND = len(_TAG_TYPE) + 3 + len(_VALUE) + 1
_EXACT = np.frombuffer(b'],"image":{"exact":true,"cells":[', np.uint8)
_UNREAD = np.frombuffer(b'],"image":{"exact":false}', np.uint8)
_INEXACT = np.frombuffer(b'],"image":{"exact":false,"cells":[', np.uint8)
MESSAGE_BOUND = len(_WRITE_TIME) + len(_CELLS) + len(_INEXACT) + 4 * MOST_DIGITS + 10


@kernel()
def before(data, start, length, other, other_start, other_length):  # type: ignore[no-untyped-def]
    """Whether some bytes sort before others."""
    for i in range(min(length, other_length)):
        if data[start + i] != other[other_start + i]:
            return data[start + i] < other[other_start + i]
    return length < other_length


@kernel()
def is_name(buffer, start, length, names, at, end):  # type: ignore[no-untyped-def]
    if length != end - at:
        return False
    for i in range(length):  # noqa: SIM110 (numba has no all() over generators)
        if buffer[start + i] != names[at + i]:
            return False
    return True


@kernel()
def takes_row(buffer, cell, selected):  # type: ignore[no-untyped-def]
    """Whether the row of the cell is in one of the selected ranges; an empty stop is the end of the table."""
    names, _, _, ranges, _ = selected
    start, length = cell + 14, int16_at(buffer, cell + 12)
    for i in range(len(ranges)):
        first, stop, end = ranges[i]
        if not before(buffer, start, length, names, first, stop - first) and (
            stop == end or before(buffer, start, length, names, stop, end - stop)
        ):
            return True
    return len(ranges) == 0


@kernel()
def takes_cell(buffer, cell, selected):  # type: ignore[no-untyped-def]
    """Whether a located cell is of a selected family or column. What deletes a family deletes its columns, too."""
    names, families, columns, _, without = selected
    family, length = cell[FAMILY_START, 0], cell[FAMILY_LENGTH, 0]
    for i in range(len(without)):
        if is_name(buffer, family, length, names, without[i, 0], without[i, 1]):
            return False
    if len(families) == 0 and len(columns) == 0:
        return True
    for i in range(len(families)):
        if is_name(buffer, family, length, names, families[i, 0], families[i, 1]):
            return True
    kind = cell[TYPE, 0]
    whole = kind != PUT and kind != DELETE_VERSION and kind != DELETE_COLUMN
    for i in range(len(columns)):
        start, qualifier, end = columns[i]
        if is_name(buffer, family, length, names, start, qualifier) and (
            whole or is_name(buffer, cell[QUALIFIER_START, 0], cell[QUALIFIER_LENGTH, 0], names, qualifier, end)
        ):
            return True
    return False


@kernel()
def known_type(kind):  # type: ignore[no-untyped-def]
    return kind > 0 and _KIND_ENDS[kind] > _KIND_ENDS[kind - 1]


@kernel()
def cell_bound(buffer, cell, form, decoding):  # type: ignore[no-untyped-def]
    """At most so many bytes does a located cell take in a message, without what a decoder made of its value."""
    size = np.int64(CELL_BOUND)
    size += bytes_bound(TEXT, buffer, cell[FAMILY_START, 0], cell[FAMILY_LENGTH, 0])
    size += bytes_bound(form, buffer, cell[QUALIFIER_START, 0], cell[QUALIFIER_LENGTH, 0])
    if cell[TYPE, 0] == PUT and not decoding:
        size += bytes_bound(form, buffer, cell[VALUE_START, 0], cell[VALUE_LENGTH, 0])
    if cell[TAGS_LENGTH, 0] > 0:
        size += len(_TAGS) + 1
        tag = cell[TAGS_START, 0]
        end = tag + cell[TAGS_LENGTH, 0]
        while tag < end:
            length = np.int64(buffer[tag]) << 8 | np.int64(buffer[tag + 1])
            size += TAG_BOUND + bytes_bound(form, buffer, tag + 3, length - 1)
            tag += 2 + length
    return size


@kernel()
def refusal(incarnation, sequence_number, index):  # type: ignore[no-untyped-def]
    """Which part of a position does not fit into a version, and that part."""
    if incarnation < 0 or incarnation >= 1 << INCARNATION_BITS:
        return WIDE_INCARNATION, incarnation
    if sequence_number < 0 or sequence_number >= 1 << SEQUENCE_NUMBER_BITS:
        return WIDE_SEQUENCE_NUMBER, sequence_number
    if index >= FIRST_SNAPSHOT_INDEX:
        return WIDE_INDEX, index
    return FINE, np.int64(0)


@kernel()
def find_runs(buffer, starts, counts, numbers, selected, form, decoding, cell, runs, chosen):  # type: ignore[no-untyped-def]
    """Fill in int64[n, RUN_FIELDS] for each run with a selected cell, and uint8[cells]: which cells are selected.

    `numbers` are the picked entries' incarnations and sequence numbers, `cell` is int64[CELL_FIELDS, 1] for one cell.
    Returns how many runs there are, and the most bytes of keys and of values, without what is the same in all messages
    of an entry.
    """
    incarnations, sequence_numbers = numbers
    kept = 0
    number = np.int64(0)
    keys = np.int64(0)
    values = np.int64(0)
    for pick in range(len(starts)):
        at = starts[pick]
        last = number + counts[pick]
        index = np.int64(0)
        while number < last:
            run, first = at, number
            row, row_length = run + 14, int16_at(buffer, run + 12)
            taken = takes_row(buffer, run, selected)
            any_taken = False
            size = np.int64(0)
            reason, detail = refusal(np.int64(incarnations[pick]), sequence_numbers[pick], index)
            while number < last and (
                number == first or same_bytes(buffer, row, row_length, at + 14, int16_at(buffer, at + 12))
            ):
                if taken:
                    after = locate_cell(buffer, at, cell, 0)
                    if takes_cell(buffer, cell, selected):
                        any_taken = True
                        chosen[number] = 1
                        size += cell_bound(buffer, cell, form, decoding)
                        if reason == FINE and not known_type(cell[TYPE, 0]):
                            reason, detail = UNKNOWN_TYPE, cell[TYPE, 0]
                    at = after
                else:
                    at += 4 + int32_at(buffer, at)
                number += 1
            if any_taken:
                fields = runs[kept]
                fields[PICK] = pick
                fields[INDEX] = index
                fields[START] = run
                fields[CELLS] = number - first
                fields[FIRST] = first
                fields[REASON] = reason
                fields[DETAIL] = detail
                kept += 1
                row_bound = bytes_bound(form, buffer, row, row_length)
                keys += row_bound + 1
                if reason == FINE:
                    values += size + row_bound + MESSAGE_BOUND
            index += 1
    return kept, keys, values


@kernel()
def murmur2(data, start, length):  # type: ignore[no-untyped-def]
    """The hash that Kafka's partitioners take of a key, not negative: toPositive(murmur2(key)) of Java's
    org.apache.kafka.common.utils.Utils."""
    factor = np.int64(0x5BD1E995)
    low = np.int64(0xFFFFFFFF)
    found = np.int64(0x9747B28C) ^ length
    for i in range(length // 4):
        at = start + 4 * i
        word = (
            np.int64(data[at])
            | np.int64(data[at + 1]) << 8
            | np.int64(data[at + 2]) << 16
            | np.int64(data[at + 3]) << 24
        )
        word = word * factor & low
        word = (word ^ word >> 24) * factor & low
        found = found * factor & low ^ word
    left = length & 3
    at = start + length - left
    if left > 0:
        for i in range(left - 1, -1, -1):
            found ^= np.int64(data[at + i]) << 8 * i
        found = found * factor & low
    found = (found ^ found >> 13) * factor & low
    return (found ^ found >> 15) & 0x7FFFFFFF


@kernel()
def put_fixed(out, to, texts, pick):  # type: ignore[no-untyped-def]
    """The text of a picked entry, of (bytes, ends, number of the text of each entry)."""
    data, ends, of_entry = texts
    text = of_entry[pick]
    size = ends[text + 1] - ends[text]
    copy_bytes(out, to, data, ends[text], size)
    return to + size


@kernel()
def put_constant(out, to, constant):  # type: ignore[no-untyped-def]
    copy_bytes(out, to, constant, 0, len(constant))
    return to + len(constant)


@kernel()
def put_tags(out, to, buffer, cell, form):  # type: ignore[no-untyped-def]
    to = put_constant(out, to, _TAGS)
    tag = cell[TAGS_START, 0]
    end = tag + cell[TAGS_LENGTH, 0]
    first = True
    while tag < end:
        length = np.int64(buffer[tag]) << 8 | np.int64(buffer[tag + 1])
        skip = 1 if first else 0  # the comma
        copy_bytes(out, to, _TAG_TYPE, skip, len(_TAG_TYPE) - skip)
        to = put_number(out, to + len(_TAG_TYPE) - skip, np.int64(buffer[tag + 2]))
        to = put_constant(out, to, _VALUE)
        to = put_bytes(out, to, form, buffer, tag + 3, length - 1)
        out[to] = _CLOSE
        to += 1
        first = False
        tag += 2 + length
    out[to] = _CLOSE_LIST
    return to + 1


@kernel()
def put_cell(out, to, buffer, cell, form, first, decoded, number):  # type: ignore[no-untyped-def]
    """A located cell of a known type, number `number` of all picked ones; a comma precedes all but the first."""
    kind = cell[TYPE, 0]
    begin = _KIND_ENDS[kind - 1] + (1 if first else 0)
    size = _KIND_ENDS[kind] - begin
    copy_bytes(out, to, _KIND_TEXTS, begin, size)
    to = put_bytes(out, to + size, TEXT, buffer, cell[FAMILY_START, 0], cell[FAMILY_LENGTH, 0])
    to = put_constant(out, to, _QUALIFIER)
    to = put_bytes(out, to, form, buffer, cell[QUALIFIER_START, 0], cell[QUALIFIER_LENGTH, 0])
    to = put_constant(out, to, _TIMESTAMP)
    to = put_number(out, to, cell[TIMESTAMP, 0])
    if kind == PUT:
        to = put_constant(out, to, _VALUE)
        texts, ends = decoded
        if len(ends) > 0:
            size = ends[number + 1] - ends[number]
            copy_bytes(out, to, texts, ends[number], size)
            to += size
        else:
            to = put_bytes(out, to, form, buffer, cell[VALUE_START, 0], cell[VALUE_LENGTH, 0])
    if cell[TAGS_LENGTH, 0] > 0:
        to = put_tags(out, to, buffer, cell, form)
    out[to] = _CLOSE
    return to + 1


@kernel()
def put_image(out, to, images, image):  # type: ignore[no-untyped-def]
    """An image, after the last cell; images: (texts, ends, whether each is exact, whether its row was not read)."""
    texts, ends, exact, unread = images
    if unread[image]:
        return put_constant(out, to, _UNREAD)
    to = put_constant(out, to, _EXACT) if exact[image] else put_constant(out, to, _INEXACT)
    size = ends[image + 1] - ends[image]
    copy_bytes(out, to, texts, ends[image], size)
    out[to + size] = _CLOSE_LIST
    out[to + size + 1] = _CLOSE
    return to + size + 2


@kernel()
def choose_cells(buffer, starts, selected, form, decoding, cell, chosen):  # type: ignore[no-untyped-def]
    """Fill in uint8[n]: which of the cells at these positions are selected. Returns the most bytes that `write_lists`
    writes for them, without what a decoder made of values."""
    size = np.int64(0)
    for i in range(len(starts)):
        locate_cell(buffer, starts[i], cell, 0)
        if takes_cell(buffer, cell, selected):
            chosen[i] = 1
            size += cell_bound(buffer, cell, form, decoding)
    return size


@kernel()
def write_lists(buffer, starts, ends, chosen, form, decoded, cell, out, out_ends):  # type: ignore[no-untyped-def]
    """Write the chosen cells of each run `buffer[starts[i]:ends[i]]`, which are puts, as the elements of a list, and
    fill in int64[n + 1] ends. `chosen` and `decoded`: by number of the cell among those of all runs."""
    to = number = np.int64(0)
    for i in range(len(starts)):
        at = starts[i]
        first = True
        while at < ends[i]:
            at = locate_cell(buffer, at, cell, 0)
            if chosen[number]:
                to = put_cell(out, to, buffer, cell, form, first, decoded, number)
                first = False
            number += 1
        out_ends[i + 1] = to
    return to


@kernel()
def write_messages(buffer, runs, chosen, fixed, numbers, form, decoded, images, cell, keys, values, hashes):  # type: ignore[no-untyped-def]
    """Write the key and the value of each run; a refused one gets an empty value.

    `fixed`: what entries have in common, as (texts, ends, text of each picked entry): what precedes the row in a key,
    and in a value; what follows the write time; what follows the sequence number. `numbers`: incarnation, sequence
    number and write time of each picked entry. `decoded`: what a decoder made of values, as (texts, ends by number of
    the cell), or no ends. `images`: as `put_image` takes them, and the number of each run's image, or no
    numbers. `keys` and `values`: (bytes, int64[n + 1] ends), to be filled in.
    """
    key_heads, value_heads, regions, clusters = fixed
    incarnations, sequence_numbers, write_times = numbers
    shown, image_of = images
    key, key_ends = keys
    out, ends = values
    key_to = to = np.int64(0)
    for i in range(len(runs)):
        run = runs[i]
        pick = run[PICK]
        at = run[START]
        key_begin = key_to
        row_begin = put_fixed(key, key_to, key_heads, pick)
        row_end = put_bytes(key, row_begin, form, buffer, at + 14, int16_at(buffer, at + 12))
        key[row_end] = _CLOSE
        key_to = row_end + 1
        key_ends[i + 1] = key_to
        hashes[i] = murmur2(key, key_begin, key_to - key_begin)
        if run[REASON] != FINE:
            ends[i + 1] = to
            continue
        to = put_fixed(out, to, value_heads, pick)
        copy_bytes(out, to, key, row_begin, row_end - row_begin)
        to = put_constant(out, to + row_end - row_begin, _WRITE_TIME)
        to = put_number(out, to, write_times[pick])
        to = put_fixed(out, to, regions, pick)
        to = put_number(out, to, sequence_numbers[pick])
        to = put_fixed(out, to, clusters, pick)
        to = put_number(out, to, np.int64(incarnations[pick]))
        out[to] = _COMMA
        to = put_number(out, to + 1, sequence_numbers[pick])
        out[to] = _COMMA
        to = put_number(out, to + 1, run[INDEX])
        to = put_constant(out, to, _CELLS)
        first = True
        for c in range(run[FIRST], run[FIRST] + run[CELLS]):
            if chosen[c] == 0:
                at += 4 + int32_at(buffer, at)
                continue
            at = locate_cell(buffer, at, cell, 0)
            to = put_cell(out, to, buffer, cell, form, first, decoded, c)
            first = False
        if len(image_of) > 0:
            to = put_image(out, to, shown, image_of[i])
        else:
            out[to] = _CLOSE_LIST
            to += 1
        out[to] = _CLOSE
        to += 1
        ends[i + 1] = to
    return key_to, to
