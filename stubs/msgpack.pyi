"""What this project uses of msgpack."""

from typing import Any

class UnpackException(Exception): ...

def packb(o: object) -> bytes: ...
def unpackb(
    packed: bytes | bytearray | memoryview,
    *,
    use_list: bool = ...,
    max_array_len: int = ...,
    max_map_len: int = ...,
    max_ext_len: int = ...,
) -> Any: ...
