"""Weights for readers that come and go.

A worker publishes versions of a state, which is a nested dict of arrays, and any number of others
read them. Within a node there is one copy of a version, in shared memory that the writer has made
and that readers map; a reader of another node fetches by calls which pieces it wants.
"""

from torsh_runtime.rpc.publishing.publications import Publications
from torsh_runtime.rpc.publishing.subscription import Subscription
from torsh_runtime.rpc.publishing.weights import Weights

__all__ = ["Publications", "Subscription", "Weights"]
"""What the rest of tr.rpc uses; programs get them by tr.rpc.publish() and tr.rpc.subscribe()."""
