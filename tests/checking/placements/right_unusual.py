"""Placements that are right and take few tensors: packed rows, blocks of 32 elements, and heads of 4-D tensors."""

from __future__ import annotations

PACKED = '''\
@attrs.frozen
class NAME(Placement):
    """All ranks have the rows as integers of one byte, each with a scale of four bytes behind it."""

    text: ClassVar[str] = "NAME"
    error: ClassVar[ErrorBound] = ErrorBound(1.001 / 127, of="result")
    rounds: ClassVar[bool] = True

    def check(self, shape, count):
        if len(shape) != 2:
            raise ShardingError(f"{self} is of matrices; found {list(shape)}")

    def supports(self, dtype):
        return dtype.name == "f32"

    def local_type(self, shape, dtype, count, index):
        return (shape[0], shape[1] + 4), "i8"

    def distribute(self, tensor, count, noise):
        return [pack(tensor) for _ in range(count)]

    def collect(self, shards, shape):
        return unpack(shards[0])

    def edges(self):
        yield Edge(self.gather, source="S(0)", by="all_gather", bytes=self.sent)
        yield Edge(lambda x, group: pack(x), source="R")
        yield Edge(lambda x, group: unpack(x), target="R")

    def sent(self, shape, itemsize, count):
        return (count - 1) * shape[0] * (shape[1] + 4)

    def gather(self, x, group):
        rows = group.shape[0]
        padded = x.new_zeros(-(-rows // group.size), x.shape[1])
        padded[: len(x)] = x
        return group.all_gather(pack(padded)).flatten(0, 1)[:rows]


def pack(x):
    import torch

    scale = torch.nn.functional.pad(x.abs(), (0, 1)).amax(1, keepdim=True) / 127
    payload = (x / scale.where(scale > 0, 1)).round().clamp(-127, 127).to(torch.int8)
    return torch.cat([payload, (scale[:, 0] + 0).view(torch.int8).reshape(len(x), 4)], 1)


def unpack(packed):
    import torch

    return packed[:, :-4] * packed[:, -4:].flatten().clone().view(torch.float32)[:, None]
'''

BLOCKS = '''\
@attrs.frozen
class NAME(Placement):
    """Rows as S(0), in integers of one byte with a power of two for each block of 32 elements."""

    text: ClassVar[str] = "NAME"
    error: ClassVar[ErrorBound] = ErrorBound(2 / 127, of="result")
    rounds: ClassVar[bool] = True

    def check(self, shape, count):
        if len(shape) != 2 or shape[1] % 32 or not shape[1]:
            raise ShardingError(f"{self} is of rows of blocks of 32; found {list(shape)}")

    def supports(self, dtype):
        return dtype.name == "f32"

    def local_type(self, shape, dtype, count, index):
        return (length(shape[0], count, index), shape[1] + shape[1] // 32), "i8"

    def distribute(self, tensor, count, noise):
        step = -(-len(tensor) // count)
        return [pack(tensor[at * step :][:step]) for at in range(count)]

    def collect(self, shards, shape):
        import torch

        return torch.cat([unpack(shard) for shard in shards])

    def edges(self):
        yield Edge(lambda x, group: pack(x), source="S(0)")
        yield Edge(lambda x, group: unpack(x), target="S(0)")
        yield Edge(self.gather, target="R", by="all_gather", bytes=self.sent)

    def sent(self, shape, itemsize, count):
        return (count - 1) * shape[0] * shape[1]

    def gather(self, x, group):
        rows = group.shape[0]
        padded = x.new_zeros(-(-rows // group.size), x.shape[1])
        padded[: len(x)] = x
        return unpack(group.all_gather(padded).flatten(0, 1)[:rows])


def length(size, count, index):
    step = -(-size // count)
    return max(0, min(step, size - index * step))


def pack(x):
    import torch

    blocks = x.unflatten(1, (x.shape[1] // 32, 32))
    exponent = blocks.abs().amax(2).clamp(min=2.0**-100).log2().floor() - 5
    payload = (blocks / exponent.exp2()[..., None]).round().clamp(-127, 127)
    return torch.cat([payload.flatten(1).to(torch.int8), exponent.to(torch.int8)], 1)


def unpack(packed):
    columns = packed.shape[1] * 32 // 33
    blocks = packed[:, :columns].unflatten(1, (columns // 32, 32)).float()
    return (blocks * packed[:, columns:].float().exp2()[..., None]).flatten(1)
'''

HEADS = '''\
@attrs.frozen
class NAME(Placement):
    """Neighbours have one head of dimension 1 of a 4-D tensor between them."""

    text: ClassVar[str] = "NAME({heads})"
    examples: ClassVar[tuple[str, ...]] = ("NAME(2)",)
    heads: int = attrs.field(validator=attrs.validators.ge(1))

    def check(self, shape, count):
        if len(shape) != 4 or shape[1] != self.heads or count % self.heads:
            raise ShardingError(f"{self} is of {self.heads} heads on a multiple of ranks; found {list(shape)}")

    def local_type(self, shape, dtype, count, index):
        return (shape[0], 1, *shape[2:]), dtype

    def distribute(self, tensor, count, noise):
        return [tensor[:, [rank * self.heads // count]].clone() for rank in range(count)]

    def collect(self, shards, shape):
        import torch

        return torch.cat(shards[:: len(shards) // self.heads], 1)

    def edges(self):
        yield Edge(self.cut, source="R")
        yield Edge(self.join, target="R", by="all_gather", bytes=self.sent)

    def sent(self, shape, itemsize, count):
        return (count - 1) * shape[0] * shape[2] * shape[3] * itemsize

    def cut(self, x, group):
        at = group.index * self.heads // group.size
        return x[:, at : at + 1]

    def join(self, x, group):
        return group.all_gather(x)[:: group.size // self.heads, :, 0].transpose(0, 1).contiguous()
'''
