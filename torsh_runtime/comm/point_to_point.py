"""Provides the messages from one rank of a group to a different one, as methods of the group."""

from __future__ import annotations

from torsh_runtime.backends.base import Envelope
from torsh_runtime.backends.work import Work
from torsh_runtime.comm.members import Members


class PointToPoint(Members):
    """Provides the messages between ranks of a group; see ProcessGroup."""

    _timeout: float

    def send(self, tensor: object, dst: int, tag: int = 0, async_op: bool = False) -> Work:
        """Send `tensor` to rank `dst`.

        Messages with the same tag arrive in order. Up to 64 KiB of them leave before anybody
        receives them; beyond that the send completes only when they are being received.

        Args:
            tensor: The array to send.
            dst: The receiver, a different rank of the group.
            tag: A number that the receiver names, too, from 0 on; with the nccl backend only 0.
            async_op: Whether to return a Work at once. The array must not change until that is
                done.

        Returns:
            A Work, which is complete already unless `async_op` is given.

        Raises:
            TypeError: If `tensor` is no array.
            ValueError: If `dst` is this rank itself or not in the group, or if there is no such
                tag.
            ConfigError: If this process is not in the group.
            CommError: If the operation fails: PeerLost, CommTimeout, CommMismatch or CommAborted,
                from this call or from the Work's `wait()`. The group cannot be used afterwards.

        Example:
            ```python
            if group.rank == 0:
                group.send(np.arange(4.0), dst=1)
            elif group.rank == 1:
                group.recv(values := np.empty(4), src=0)
            ```
        """
        return self._backend.send(tensor, self._other(dst, "dst"), tag, self._timeout, async_op)

    def recv(
        self, tensor: object, src: int | None = None, tag: int | None = 0, async_op: bool = False
    ) -> Work:
        """Receive a message from rank `src`, or from any rank, into `tensor`.

        Args:
            tensor: The array to fill, with the size and dtype of the message.
            src: The sender, a different rank of the group; None is any. Work.source then reports
                it.
            tag: The message's tag. None is any, with the native backend only; Work.tag then reports
                it.
            async_op: Whether to return a Work at once. The array belongs to it until it is done.

        Returns:
            A Work, which is complete already unless `async_op` is given.

        Raises:
            TypeError: If `tensor` is no array.
            ValueError: If `src` is this rank itself or not in the group, if there is no such tag,
                or if the backend cannot receive from any rank or with any tag.
            ConfigError: If this process is not in the group.
            CommError: If the operation fails: PeerLost, CommTimeout, CommMismatch or CommAborted,
                from this call or from the Work's `wait()`. The group cannot be used afterwards.

        Example:
            ```python
            values = np.empty(4)
            sender = group.recv(values).source  # from any rank
            ```
        """
        work = self._backend.recv(tensor, self._source(src), tag, self._timeout, async_op)
        return work.giving((tensor,)) if async_op else work

    def probe(
        self, src: int | None = None, tag: int | None = 0, wait: bool = True
    ) -> Envelope | None:
        """Return the envelope of the message that recv would get, and leave the message in place.

        A different thread may receive that message first.

        Args:
            src: The sender, a different rank of the group; None is any.
            tag: The message's tag; None is any.
            wait: Whether to wait for a message, for at most the group's timeout, if none has come.

        Returns:
            The source (a rank of this group), tag and size in bytes; None without `wait` if no such
                message has come.

        Raises:
            ValueError: If `src` is this rank itself or not in the group, or if the backend cannot
                look for such messages.
            ConfigError: If this process is not in the group.
            CommError: If the operation fails: PeerLost, CommTimeout, CommMismatch or CommAborted.
                The group cannot be used afterwards.

        Example:
            ```python
            found = group.probe()
            values = np.empty(found.num_bytes // 8)
            group.recv(values, found.source, found.tag)
            ```
        """
        return self._backend.probe(self._source(src), tag, self._timeout, wait)

    def send_object(self, content: object, dst: int, tag: int, async_op: bool = False) -> Work:
        """Send bytes for recv_object; they never meet messages of `send`.

        Args:
            content: The bytes, an array of uint8.
            dst: The receiver, a different rank of the group.
            tag: A number from 0 to 2**64 - 1, which the receiver names, too.
            async_op: Whether to return a Work at once.

        Returns:
            A Work, which is complete already unless `async_op` is given.

        Raises:
            ValueError: If `dst` is this rank itself or not in the group, or if the backend carries
                no objects.
            ConfigError: If this process is not in the group.
            CommError: If the operation fails: PeerLost, CommTimeout, CommMismatch or CommAborted,
                from this call or from the Work's `wait()`. The group cannot be used afterwards.
        """
        peer = self._other(dst, "dst")
        return self._backend.send_object(content, peer, tag, self._timeout, async_op)

    def recv_object(self, src: int | None, tag: int, async_op: bool = False) -> Work:
        """Receive bytes, however many, from rank `src`, or from any if that is None.

        Args:
            src: The sender, a different rank of the group, or None.
            tag: The tag that the sender gave.
            async_op: Whether to return a Work at once.

        Returns:
            A Work, whose `content` is the bytes (uint8, shape (bytes,)) and whose `source` is the
                sender.

        Raises:
            ValueError: If `src` is this rank itself or not in the group, or if the backend carries
                no objects.
            ConfigError: If this process is not in the group.
            CommError: If the operation fails: PeerLost, CommTimeout, CommMismatch or CommAborted,
                from this call or from the Work's `wait()`. The group cannot be used afterwards.
        """
        return self._backend.recv_object(self._source(src), tag, self._timeout, async_op)
