"""The Store port over etcd v3: loaded only by those that use etcd."""

from torsh_runtime.store.etcd.config import EtcdConfig
from torsh_runtime.store.etcd.store import EtcdStore, StoreIdentity

__all__ = ["EtcdConfig", "EtcdStore", "StoreIdentity"]
