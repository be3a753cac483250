"""Options for how data parallelism treats gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torsh_runtime.errors import ConfigError
from torsh_runtime.parallel.ddp.bucket import Hook


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketConfig:
    """Configures data parallelism. Instances are frozen.

    Raises:
        ConfigError: For invalid values, and from the wrapper on all ranks if they differ, except
            that each rank may have its own gradient_as_bucket_view and check_nan.

    Example:
        ```python
        config = tr.BucketConfig(bucket_size_mb=50, gradient_compression="powersgd:4")
        model = tr.DistributedDataParallel(model, config=config)
        ```
    """

    bucket_size_mb: float = 25.0
    """The size of a bucket in MiB. On CPUs a bucket holds no more, but for one gradient that does
    not fit beside the first quarter of it. Smaller ones are made where a model has few bytes and
    communication runs beside the backward pass. On GPUs a bucket is complete when it has as much,
    and the first, of which the communication begins earliest, when it has 1 MiB, unless another
    size is given."""
    gradient_accumulation_steps: int = 1
    """Number of backward passes that add up gradients on each rank before they are averaged.
    Gradients are not divided by it: divide the loss."""
    backward_passes_per_step: int = 1
    """Number of calls of backward() that make one pass, such as 2 for two losses if each reaches
    only some of the parameters."""
    overlap_communication: bool | None = None
    """Average while the backward pass runs. None: between nodes it does; on one node, where both
    want the same processors, only while other ranks are late."""
    gradient_compression: str | Hook | None = None
    """A compressor, or its name, such as "powersgd:4" (torsh_runtime.compression); None: none."""
    find_unused_parameters: bool = False
    """Allow a backward pass to leave parameters without gradients. A parameter that no rank has
    used keeps its gradient as it was."""
    static_graph: bool = False
    """Promise that every backward pass does what the first one did: it uses the same parameters,
    in reentrant checkpoints too, which accumulate a gradient several times."""
    gradient_as_bucket_view: bool = True
    """Parameters' gradients are views of the buckets, which saves a copy of them in memory and
    time. What was kept of them changes with the next pass. torch's default is False."""
    reduce_dtype: str | None = None
    """The dtype that gradients are averaged in, such as "bfloat16", or "float32" for a model in
    bfloat16; None: their own. Another one than theirs rules views out."""
    check_nan: bool = False
    """Raise an error on all ranks if a gradient is not finite. The error names the gradient."""

    def __post_init__(self) -> None:
        if not self.bucket_size_mb > 0:
            raise ConfigError(f"bucket_size_mb={self.bucket_size_mb} has to be more than 0")
        for name in ("gradient_accumulation_steps", "backward_passes_per_step"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} has to be at least 1")

    def agreed(self) -> dict[str, object]:
        """Return the fields that must be equal on all ranks."""
        own = ("gradient_as_bucket_view", "check_nan")
        return {
            **{name: getattr(self, name) for name in self.__slots__ if name not in own},
            "bucket_size_mb": float(self.bucket_size_mb),
            "gradient_compression": name_of(self.gradient_compression),
        }

    @property
    def passes(self) -> int:
        """Return the number of calls of backward() from one averaging to the next."""
        return self.gradient_accumulation_steps * self.backward_passes_per_step


def name_of(hook: str | Hook | None) -> str | None:
    """Return the hook's name without anything specific to this rank, such as its address.
    Compressors compare their options themselves."""
    if hook is None or isinstance(hook, str):
        return hook
    name: str = getattr(hook, "__qualname__", type(hook).__qualname__)
    return name


def fields_of(given: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of BucketConfig that were given by name; raise ConfigError for others."""
    fields = dict(given)
    if "bucket_cap_mb" in fields:
        fields["bucket_size_mb"] = fields.pop("bucket_cap_mb") or BucketConfig().bucket_size_mb
    unknown = sorted(fields.keys() - set(BucketConfig.__dataclass_fields__))
    if unknown:
        raise ConfigError(
            f"DistributedDataParallel has no option {', '.join(unknown)}; it has those of "
            f"BucketConfig: {', '.join(BucketConfig.__dataclass_fields__)}"
        )
    return fields
