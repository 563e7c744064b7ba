"""A run whose one release shows no class: it is over, and every command that meets it says so."""

from __future__ import annotations

from gswgan.critics.kernel.critic import nothing_to_see
from gswgan.critics.kernel.embedding import Embedding
from gswgan.run.folder import RunFolder


def check_not_over(folder: RunFolder) -> None:
    """Refuse to resume or to pack a run that ended because all its classes are below their noise."""
    if folder.embedding.exists() and not folder.is_finished and len(Embedding.load(folder.embedding).kept) == 0:
        raise nothing_to_see()
