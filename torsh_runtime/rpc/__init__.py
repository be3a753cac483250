"""Remote calls: torch.distributed.rpc's names, over connections of torsh_runtime's own.

import torsh_runtime as tr

tr.rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
tr.rpc.rpc_sync("worker1", numpy.add, args=(array, 1))
tr.rpc.shutdown()
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from torsh_runtime.backends.future import Future as Future
from torsh_runtime.rpc import functions as functions
from torsh_runtime.rpc.calls import (
    get_rpc_timeout as get_rpc_timeout,
)
from torsh_runtime.rpc.calls import (
    get_worker_info as get_worker_info,
)
from torsh_runtime.rpc.calls import (
    get_worker_infos as get_worker_infos,
)
from torsh_runtime.rpc.calls import (
    init_rpc as init_rpc,
)
from torsh_runtime.rpc.calls import (
    is_available as is_available,
)
from torsh_runtime.rpc.calls import (
    is_initialized as is_initialized,
)
from torsh_runtime.rpc.calls import (
    remote as remote,
)
from torsh_runtime.rpc.calls import (
    rpc_async as rpc_async,
)
from torsh_runtime.rpc.calls import (
    rpc_sync as rpc_sync,
)
from torsh_runtime.rpc.calls import (
    shutdown as shutdown,
)
from torsh_runtime.rpc.executor import Executor as Executor
from torsh_runtime.rpc.failures import (
    CallRefused as CallRefused,
)
from torsh_runtime.rpc.failures import (
    CallTimeout as CallTimeout,
)
from torsh_runtime.rpc.failures import (
    RemoteError as RemoteError,
)
from torsh_runtime.rpc.failures import (
    RemoteTraceback as RemoteTraceback,
)
from torsh_runtime.rpc.functions import register as register
from torsh_runtime.rpc.futures import collect_all as collect_all
from torsh_runtime.rpc.futures import wait_all as wait_all
from torsh_runtime.rpc.options import (
    DEFAULT_NUM_WORKER_THREADS as DEFAULT_NUM_WORKER_THREADS,
)
from torsh_runtime.rpc.options import (
    UNSET_RPC_TIMEOUT as UNSET_RPC_TIMEOUT,
)
from torsh_runtime.rpc.options import (
    BackendType as BackendType,
)
from torsh_runtime.rpc.options import (
    RpcBackendOptions as RpcBackendOptions,
)
from torsh_runtime.rpc.options import (
    WorkerInfo as WorkerInfo,
)
from torsh_runtime.rpc.rref import RRef as RRef

if TYPE_CHECKING:
    from torsh_runtime.rpc.publishing import (
        Subscription as Subscription,
    )
    from torsh_runtime.rpc.publishing import (
        Weights as Weights,
    )
    from torsh_runtime.rpc.publishing import (
        publish as publish,
    )
    from torsh_runtime.rpc.publishing import (
        subscribe as subscribe,
    )

_OF_PUBLISHING = ("Subscription", "Weights", "publish", "subscribe")


def __getattr__(name: str) -> Any:
    """Load the names of torsh_runtime.rpc.publishing when they are first used, since that module
    needs what checkpoints need."""
    if name not in _OF_PUBLISHING:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("torsh_runtime.rpc.publishing"), name)


TensorPipeRpcBackendOptions = RpcBackendOptions
"""torch's name of the options."""
PyRRef = RRef
"""torch's name of RRef in annotations."""
