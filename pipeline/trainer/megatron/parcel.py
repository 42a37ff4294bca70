"""Objects with large arrays as messages of bounded size.

The wire form is pickle protocol 5 with its buffers out of band: one small pickle of everything but the arrays' contents, and each
array's bytes as they lie in memory. Pickle and arrays lie one after the other, each at a multiple of ALIGNMENT, in a space that the
Manifest describes; a message is the next `message_bytes` of it, the last one what is left. So nothing is copied to be sent but the
message that is being sent, and what arrives is written where it stays: the arrays that are unpacked are views of that space.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 64  # a cache line; no dtype needs more
MESSAGE_BYTES = 16 << 20  # enough for any network's speed; both ends hold one message beside what it is a part of


@dataclass(frozen=True)
class Manifest:
    """What the receiver has to know first. sizes: bytes of the pickle and of each array, in order."""

    sizes: tuple[int, ...]
    message_bytes: int

    @property
    def starts(self) -> list[int]:
        """Where the pickle and each array begin, and where the space ends."""
        starts = [0]
        for size in self.sizes:
            starts.append(starts[-1] + size + -size % ALIGNMENT)
        return starts


@dataclass(frozen=True)
class Parcel:
    """Objects to be sent. contents: their pickle and the bytes of each of their arrays, which stay where they are."""

    manifest: Manifest
    contents: tuple[memoryview, ...]

    @classmethod
    def of(cls, objects: Any, message_bytes: int = MESSAGE_BYTES) -> Parcel:
        """objects: with contiguous arrays; others are copied into the pickle."""
        buffers: list[pickle.PickleBuffer] = []
        skeleton = pickle.dumps(objects, protocol=5, buffer_callback=buffers.append)
        contents = (memoryview(skeleton), *(buffer.raw() for buffer in buffers))
        return cls(Manifest(tuple(content.nbytes for content in contents), message_bytes), contents)

    def messages(self) -> Iterator[bytearray]:
        message = bytearray()
        for content in self.contents:
            for piece in (content, bytes(-content.nbytes % ALIGNMENT)):
                taken = 0
                while taken < len(piece):
                    room = self.manifest.message_bytes - len(message)
                    message += piece[taken : taken + room]
                    taken += room
                    if len(message) == self.manifest.message_bytes:
                        yield message
                        message = bytearray()
        if message:
            yield message


@dataclass(frozen=True)
class Arrival:
    """A parcel that is arriving. space: uint8, what its messages fill."""

    manifest: Manifest
    space: NDArray[np.uint8]

    @classmethod
    def of(cls, manifest: Manifest) -> Arrival:
        return cls(manifest, np.empty(manifest.starts[-1], dtype=np.uint8))

    def messages(self) -> Iterator[NDArray[np.uint8]]:
        """Where each message belongs, in order."""
        for start in range(0, len(self.space), self.manifest.message_bytes):
            yield self.space[start : start + self.manifest.message_bytes]

    def unpack(self) -> Any:
        """The objects, once all messages are there; their arrays are parts of `space`."""
        starts = self.manifest.starts[:-1]
        skeleton, *buffers = (
            self.space.data[start : start + size] for start, size in zip(starts, self.manifest.sizes, strict=True)
        )
        return pickle.loads(skeleton, buffers=buffers)
