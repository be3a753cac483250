"""Gives ranks other parts of a state than those that were kept in memory, as other ranks had it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

from torsh_runtime.checkpoint.ranks import Ranks
from torsh_runtime.elastic.fetching import Fetching, landings_of
from torsh_runtime.elastic.neighbours import packed, unpacked
from torsh_runtime.elastic.offers import Offers
from torsh_runtime.elastic.parts import Part, WholeCommit
from torsh_runtime.elastic.versions import GRADIENTS, STATE, Key, Version, manifest_of
from torsh_runtime.layout import ShardedTensor


class Way(NamedTuple):
    """Tells which versions of all former ranks have the state of a step together."""

    states: Sequence[Key]
    gradients: Sequence[Key]
    """Empty, or those of a step that leads to the wanted state."""


def way_to(number: int, keys: Set[Key]) -> Way | None:
    """Return how the state before step `number` is had from what all memories have, or None."""
    for world in sorted({each.world for each in keys}):

        def of_all(kind: int, step: int, world: int = world) -> list[Key]:
            return [Key(kind, owner, step, world) for owner in range(world)]

        before = number - 1
        ways = (
            Way(of_all(STATE, number), ()),
            Way(of_all(STATE, before), of_all(GRADIENTS, before)),
        )
        for way in ways:
            if keys >= {*way.states, *way.gradients}:
                return way
    return None


class WholeVersion:
    """Represents versions of all former ranks as one state, whose bytes other ranks give. All ranks
    make the same calls in the same order.

    Attributes: source (what there is).
    """

    def __init__(
        self, ranks: Ranks, offers: Offers, own: Mapping[Key, Version], keys: Sequence[Key]
    ) -> None:
        """Exchange descriptions of these versions, of which this rank has its own.

        Raises CheckpointError on all ranks if they do not fit together.
        """
        given = [[*key, packed(own[key].commit).decode()] for key in keys if offers.gives(key)]
        told = [each for text in ranks.texts(json.dumps(given)) for each in json.loads(text)]
        texts = {Key(*key): text for *key, text in told}
        manifests = [manifest_of(unpacked(texts[key].encode())) for key in keys]
        names = {name for each in manifests for name in each.tensors}
        self.source = WholeCommit(
            keys[0].number,
            [
                Part(("", ""), len(names), each, each.values, each.aliases, True)
                for each in manifests
            ],
        )
        files = {key: next(iter(each.files)) for key, each in zip(keys, manifests, strict=True)}
        here = {file: own[key].content for key, file in files.items() if key in own}
        holders = {file: offers.holders(key) for key, file in files.items()}
        sizes = {name: each.num_bytes for name, each in self.source.manifest.files.items()}
        self._fetching = Fetching(ranks, here, sizes, holders)

    def read(self, reads: Sequence[tuple[str, ShardedTensor]]) -> None:
        """Read pieces of tensors, by name. All ranks call it, each for its own."""
        landings, requests = landings_of(self.source, reads)
        self._fetching.fetch(requests)
        for each in landings:
            each.finish()
