"""Returns and sets the state of models and optimizers of which ranks have parts, as the functions
of torch.distributed.checkpoint.state_dict do.
"""

from torsh_runtime.checkpoint.state_dicts.getting import (
    get_model_state_dict,
    get_optimizer_state_dict,
    whole_state_dict,
)
from torsh_runtime.checkpoint.state_dicts.options import StateDictOptions
from torsh_runtime.checkpoint.state_dicts.setting import (
    set_model_state_dict,
    set_optimizer_state_dict,
)

__all__ = [
    "StateDictOptions",
    "get_model_state_dict",
    "get_optimizer_state_dict",
    "set_model_state_dict",
    "set_optimizer_state_dict",
    "whole_state_dict",
]
