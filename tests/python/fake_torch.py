# SPDX-License-Identifier: Apache-2.0
"""A substitute in pure Python for the parts of torch that kvcache.transformers uses: strided tensors over bytes. Shapes and strides behave as in
torch; test_python_transformers.py compares the two if torch is installed."""

import itertools
import math


class dtype:
    def __init__(self, name, itemsize):
        self.name, self.itemsize = name, itemsize

    def __repr__(self):
        return f"torch.{self.name}"


uint8, bfloat16, float32, int64 = dtype("uint8", 1), dtype("bfloat16", 2), dtype("float32", 4), dtype("int64", 8)


class device:
    def __init__(self, name):
        name = name.type if isinstance(name, device) else name
        self.type, self.index = name.split(":")[0], None


class Tensor:
    def __init__(self, memory, kind, shape, strides=None, offset=0):
        self.memory, self.dtype, self.shape, self.offset = memory, kind, tuple(shape), offset
        self.strides = tuple(strides) if strides is not None else contiguous(self.shape)
        self.device = device("cpu")

    def element_size(self):
        return self.dtype.itemsize

    def is_contiguous(self):
        return self.strides == contiguous(self.shape)

    def _like(self, shape, strides, offset=None):
        return Tensor(self.memory, self.dtype, shape, strides, self.offset if offset is None else offset)

    def __getitem__(self, index):
        index = index if isinstance(index, tuple) else (index,)
        shape, strides, offset = [], [], self.offset
        for i, (size, stride) in enumerate(zip(self.shape, self.strides)):
            one = index[i] if i < len(index) else slice(None)
            if isinstance(one, int):
                assert -size <= one < size
                offset += (one % size) * stride
                continue
            start, stop, step = one.indices(size)
            assert step == 1
            shape.append(max(0, stop - start))
            strides.append(stride)
            offset += start * stride
        return self._like(shape, strides, offset)

    def view(self, *what):
        assert self.is_contiguous() or isinstance(what[0], dtype)
        if isinstance(what[0], dtype):
            old, new = self.dtype.itemsize, what[0].itemsize
            assert self.strides[-1] == 1 and self.shape[-1] * old % new == 0
            assert all(s * old % new == 0 for s in (*self.strides[:-1], self.offset))
            return Tensor(self.memory, what[0], (*self.shape[:-1], self.shape[-1] * old // new),
                          (*(s * old // new for s in self.strides[:-1]), 1), self.offset * old // new)
        shape = what[0] if isinstance(what[0], tuple) else what
        assert math.prod(shape) == math.prod(self.shape)
        return Tensor(self.memory, self.dtype, shape, None, self.offset)

    def unflatten(self, at, sizes):
        assert math.prod(sizes) == self.shape[at]
        inner = [self.strides[at] * s for s in contiguous(sizes)]
        return self._like((*self.shape[:at], *sizes, *self.shape[at + 1:]), (*self.strides[:at], *inner, *self.strides[at + 1:]))

    def flatten(self, first, last):
        assert (first, last) == (0, 1)
        if self.strides[0] != self.strides[1] * self.shape[1]:
            return self.clone().flatten(first, last)
        return self._like((self.shape[0] * self.shape[1], *self.shape[2:]), self.strides[1:])

    def permute(self, *order):
        return self._like([self.shape[i] for i in order], [self.strides[i] for i in order])

    def transpose(self, a, b):
        order = list(range(len(self.shape)))
        order[a], order[b] = order[b], order[a]
        return self.permute(*order)

    def unsqueeze(self, at):
        assert at == 0
        return self._like((1, *self.shape), (0, *self.strides))

    def _places(self):
        n = self.dtype.itemsize
        for index in itertools.product(*map(range, self.shape)):
            at = (self.offset + sum(i * s for i, s in zip(index, self.strides))) * n
            yield slice(at, at + n)

    def copy_(self, other):
        assert self.shape == other.shape and self.dtype is other.dtype
        for to, source in zip(self._places(), other._places()):
            self.memory[to] = bytes(other.memory[source])
        return self

    def clone(self):
        return empty(self.shape, dtype=self.dtype).copy_(self)

    def to(self, where):
        assert where.type == "cpu"
        return self

    def bytes(self):
        return b"".join(bytes(self.memory[p]) for p in self._places())


def contiguous(shape):
    strides, n = [], 1
    for size in reversed(shape):
        strides.insert(0, n)
        n *= size
    return tuple(strides)


def empty(shape, dtype, device=None):
    shape = shape if isinstance(shape, tuple) else (shape,)
    return Tensor(memoryview(bytearray(math.prod(shape) * dtype.itemsize)), dtype, shape)


def frombuffer(buffer, dtype):
    memory = memoryview(buffer).cast("B")
    return Tensor(memory, dtype, (memory.nbytes // dtype.itemsize,))


def cat(tensors, dim=0):
    shape = list(tensors[0].shape)
    shape[dim] = sum(t.shape[dim] for t in tensors)
    out, at = empty(tuple(shape), dtype=tensors[0].dtype), 0
    for t in tensors:
        part = (slice(None),) * (dim % len(shape)) + (slice(at, at + t.shape[dim]),)
        out[part].copy_(t)
        at += t.shape[dim]
    return out
