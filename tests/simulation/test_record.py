"""What the judges take for said: what the nodes do, too."""

from __future__ import annotations

from simulation.codec import SECRET, Codec
from simulation.record import Record

from torsh_runtime.store.base import Entry, Event
from torsh_runtime.store.signed import sign
from torshrun.rendezvous import rows
from torshrun.rendezvous.epoch import Epoch
from torshrun.rendezvous.rows import EpochRow

RUN_ID = "judged"


def test_a_request_counts_only_if_it_is_signed_in_the_epoch_that_stands() -> None:
    codec = Codec(RUN_ID)
    record, drain = Record(codec, 1, 2), codec.key(rows.WANT_DRAIN + "n0")
    record.lose([Entry(drain, codec.sign(drain, rows.SET), 1, 0)])  # no epoch stands
    assert record.drained == set()
    key, name = codec.key(rows.EPOCH), "0" * 32
    epoch = Epoch(RUN_ID, name, "", SECRET)
    row = rows.encode(EpochRow(name=name, after="", past=(), secret=""))
    codec.turn(Entry(key, sign(epoch.records, key, row, 0), 2, 0))
    record.lose([Entry(drain, rows.SET, 1, 0)])
    assert record.drained == set()
    record._take(Event("put", drain, codec.sign(drain, rows.SET), 3, 0))
    assert record.drained == {"n0"}
    record._take(Event("delete", drain, b"", 4, 0))
    assert record.drained == set()
