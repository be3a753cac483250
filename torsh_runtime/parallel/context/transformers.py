"""context_attention as an attention function of Hugging Face's transformers."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError
from torsh_runtime.parallel.context.attention import Method, context_attention
from torsh_runtime.parallel.groups import group_of

_REFUSED = {
    "softcap": "a cap on scores",
    "s_aux": "attention sinks",
    "position_bias": "a bias by position",
    "head_mask": "a mask of heads",
    "alibi": "a bias by distance",
}
"""What models pass to attention functions, and would be others without."""


def register_context_attention(
    axis: Any, name: str = "torsh_context", method: Method = "ring", length: int | None = None
) -> str:
    """Let models of transformers attend by context_attention(): `model.set_attn_implementation(
    tr.register_context_attention(mesh["cp"]))`. Returns the name.

    axis, method, length: see context_attention(). What it cannot compute is a ConfigError with the
    first batch: sliding windows and chunks that are shorter than the sequence, caps on scores,
    sinks, biases, dropout of weights, and masks, also such of padding.
    """
    function = _Function(group_of(axis), name, method, length)
    import_module("transformers").AttentionInterface.register(name, function)
    masks = import_module("transformers.masking_utils").AttentionMaskInterface
    masks.register(name, function.mask)
    return name


class _Function:
    """What transformers calls."""

    def __init__(self, group: ProcessGroup, name: str, method: Method, length: int | None) -> None:
        self._group, self._name, self._method, self._length = group, name, method, length

    def __call__(
        self,
        module: Any,
        query: Any,
        key: Any,
        value: Any,
        attention_mask: Any,
        scaling: float | None = None,
        dropout: float = 0.0,
        **named: Any,
    ) -> tuple[Any, None]:
        """As transformers' own: (batch, tokens, heads, size), and no weights."""
        where = type(module).__name__
        for option, what in _REFUSED.items():
            if named.get(option) is not None:
                self._refuse(where, f"{what} ({option})")
        if dropout:
            self._refuse(where, f"dropout of weights ({dropout})")
        if attention_mask is not None:
            self._refuse(where, "a mask (attention_mask)")
        self._check_window(where, named.get("sliding_window"), query.shape[2])
        causal = named.get("is_causal")
        causal = getattr(module, "is_causal", True) if causal is None else causal
        attend = partial(context_attention, method=self._method, length=self._length)
        mixed = attend(query, key, value, self._group, causal, scale=scaling)
        return mixed.transpose(1, 2).contiguous(), None

    def mask(self, *_: Any, **named: Any) -> None:
        """None: context_attention() knows what is causal. ConfigError where more is masked."""
        given = named.get("attention_mask")
        if given is not None and not bool(given.all()):
            self._refuse("the model", "padding (attention_mask)")
        own = named.get("q_length", 0)
        self._check_window("the model", named.get("local_size"), int(own))

    def _check_window(self, where: str, window: int | None, own: int) -> None:
        whole = self._length or own * self._group.world_size
        if window is not None and window < whole:
            self._refuse(where, f"a window of {window} of {whole} tokens (sliding_window)")

    def _refuse(self, where: str, what: str) -> None:
        raise ConfigError(
            f"{where} asks for {what}, which context_attention does not compute, so that it would "
            f"be another model: leave {self._name!r} to models without, pad by sequences of equal "
            f"length, and use another attn_implementation without context parallelism here"
        )
