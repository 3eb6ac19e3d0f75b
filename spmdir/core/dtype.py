"""Element types of tensors, and the table of all of them."""

from __future__ import annotations

import math
import typing

import attrs

from spmdir.core.errors import SpmdirError, did_you_mean, shown

Kind = typing.Literal["bool", "int", "float", "complex"]


@attrs.frozen(cache_hash=True)
class DType:
    """An element type, of a tensor or as a literal argument such as `f32` in `aten._to_copy(%x) {dtype = f32}`.

    Attributes:
        name: its spelling in MLIR. Two element types are equal if their names are.
        kind: bool, int, float or complex.
        itemsize: bytes of one element.
        largest: the largest finite number; infinity for kinds without overflow to infinity.
    """

    name: str
    kind: Kind = attrs.field(eq=False, repr=False)
    itemsize: int = attrs.field(eq=False, repr=False)
    largest: float = attrs.field(default=math.inf, eq=False, repr=False)

    @property
    def is_bool(self) -> bool:
        return self.kind == "bool"

    @property
    def is_integer(self) -> bool:
        """Return whether elements are integers; booleans do not count."""
        return self.kind == "int"

    @property
    def is_float(self) -> bool:
        """Return whether elements are real floating-point numbers."""
        return self.kind == "float"

    @property
    def is_complex(self) -> bool:
        return self.kind == "complex"

    @property
    def is_inexact(self) -> bool:
        """Return whether elements are floating-point numbers, real or complex."""
        return self.kind in ("float", "complex")

    @property
    def real(self) -> DType:
        """Return the element type of the real part. A type that is not complex is returned unchanged."""
        return _REAL.get(self, self)

    @property
    def complex(self) -> DType:
        """Return the complex type that torch promotes this type to."""
        return self if self.is_complex else COMPLEX_F64 if self == F64 else COMPLEX_F32

    def __str__(self) -> str:
        return self.name


I1 = DType("i1", "bool", 1)
UI8 = DType("ui8", "int", 1)
I8 = DType("i8", "int", 1)
I16 = DType("i16", "int", 2)
I32 = DType("i32", "int", 4)
I64 = DType("i64", "int", 8)
F8E5M2 = DType("f8E5M2", "float", 1)
F8E4M3FN = DType("f8E4M3FN", "float", 1)
BF16 = DType("bf16", "float", 2, largest=3.38e38)
F16 = DType("f16", "float", 2, largest=65504.0)
F32 = DType("f32", "float", 4, largest=3.40e38)
F64 = DType("f64", "float", 8, largest=1.79e308)
COMPLEX_F32 = DType("complex<f32>", "complex", 8, largest=F32.largest)
COMPLEX_F64 = DType("complex<f64>", "complex", 16, largest=F64.largest)

_REAL = {COMPLEX_F32: F32, COMPLEX_F64: F64}

DTYPES = {
    dtype.name: dtype
    for dtype in (F64, F32, F16, BF16, F8E4M3FN, F8E5M2, I64, I32, I16, I8, UI8, I1, COMPLEX_F32, COMPLEX_F64)
}
"""Name → element type, in the order of messages."""

RANKING = (I1, UI8, I8, I16, I32, I64, F8E5M2, F8E4M3FN, BF16, F16, F32, F64, COMPLEX_F32, COMPLEX_F64)
"""Element types from low to high. If no special case applies, two types promote to the higher one."""


_NAMED = (
    "float64 double f64, float32 float f32, float16 half f16, bfloat16 bf16, int64 long i64, int32 int i32, "
    "int16 short i16, int8 char i8, uint8 byte u8 ui8, bool i1, float8_e4m3fn f8E4M3FN, float8_e5m2 f8E5M2, "
    "complex64 complex<f32>, complex128 complex<f64>"
)
SPELLINGS = {name: names.split()[-1] for names in _NAMED.split(", ") for name in names.split()[:-1]}
"""Names of element types in torch, NumPy and C → names in the IR."""

_BY_ITEMSIZE: dict[float, DType] = {dtype.itemsize: dtype for dtype in (I8, BF16, F32, F64, COMPLEX_F64)}


def of_size(itemsize: float) -> DType:
    """Return an element type of `itemsize` bytes, for costs that depend only on the size; f32 if there is none."""
    return _BY_ITEMSIZE.get(itemsize, F32)


def as_dtype(value: DType | str) -> DType:
    """Return an element type, given itself or by name.

    Raises:
        SpmdirError: no element type has that name.
    """
    if isinstance(value, DType):
        return value
    dtype = DTYPES.get(value) if isinstance(value, str) else None
    if dtype is None:
        raise SpmdirError(unknown_dtype(value))
    return dtype


def unknown_dtype(name: object, where: str = "") -> str:
    """Return the error message for an unknown element type, with a similar one if there is one.

    Args:
        where: text that follows the name, such as ` in 'tensor<4xfloat>'`.
    """
    spelling = SPELLINGS.get(name.lower()) if isinstance(name, str) else None
    similar_name_hint = did_you_mean(name, DTYPES) if isinstance(name, str) else ""
    hint = f"; did you mean '{spelling}'?" if spelling else similar_name_hint
    return f"unknown element type {shown(name)}{where}; expected one of {', '.join(DTYPES)}{hint}"
