"""Asks a CPU for memory before it is needed, from code that numba compiles."""

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

LINE_BYTES = 64
"""Of a cache line, on all CPUs that PyTorch is built for but Apple's, where it is a multiple of this."""

_READ, _INTO_L2, _DATA = 0, 2, 1
"""Arguments of LLVM's instruction. L1 has few places for lines on their way: measured, half the gain."""


@intrinsic
def prefetch(_: Any, array: Any, offset: Any) -> Any:
    """The cache line of an element of `array`, of any shape: `offset` elements behind its first one."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        address = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(8).as_pointer())
        number = ir.IntType(32)
        instruction = ir.FunctionType(ir.VoidType(), [address.type, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, instruction, "llvm.prefetch.p0")
        builder.call(function, [address, number(_READ), number(_INTO_L2), number(_DATA)])
        return context.get_dummy_value()

    return types.void(array, types.intp), codegen
