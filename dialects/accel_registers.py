"""
The storage half of the `accel` dialect: registers of a context, and what the contexts of a thread block share.

A declaration is no computation: it names a register, or a run of consecutive ones, that instructions read and write. Until
registers are allocated it has no `index`. Source: docs/accelerator.md sections 1 and 3.
"""

from typing import ClassVar

from xdsl.dialects.builtin import IntegerAttr, StringAttr, TensorType, i64
from xdsl.ir import Attribute, Operation, ParametrizedAttribute, SSAValue, TypeAttribute
from xdsl.irdl import (
    AnyAttr,
    IRDLOperation,
    ParsePropInAttrDict,
    VarConstraint,
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
)
from xdsl.utils.exceptions import VerifyException

from lampc.targets.accel.instruction import COUNT, Kind


@irdl_attr_definition
class TileType(ParametrizedAttribute, TypeAttribute):
    """Tile registers: a scores tile, a query or output fragment, a mask or bias tile."""

    name = "accel.tile"


@irdl_attr_definition
class VectorType(ParametrizedAttribute, TypeAttribute):
    """Row vectors: b_q FP32 elements each."""

    name = "accel.vector"


@irdl_attr_definition
class MaskType(ParametrizedAttribute, TypeAttribute):
    """A set of a tile's sub-blocks."""

    name = "accel.mask"


@irdl_attr_definition
class OrderType(ParametrizedAttribute, TypeAttribute):
    """An order of a tile's sub-blocks."""

    name = "accel.order"


@irdl_attr_definition
class ScalarType(ParametrizedAttribute, TypeAttribute):
    """32-bit integers."""

    name = "accel.scalar"


@irdl_attr_definition
class DescriptorType(ParametrizedAttribute, TypeAttribute):
    """A tensor in memory."""

    name = "accel.descriptor"


@irdl_attr_definition
class BufferType(ParametrizedAttribute, TypeAttribute):
    """A ring of tiles in SRAM."""

    name = "accel.buffer"


@irdl_attr_definition
class BarrierType(ParametrizedAttribute, TypeAttribute):
    """Phase barriers, one for each slot of a ring."""

    name = "accel.barrier"


TYPE_OF_KIND: dict[Kind, ParametrizedAttribute] = {
    Kind.T: TileType(),
    Kind.V: VectorType(),
    Kind.P: MaskType(),
    Kind.O: OrderType(),
    Kind.S: ScalarType(),
    Kind.D: DescriptorType(),
    Kind.B: BufferType(),
    Kind.BARRIER: BarrierType(),
}
KIND_OF_TYPE: dict[Attribute, Kind] = {type: kind for kind, type in TYPE_OF_KIND.items()}


class DeclarationOp(IRDLOperation):
    """What all declarations share: how many consecutive registers, and which once allocated."""

    KIND: ClassVar[Kind]
    index = opt_prop_def(IntegerAttr)
    irdl_options = (ParsePropInAttrDict(),)

    @property
    def size(self) -> int:
        """Consecutive registers declared."""
        return 1

    @property
    def first(self) -> int | None:
        """The first register, or None before allocation."""
        return None if self.index is None else self.index.value.data

    def allocate(self, first: int) -> None:
        """Give the declaration its registers `first`, `first` + 1, ..."""
        self.properties["index"] = IntegerAttr(first, i64)

    def verify_(self) -> None:
        if self.size < 1:
            raise VerifyException(f"a declaration names at least one register, not {self.size}")
        first = self.first or 0
        if first < 0 or first + self.size > COUNT[self.KIND]:
            raise VerifyException(
                f"{self.KIND}{first} to {self.KIND}{first + self.size - 1} do not exist: there are {COUNT[self.KIND]}"
            )


def _properties(index: int | None, **values: Attribute | int) -> dict[str, Attribute]:
    properties = {name: IntegerAttr(value, i64) if isinstance(value, int) else value for name, value in values.items()}
    if index is not None:
        properties["index"] = IntegerAttr(index, i64)
    return properties


@irdl_op_definition
class TileOp(DeclarationOp):
    """Tile registers of so many granules (b_k*b_q bytes each)."""

    name = "accel.tile"
    KIND: ClassVar[Kind] = Kind.T
    granules = prop_def(IntegerAttr)
    register = result_def(TileType())
    assembly_format = "attr-dict"

    def __init__(self, granules: int, index: int | None = None):
        super().__init__(result_types=[TileType()], properties=_properties(index, granules=granules))

    @property
    def size(self) -> int:
        return self.granules.value.data


@irdl_op_definition
class VectorOp(DeclarationOp):
    """`count` consecutive row vectors."""

    name = "accel.vector"
    KIND: ClassVar[Kind] = Kind.V
    count = prop_def(IntegerAttr)
    register = result_def(VectorType())
    assembly_format = "attr-dict"

    def __init__(self, count: int = 1, index: int | None = None):
        super().__init__(result_types=[VectorType()], properties=_properties(index, count=count))

    @property
    def size(self) -> int:
        return self.count.value.data


@irdl_op_definition
class MaskOp(DeclarationOp):
    """A sub-block mask. Index 0 is all ones and read-only; an allocator gives it to nothing."""

    name = "accel.mask"
    KIND: ClassVar[Kind] = Kind.P
    register = result_def(MaskType())
    assembly_format = "attr-dict"

    def __init__(self, index: int | None = None):
        super().__init__(result_types=[MaskType()], properties=_properties(index))


