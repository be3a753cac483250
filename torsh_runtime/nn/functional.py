"""Provides the functions behind the layers, under torch.nn.functional's names."""

from torsh_runtime.nn.activations import dropout, gelu, log_softmax, relu, silu, softmax
from torsh_runtime.nn.attention import scaled_dot_product_attention
from torsh_runtime.nn.convolution import conv2d
from torsh_runtime.nn.elementwise import sigmoid, tanh
from torsh_runtime.nn.linear_algebra import linear
from torsh_runtime.nn.lookup import embedding
from torsh_runtime.nn.losses import cross_entropy, mse_loss
from torsh_runtime.nn.normalisation import layer_norm, rms_norm
from torsh_runtime.nn.pooling import avg_pool2d, max_pool2d

__all__ = [
    "avg_pool2d",
    "conv2d",
    "cross_entropy",
    "dropout",
    "embedding",
    "gelu",
    "layer_norm",
    "linear",
    "log_softmax",
    "max_pool2d",
    "mse_loss",
    "relu",
    "rms_norm",
    "scaled_dot_product_attention",
    "sigmoid",
    "silu",
    "softmax",
    "tanh",
]
