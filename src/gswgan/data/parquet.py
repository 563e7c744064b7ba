"""Parquet files: their images, labels and persons by column, a few rows at a time.

They have the layout of image data sets on Hugging Face: a column of encoded images ({bytes, path}, or the bytes alone)
and a column of labels, whose class names stand in the schema.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gswgan.data.parquet_pages import rows_at_a_time
from gswgan.data.readers import reading
from gswgan.errors import DataError, short

WHOLE = "a Parquet file that is whole, with a column of images ({bytes, path}) and, for labels, one of integers"
SAVE = "Write it with the `datasets` library: data.to_parquet(path)."


def opened(path: Path) -> Any:
    """The file, to be used with `with`."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise DataError(
            str(path), "Parquet, and pyarrow is not installed", "the extra `parquet`", "pip install 'gswgan[parquet]'"
        ) from error
    return pyarrow.parquet.ParquetFile(path, pre_buffer=False, buffer_size=2**20)


def image_columns(path: Path, schema: Any) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    """The names of the columns of images and labels, and the class names, by the types and Hugging Face's metadata."""
    import pyarrow.types as is_

    def of_images(kind: Any) -> bool:
        if is_.is_struct(kind):
            return any(field.name == "bytes" and of_images(field.type) for field in kind)
        return is_.is_binary(kind) or is_.is_large_binary(kind)

    images = [field.name for field in schema if of_images(field.type)]
    if len(images) != 1:
        found = f"columns {short(', '.join(schema.names))}, of which {len(images)} with images"
        raise DataError(str(path), found, "one column of images ({bytes, path})", SAVE)
    stated = _stated_names(schema.metadata)
    labels = [name for name in ("label", "labels") if name in schema.names] or list(stated)
    if not labels:
        return (images[0],), None
    if len(labels) > 1 or not is_.is_integer(schema.field(labels[0]).type):
        found = ", ".join(f"{name}: {schema.field(name).type}" for name in labels)
        raise DataError(str(path), short(found), "one column `label` of integers", "Rename or convert it.")
    return (images[0], labels[0]), stated.get(labels[0])


def rows(path: Path, columns: tuple[str, ...], groups: tuple[int, int] | None, most: int) -> Iterator[list[list[Any]]]:
    """Values of these columns of the row groups from and to, at most so many rows at a time: a list for each column."""
    with reading(path, WHOLE), opened(path) as file:
        if missing := sorted(set(columns) - set(file.schema_arrow.names)):
            found = short(", ".join(file.schema_arrow.names), 200)
            raise DataError(str(path), f"columns {found}", f"a column {missing[0]}", "Check the name of the column.")
        chosen = range(*(groups or (0, file.metadata.num_row_groups)))
        size = rows_at_a_time(path, file.metadata, chosen, columns, most)
        for batch in file.iter_batches(batch_size=size, row_groups=chosen, columns=list(columns), use_threads=False):
            yield [batch.column(batch.schema.get_field_index(name)).to_pylist() for name in columns]


def _stated_names(metadata: dict[bytes, bytes] | None) -> dict[str, tuple[str, ...]]:
    """Columns of class labels with their class names."""
    try:
        features = json.loads((metadata or {})[b"huggingface"])["info"]["features"]
        return {
            name: tuple(str(known) for known in feature["names"])
            for name, feature in features.items()
            if feature.get("_type") == "ClassLabel" and feature.get("names")
        }
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
        return {}