@irdl_op_definition
class OrderOp(DeclarationOp):
    """An order of sub-blocks."""

    name = "accel.order"
    KIND: ClassVar[Kind] = Kind.O
    register = result_def(OrderType())
    assembly_format = "attr-dict"

    def __init__(self, index: int | None = None):
        super().__init__(result_types=[OrderType()], properties=_properties(index))


@irdl_op_definition
class ScalarOp(DeclarationOp):
    """`count` consecutive scalars; a ring's slot and phase are two."""

    name = "accel.scalar"
    KIND: ClassVar[Kind] = Kind.S
    count = prop_def(IntegerAttr)
    register = result_def(ScalarType())
    assembly_format = "attr-dict"

    def __init__(self, count: int = 1, index: int | None = None):
        super().__init__(result_types=[ScalarType()], properties=_properties(index, count=count))

    @property
    def size(self) -> int:
        return self.count.value.data


@irdl_op_definition
class DescriptorOp(DeclarationOp):
    """
    The tensor `tensor` (q, k, v, o, mask, bias or sinks) in memory.

    `type` says how it is stored; without it the configuration does. An axis of size 1 of a mask or bias broadcasts.
    """

    name = "accel.descriptor"
    KIND: ClassVar[Kind] = Kind.D
    tensor = prop_def(StringAttr)
    type = opt_prop_def(TensorType)
    register = result_def(DescriptorType())
    assembly_format = "attr-dict"

    def __init__(self, tensor: str, index: int | None = None, type: TensorType[Attribute] | None = None):
        properties = _properties(index, tensor=StringAttr(tensor))
        if type is not None:
            properties["type"] = type
        super().__init__(result_types=[DescriptorType()], properties=properties)


@irdl_op_definition
class BufferOp(DeclarationOp):
    """`slots` tiles of `bytes` bytes in SRAM, from byte `base` once allocated."""

    name = "accel.buffer"
    KIND: ClassVar[Kind] = Kind.B
    buffer = prop_def(StringAttr)
    slots = prop_def(IntegerAttr)
    bytes = prop_def(IntegerAttr)
    base = opt_prop_def(IntegerAttr)
    register = result_def(BufferType())
    assembly_format = "attr-dict"

    def __init__(self, buffer: str, slots: int, bytes: int, base: int | None = None, index: int | None = None):
        properties = _properties(index, buffer=StringAttr(buffer), slots=slots, bytes=bytes)
        if base is not None:
            properties["base"] = IntegerAttr(base, i64)
        super().__init__(result_types=[BufferType()], properties=properties)

    def verify_(self) -> None:
        super().verify_()
        if self.slots.value.data < 1 or self.bytes.value.data < 1 or (self.base is not None and self.base.value.data < 0):
            raise VerifyException("a buffer has at least one slot of at least one byte, from byte 0 on")


@irdl_op_definition
class BarrierOp(DeclarationOp):
    """Barriers named `barrier`, one for each of `slots` ring slots; a phase completes after `expected` arrivals."""

    name = "accel.barrier"
    KIND: ClassVar[Kind] = Kind.BARRIER
    barrier = prop_def(StringAttr)
    slots = prop_def(IntegerAttr)
    expected = prop_def(IntegerAttr)
    register = result_def(BarrierType())
    assembly_format = "attr-dict"

    def __init__(self, barrier: str, slots: int, expected: int, index: int | None = None):
        properties = _properties(index, barrier=StringAttr(barrier), slots=slots, expected=expected)
        super().__init__(result_types=[BarrierType()], properties=properties)

    @property
    def size(self) -> int:
        return self.slots.value.data

    def verify_(self) -> None:
        super().verify_()
        if self.expected.value.data < 1:
            raise VerifyException(f"a barrier expects at least one arrival, not {self.expected.value.data}")


@irdl_op_definition
class PartOp(IRDLOperation):
    """Register `offset` of a run: the count in the pair that `s.range` writes, the warp in what `s.id` writes."""

    name = "accel.part"
    T: ClassVar = VarConstraint("T", AnyAttr())
    run = operand_def(T)
    part = result_def(T)
    offset = prop_def(IntegerAttr)
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = "$run attr-dict `:` type($run)"

    def __init__(self, run: SSAValue, offset: int):
        super().__init__(operands=[run], result_types=[run.type], properties=_properties(None, offset=offset))

    def verify_(self) -> None:
        size = run_size(self.run)
        if not 0 <= self.offset.value.data < size:
            raise VerifyException(f"offset {self.offset.value.data} lies outside a run of {size}")


DECLARATIONS: list[type[Operation]] = [
    TileOp,
    VectorOp,
    MaskOp,
    OrderOp,
    ScalarOp,
    DescriptorOp,
    BufferOp,
    BarrierOp,
    PartOp,
]


def run_size(register: SSAValue) -> int:
    """Consecutive registers from `register` to the end of its declaration. VerifyException if it is no declared register."""
    owner = register.owner
    if isinstance(owner, PartOp):
        return run_size(owner.run) - owner.offset.value.data
    if isinstance(owner, DeclarationOp):
        return owner.size
    raise VerifyException("an instruction's operands are declared registers")


def register_index(register: SSAValue) -> int | None:
    """Number of an allocated register, or None before allocation. VerifyException if it is no declared register."""
    owner = register.owner
    if isinstance(owner, PartOp):
        first = register_index(owner.run)
        return None if first is None else first + owner.offset.value.data
    if isinstance(owner, DeclarationOp):
        return owner.first
    raise VerifyException("an instruction's operands are declared registers")
