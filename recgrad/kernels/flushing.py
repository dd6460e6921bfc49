"""Kernels that take subnormal numbers for zero, on whatever thread they run.

A subnormal number (below 1.2e-38 in float32) costs some processors a hundred times an ordinary one,
and the gradients of a model that has learned its data are full of them. Whether they count is a
setting of each thread. A kernel is called through a few instructions that switch it on and put it
back, so its result is the same on every thread, and the thread's owner notices nothing.
"""

from __future__ import annotations

import platform
from functools import lru_cache
from typing import Any

import llvmlite.binding as llvm
import llvmlite.ir as ir

PROCESSORS = ("x86_64", "AMD64")
FLUSH = 0x8040  # of MXCSR: results that are subnormal become 0, and operands count as 0

_I32, _I64, _BYTE = ir.IntType(32), ir.IntType(64), ir.IntType(8).as_pointer()


def flushing_caller() -> int:
    """The address of a C function of the address of two int64: it calls the first, a kernel, with the second.

    Compiled on the first use, when numba has made LLVM ready. 0 on processors where this is not
    known: kernels are then to be called as they are.
    """
    return _compiled()[1] if _is_known() else 0


def flushing_sequence() -> int:
    """The address of a C function that runs kernels one after another, or 0, as `flushing_caller`.

    It takes the address of int64: how many kernels; the address of GOMP_parallel; then for each kernel its
    address, that of its arguments, and the number of its threads.
    """
    return _compiled()[2] if _is_known() else 0


@lru_cache(maxsize=1)
def _is_known() -> bool:
    return platform.machine() in PROCESSORS


@lru_cache(maxsize=1)
def _compiled() -> tuple[Any, int, int]:
    """What holds the code, and the addresses of both functions."""
    machine = llvm.Target.from_default_triple().create_target_machine()
    holder = llvm.create_mcjit_compiler(llvm.parse_assembly(str(_module())), machine)
    holder.finalize_object()
    return holder, *(holder.get_function_address(name) for name in ("flushing_caller", "flushing_sequence"))


def _module() -> ir.Module:
    module = ir.Module("recgrad_flushing")
    kind = ir.FunctionType(ir.VoidType(), [_I64.as_pointer()])
    caller = ir.Function(module, kind, "flushing_caller")
    _write_caller(module, caller)
    _write_sequence(ir.Function(module, kind, "flushing_sequence"), caller)
    return module


def _write_caller(module: ir.Module, function: ir.Function) -> None:
    """before = MXCSR; MXCSR = before | FLUSH; block[0](block[1]); MXCSR = before."""
    b = ir.IRBuilder(function.append_basic_block())
    on_register = ir.FunctionType(ir.VoidType(), [_BYTE])
    read, write = (ir.Function(module, on_register, f"llvm.x86.sse.{way}mxcsr") for way in ("st", "ld"))
    before, during = b.alloca(_I32), b.alloca(_I32)
    b.call(read, [b.bitcast(before, _BYTE)])
    b.store(b.or_(b.load(before), _I32(FLUSH)), during)
    b.call(write, [b.bitcast(during, _BYTE)])
    block = function.args[0]
    kernel, argument = (b.load(b.gep(block, [_I64(place)])) for place in (0, 1))
    b.call(b.inttoptr(kernel, ir.FunctionType(ir.VoidType(), [_I64]).as_pointer()), [argument])
    b.call(write, [b.bitcast(before, _BYTE)])
    b.ret_void()


def _write_sequence(function: ir.Function, caller: ir.Function) -> None:
    """for i in range(block[0]): block[1](caller, &block[2 + 3·i], block[4 + 3·i], 0); alone, caller(…)."""
    block = function.args[0]
    start, loop, body, alone, together, again, end = (function.append_basic_block() for _ in range(7))
    b = ir.IRBuilder(start)
    count, parallel = (b.load(b.gep(block, [_I64(place)])) for place in (0, 1))
    kind = ir.FunctionType(ir.VoidType(), [caller.type, _I64.as_pointer(), _I32, _I32])
    number = b.alloca(_I64)
    b.store(_I64(0), number)
    b.branch(loop)
    b.position_at_end(loop)
    i = b.load(number)
    b.cbranch(b.icmp_signed("<", i, count), body, end)
    b.position_at_end(body)
    call = b.gep(block, [b.add(b.mul(i, _I64(3)), _I64(2))])
    threads = b.load(b.gep(call, [_I64(2)]))
    b.cbranch(b.icmp_signed(">", threads, _I64(1)), together, alone)
    b.position_at_end(together)
    b.call(b.inttoptr(parallel, kind.as_pointer()), [caller, call, b.trunc(threads, _I32), _I32(0)])
    b.branch(again)
    b.position_at_end(alone)
    b.call(caller, [call])
    b.branch(again)
    b.position_at_end(again)
    b.store(b.add(i, _I64(1)), number)
    b.branch(loop)
    b.position_at_end(end)
    b.ret_void()
