"""Images, where they come from, and how they are divided. Nothing here is private by itself.

Data is validated once, when it is read and before any plan is made. That defines the domain over which
neighbouring data sets are taken: two valid `ImageData` of the same public shape that differ in one record
(or, with `persons`, in the records of one person).
"""

from __future__ import annotations

from gswgan.data.clients import clients, dirichlet_clients, keep_clients
from gswgan.data.dataset import ImageData, make_image_data
from gswgan.data.partition import Partition, PersonPartition, partition, partition_persons
from gswgan.data.read_options import Reading, ReadOptions
from gswgan.data.sources import load_data
from gswgan.data.stream import ImageStream, open_stream

__all__ = [
    "ImageData", "ImageStream", "Partition", "PersonPartition", "ReadOptions", "Reading", "clients",
    "dirichlet_clients", "keep_clients", "load_data", "make_image_data", "open_stream", "partition",
    "partition_persons",
]  # fmt: skip
