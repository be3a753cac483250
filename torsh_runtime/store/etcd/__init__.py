"""The Store port over etcd v3, which is imported only where etcd is used."""

from torsh_runtime.store.etcd.config import EtcdConfig
from torsh_runtime.store.etcd.store import EtcdStore, StoreIdentity

__all__ = ["EtcdConfig", "EtcdStore", "StoreIdentity"]
