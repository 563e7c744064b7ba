"""Data sets in many files, made for tests: Parquet as Hugging Face writes it, npz files."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from gswgan.data import ImageData


def png(image: np.ndarray) -> bytes:
    """One picture [c, h, w] as an encoded file."""
    content = io.BytesIO()
    Image.fromarray(image[0] if len(image) == 1 else np.moveaxis(image, 0, 2)).save(content, "PNG")
    return content.getvalue()


def write_parquet(
    folder: Path, data: ImageData, *, files: int = 3, group: int = 20, names: bool = True,
    damaged: Sequence[int] = (), labels: Sequence[int | None] | None = None, split: str = "train",
) -> Path:  # fmt: skip
    """`files` files with row groups of `group` records; the images of `damaged` records are no images."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True, exist_ok=True)
    stored: list[bytes] = [png(image) for image in data.images]
    for index in damaged:
        stored[index] = b"\x89PNG no image"
    known = labels if labels is not None else None if data.labels is None else data.labels.tolist()
    for number, chosen in enumerate(np.array_split(np.arange(data.n), files)):
        structs = [{"bytes": stored[index], "path": f"{index}.png"} for index in chosen]
        columns = {"image": pa.array(structs, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))}
        features: dict[str, object] = {"image": {"_type": "Image"}}
        if known is not None:
            columns["label"] = pa.array([known[index] for index in chosen], pa.int64())
            features["label"] = {"names": list(data.class_names), "_type": "ClassLabel"}
        table = pa.table(columns)
        if names:
            table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
        pq.write_table(table, folder / f"{split}-{number:05}-of-{files:05}.parquet", row_group_size=group)
    return folder


def write_npz(folder: Path, data: ImageData, *, files: int = 3) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number, chosen in enumerate(np.array_split(np.arange(data.n), files)):
        images = np.moveaxis(data.images[chosen], 1, 3)
        np.savez(folder / f"part-{number:03}.npz", images=images, labels=data.labels[chosen])
    return folder
