"""Ways to damage files and messages at random: bytes, values in JSON, rows of a chain of digests.

A chain is made whole again after a row was changed, so that what stands behind the digest is reached.
"""

from __future__ import annotations

import json
import random
from typing import Any

from gswgan.privacy.ledger import chained_line

HOSTILE = (
    None, True, -1, 0, 2**70, 1e308, float("inf"), float("nan"), "", "x" * 5000, [], {}, [[]], {"a": 1}, "\ud800",
)  # fmt: skip


def damaged(content: bytes, draw: random.Random) -> bytes:
    """A few bytes turned, taken out, put in, doubled or cut off."""
    changed = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        place, size = draw.randint(0, len(changed)), draw.choice((1, 1, 2, 4, 30))
        how = draw.randrange(6)
        if how == 0 and place < len(changed):
            changed[place] ^= 1 << draw.randrange(8)
        elif how == 1:
            del changed[place : place + size]
        elif how == 2:
            changed[place:place] = draw.randbytes(size)
        elif how == 3:
            changed[place : place + size] = draw.choice((b"\0", b"\xff")) * size
        elif how == 4:
            changed[place:place] = changed[max(0, place - size) : place]
        elif draw.random() < 0.2:
            del changed[place:]
    return bytes(changed)


def with_another_value(value: Any, draw: random.Random) -> Any:
    """The JSON with a value somewhere replaced, taken out or doubled."""
    if isinstance(value, (dict, list)) and value and draw.random() < 0.85:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = draw.choice(keys)
        if draw.random() < 0.1:
            kept: Any = value.copy()
            del kept[key]
            return kept
        new = with_another_value(value[key], draw)
        return {**value, key: new} if isinstance(value, dict) else [*value[:key], new, *value[key + 1 :]]
    if isinstance(value, (int, float)) and draw.random() < 0.5:
        return draw.choice((value + 1, -value, value * 1000, str(value)))
    return draw.choice(HOSTILE)


def damaged_json(content: bytes, draw: random.Random) -> bytes:
    if draw.random() < 0.4:
        return damaged(content, draw)
    return json.dumps(with_another_value(json.loads(content), draw)).encode()


def damaged_lines(content: bytes, draw: random.Random) -> bytes:
    """Of a chain: a value in a row, or whole rows, and the chain made again."""
    if draw.random() < 0.3:
        return damaged(content, draw)
    rows = [json.loads(line) for line in content.splitlines()]
    place = draw.randrange(len(rows))
    how = draw.randrange(4)
    if how == 0:
        rows.insert(place, rows[draw.randrange(len(rows))])
    elif how == 1:
        del rows[place]
    else:
        rows[place] = with_another_value(rows[place], draw)
    text, head = "", ""
    for row in rows:
        if not isinstance(row, dict) or "digest" not in row:
            text += json.dumps(row) + "\n"
            continue
        line, head = chained_line({k: v for k, v in row.items() if k not in ("digest", "previous")}, head)
        text += line
    return text.encode()
