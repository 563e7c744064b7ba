"""A model as text, as a picture and as HTML for notebooks: its samples and its guarantee, all of them public."""

from __future__ import annotations

import base64
import html
import io
from typing import Any

import numpy as np
from PIL import Image

from gswgan.generators.sampling import grid_of
from gswgan.run.released import ReleasedModel

MAX_ROWS = 20
COLUMNS = 10


def draw_grid(model: ReleasedModel, columns: int = COLUMNS, *, seed: int = 0) -> Image.Image:
    """A row of samples for each class (of at most 20), always the same for a seed."""
    kept = model.kept[:MAX_ROWS]
    images, _ = model.sample(len(kept) * columns, np.repeat(kept, columns), seed=seed)
    first = images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
    return Image.fromarray(grid_of(first, columns))


def as_text(arguments: dict[str, Any], defaults: dict[str, Any], model: ReleasedModel | None, guarantee: str) -> str:
    """The arguments that were given; of a trained model, what it is of and what it guarantees."""
    given = ", ".join(f"{name}={value!r}" for name, value in arguments.items() if value != defaults[name])
    lines = [f"GSWGAN({given})"]
    if model is not None:
        facts = model.plan.facts
        size = f"{facts.image_size}x{facts.image_size}x{facts.channels}"
        lines += [
            f"  data:      {facts.data}: {model.plan.size}, {facts.many_classes} ({facts.names}), {size}",
            f"  guarantee: {guarantee}",
        ]
        if model.left_out:
            lines.append(f"  left out, too rare to be told from the noise: {', '.join(model.left_out)}")
    return "\n".join(lines)


def as_html(text: str, model: ReleasedModel | None) -> str:
    """The same with samples, as one piece of HTML that needs no other file."""
    words = f"<pre>{html.escape(text)}</pre>"
    if model is None:
        return words
    file = io.BytesIO()
    draw_grid(model).save(file, "PNG")
    data = base64.b64encode(file.getvalue()).decode()
    return f'{words}<img alt="synthetic samples, one row per class" src="data:image/png;base64,{data}">'
