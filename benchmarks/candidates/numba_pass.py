"""The routed pass as one fused Numba loop.

    V_ij = W_ij P_i        a_ij = scale <P_j, V_ij>        r_ij = softmax_j a_ij        s_j = sum_i r_ij V_ij

Children are (I, R, C, T), weights (I, J, Q, R), parents and sums (J, Q, C, T), positions T innermost. Votes live for
one child and one chunk of positions at a time; the backward pass forms them again.

How it is arranged
  - LLVM vectorises plain loops over 16 positions badly: it unrolls them first, guards them against aliasing, and
    prefers vectors of half the width. So a vector of 16 positions is a type of its own here, with a handful of
    intrinsics, and the blocks of 4 x 4 vectors that the registers hold are written out.
  - A chunk is ``blocks`` vectors of positions wide; with the C columns of a pose this makes N = C x blocks vectors side
    by side, a multiple of 4. What is not a multiple of the block sizes is filled up with zeros, which vote for nothing.
  - Threads share chunks or, where these are few, children; backward always children, so that a thread owns their
    gradients. What all add to, each adds to a copy of its own; copies are added in order. Results depend on the number
    of threads alone, not on which is first.
"""

# Numba types what it compiles by itself, it is not always installed, and only some of its modules are annotated.
# mypy: disable-error-code="import-not-found,import-untyped,misc,no-untyped-call,no-untyped-def,untyped-decorator"
# mypy: disable-error-code="attr-defined,unused-ignore"

from __future__ import annotations

import math
import operator
from typing import Any

import numba
import numpy as np
import torch
from llvmlite import ir
from numba import njit, prange, types
from numba.core.cgutils import get_or_insert_function
from numba.extending import intrinsic as _intrinsic
from numba.extending import models, overload, register_model
from torch import Tensor
from torch.nn.functional import pad

LANES = 16
# Each chunk reads all weights again, so a chunk wants to be wide; its votes want to stay in the first-level cache.
MIN_COLUMNS = 4

_MAX_THREADS: int = numba.config.NUMBA_NUM_THREADS
# Numba's own annotations describe these before they compile anything: another number of arguments, and no result.
intrinsic: Any = _intrinsic
_OPTIONS: dict[str, Any] = {"fastmath": {"contract", "nsz", "arcp"}, "error_model": "numpy"}
_inner: Any = njit(**_OPTIONS)
_outer: Any = njit(parallel=True, cache=True, **_OPTIONS)

# -------------------------------------------------------------------------------------------------------- vectors

_VECTOR = ir.VectorType(ir.FloatType(), LANES)
_INTEGERS = ir.VectorType(ir.IntType(32), LANES)


class _VectorType(types.Type):
    """16 float32 side by side, in one register or a few."""

    def __init__(self) -> None:
        super().__init__(name="Vector16")


_vector = _VectorType()


@register_model(_VectorType)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, type_: Any) -> None:
        super().__init__(manager, type_, _VECTOR)


def _fill(builder: Any, scalar: Any, kind: Any = _VECTOR) -> Any:
    single = builder.insert_element(ir.Constant(kind, ir.Undefined), scalar, ir.Constant(ir.IntType(32), 0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), LANES), None)
    return builder.shuffle_vector(single, ir.Constant(kind, ir.Undefined), zeros)


def _address(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    return builder.gep(context.make_array(array_type)(context, builder, array).data, [index])


def _call(builder: Any, name: str, values: Any) -> Any:
    kind = ir.FunctionType(_VECTOR, [_VECTOR] * len(values))
    return builder.call(get_or_insert_function(builder.module, kind, f"{name}.v{LANES}f32"), values)


@intrinsic
def _load(typing: Any, array: Any, index: Any) -> Any:
    """16 numbers of a flat array."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        address = _address(context, builder, array, *values)
        return builder.load(builder.bitcast(address, _VECTOR.as_pointer()), align=4)

    return _vector(array, types.intp), generate


@intrinsic
def _store(typing: Any, array: Any, index: Any, vector: Any) -> Any:
    """16 numbers to a flat array."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        address = _address(context, builder, array, *values[:2])
        builder.store(values[2], builder.bitcast(address, _VECTOR.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.none(array, types.intp, vector), generate


@intrinsic
def _spread(typing: Any, array: Any, index: Any) -> Any:
    """One number of a flat array, 16 times."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return _fill(builder, builder.load(_address(context, builder, array, *values)))

    return _vector(array, types.intp), generate


@intrinsic
def _repeat(typing: Any, number: Any) -> Any:
    """One number, 16 times."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return _fill(builder, values[0])

    return _vector(types.float32), generate


@intrinsic
def _fma(typing: Any, a: Any, b: Any, c: Any) -> Any:
    """``a * b + c``."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return _call(builder, "llvm.fma", values)

    return _vector(a, b, c), generate


@intrinsic
def _maximum(typing: Any, a: Any, b: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", *values), *values)

    return _vector(a, b), generate


@intrinsic
def _round_down(typing: Any, a: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return _call(builder, "llvm.floor", values)

    return _vector(a), generate


@intrinsic
def _power_of_two(typing: Any, a: Any) -> Any:
    """``2 ** a`` of integers a in the range of float32's exponents."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        biased = builder.add(builder.fptosi(values[0], _INTEGERS), ir.Constant(_INTEGERS, [127] * LANES))
        return builder.bitcast(builder.shl(biased, ir.Constant(_INTEGERS, [23] * LANES)), _VECTOR)

    return _vector(a), generate


@intrinsic
def _sum_lanes(typing: Any, vectors: Any) -> Any:
    """Sums over the lanes of 16 vectors, in order, by halving: each step makes one vector of two."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        rest = [builder.extract_value(values[0], k) for k in range(LANES)]
        half = LANES // 2
        while half:
            low = [k // half * 2 * half + k % half for k in range(LANES)]
            picks = [ir.Constant(_INTEGERS, [k + shift for k in low]) for shift in (0, half)]
            pairs = zip(rest[::2], rest[1::2], strict=True)
            rest = [builder.fadd(*(builder.shuffle_vector(a, b, pick) for pick in picks)) for a, b in pairs]
            half //= 2
        return rest[0]

    return _vector(vectors), generate


def _define(operation: Any, name: str) -> None:
    @intrinsic
    def apply(typing: Any, a: Any, b: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            return getattr(builder, name)(*values, flags=("contract", "nsz", "arcp"))

        return _vector(a, b), generate

    @overload(operation)
    def choose(a, b):
        return (lambda a, b: apply(a, b)) if a == b == _vector else None  # noqa: PLW0108 (Numba wants a function)


for _operation, _name in ((operator.add, "fadd"), (operator.sub, "fsub"), (operator.mul, "fmul")):
    _define(_operation, _name)
_define(operator.truediv, "fdiv")


@_inner
def _number(x: float) -> Any:
    return _repeat(np.float32(x))


@_inner
def _exp(x: Any) -> Any:
    """``exp(x)`` of x <= 0: 2^k times the Taylor series to degree 7 of what is left."""
    x = _maximum(x, _number(-87.0))
    k = _round_down(_fma(x, _number(1.44269504), _number(0.5)))
    r = _fma(k, _number(-0.693359375), x)
    r = _fma(k, _number(2.12194440054690583e-4), r)
    y = _fma(r, _number(1 / 5040), _number(1 / 720))
    y = _fma(y, r, _number(1 / 120))
    y = _fma(y, r, _number(1 / 24))
    y = _fma(y, r, _number(1 / 6))
    y = _fma(y, r, _number(0.5))
    y = _fma(y, r, _number(1.0))
    y = _fma(y, r, _number(1.0))
    return y * _power_of_two(k)


# --------------------------------------------------------------------------------------------------------- blocks
# Offsets and strides count numbers; `n` counts vectors side by side.


@_inner
def _multiply(a, a0, row, step, size, b, b0, n):
    """4 x 4 vectors of A B: A (4 x size) of scalars, with strides; B (size x n vectors), from its column at b0."""
    zero = _number(0.0)
    p0 = p1 = p2 = p3 = q0 = q1 = q2 = q3 = r0 = r1 = r2 = r3 = s0 = s1 = s2 = s3 = zero
    for k in range(size):
        at = b0 + k * n * LANES
        x0, x1, x2, x3 = _load(b, at), _load(b, at + 16), _load(b, at + 32), _load(b, at + 48)
        at = a0 + k * step
        y = _spread(a, at)
        p0, p1, p2, p3 = _fma(y, x0, p0), _fma(y, x1, p1), _fma(y, x2, p2), _fma(y, x3, p3)
        y = _spread(a, at + row)
        q0, q1, q2, q3 = _fma(y, x0, q0), _fma(y, x1, q1), _fma(y, x2, q2), _fma(y, x3, q3)
        y = _spread(a, at + 2 * row)
        r0, r1, r2, r3 = _fma(y, x0, r0), _fma(y, x1, r1), _fma(y, x2, r2), _fma(y, x3, r3)
        y = _spread(a, at + 3 * row)
        s0, s1, s2, s3 = _fma(y, x0, s0), _fma(y, x1, s1), _fma(y, x2, s2), _fma(y, x3, s3)
    return (p0, p1, p2, p3), (q0, q1, q2, q3), (r0, r1, r2, r3), (s0, s1, s2, s3)


@_inner
def _multiply_transposed(b, a0, b0, n):
    """Products of 4 rows at a0 with 4 rows at b0, each n vectors long, summed over the vectors but not their lanes."""
    zero = _number(0.0)
    p0 = p1 = p2 = p3 = q0 = q1 = q2 = q3 = r0 = r1 = r2 = r3 = s0 = s1 = s2 = s3 = zero
    width = n * LANES
    for k in range(n):
        at = b0 + k * LANES
        x0, x1, x2, x3 = _load(b, at), _load(b, at + width), _load(b, at + 2 * width), _load(b, at + 3 * width)
        at = a0 + k * LANES
        y = _load(b, at)
        p0, p1, p2, p3 = _fma(y, x0, p0), _fma(y, x1, p1), _fma(y, x2, p2), _fma(y, x3, p3)
        y = _load(b, at + width)
        q0, q1, q2, q3 = _fma(y, x0, q0), _fma(y, x1, q1), _fma(y, x2, q2), _fma(y, x3, q3)
        y = _load(b, at + 2 * width)
        r0, r1, r2, r3 = _fma(y, x0, r0), _fma(y, x1, r1), _fma(y, x2, r2), _fma(y, x3, r3)
        y = _load(b, at + 3 * width)
        s0, s1, s2, s3 = _fma(y, x0, s0), _fma(y, x1, s1), _fma(y, x2, s2), _fma(y, x3, s3)
    return p0, p1, p2, p3, q0, q1, q2, q3, r0, r1, r2, r3, s0, s1, s2, s3


@_inner
def _store_row(b, at, x):
    _store(b, at, x[0])
    _store(b, at + 16, x[1])
    _store(b, at + 32, x[2])
    _store(b, at + 48, x[3])


@_inner
def _dot_row(b, at, x, y):
    return (
        _fma(_load(b, at), x[0], y[0]),
        _fma(_load(b, at + 16), x[1], y[1]),
        _fma(_load(b, at + 32), x[2], y[2]),
        _fma(_load(b, at + 48), x[3], y[3]),
    )


@_inner
def _pack(source, start, rows, columns, positions, b, to, blocks):
    """A chunk of (rows, columns, T) to (rows, columns, blocks) vectors."""
    for k in range(rows * columns):
        for block in range(blocks):
            vector = _load(source, start + k * positions + block * LANES)
            _store(b, to + (k * blocks + block) * LANES, vector)


@_inner
def _unpack(b, source, rows, columns, positions, out, start, blocks):
    for k in range(rows * columns):
        for block in range(blocks):
            vector = _load(b, source + (k * blocks + block) * LANES)
            _store(out, start + k * positions + block * LANES, vector)


@_inner
def _vote(weight, w0, J, Q, R, C, blocks, b, poses, votes, other, products):
    """Votes of one child, and their products with ``other`` summed over rows and columns, (J, blocks)."""
    n = C * blocks
    for j in range(J):
        for block in range(blocks):
            _store(b, products + (j * blocks + block) * LANES, _number(0.0))
        for column in range(0, n, 4):
            zero = _number(0.0)
            y = (zero, zero, zero, zero)
            for q in range(0, Q, 4):
                row = j * Q + q
                x0, x1, x2, x3 = _multiply(weight, w0 + row * R, R, 1, R, b, poses + column * LANES, n)
                at = (row * n + column) * LANES
                width = n * LANES
                _store_row(b, votes + at, x0)
                _store_row(b, votes + at + width, x1)
                _store_row(b, votes + at + 2 * width, x2)
                _store_row(b, votes + at + 3 * width, x3)
                y = _dot_row(b, other + at, x0, y)
                y = _dot_row(b, other + at + width, x1, y)
                y = _dot_row(b, other + at + 2 * width, x2, y)
                y = _dot_row(b, other + at + 3 * width, x3, y)
            at = products + j * blocks * LANES
            if blocks == 1:
                _store(b, at, _load(b, at) + ((y[0] + y[1]) + (y[2] + y[3])))
            else:
                for k in range(4):
                    to = at + (column + k) % blocks * LANES
                    _store(b, to, _load(b, to) + y[k])


@_inner
def _multiply_rows(b, votes, other, J, Q, C, blocks, products):
    """Products of the votes with ``other`` summed over rows and columns, (J, blocks)."""
    width = blocks * LANES
    for j in range(J):
        for block in range(blocks):
            y0 = _number(0.0)
            y1 = y0
            at = (j * Q * C * blocks + block) * LANES
            for _ in range(0, Q * C, 2):
                y0 = _fma(_load(b, votes + at), _load(b, other + at), y0)
                y1 = _fma(_load(b, votes + at + width), _load(b, other + at + width), y1)
                at += 2 * width
            _store(b, products + (j * blocks + block) * LANES, y0 + y1)


@_inner
def _softmax(b, agreement, J, blocks, scale):
    """Softmax of scale times the agreement over the parents, in place."""
    factor = _repeat(scale)
    width = blocks * LANES
    for block in range(blocks):
        at = agreement + block * LANES
        top = _load(b, at) * factor
        for j in range(1, J):
            top = _maximum(top, _load(b, at + j * width) * factor)
        total = _number(0.0)
        for j in range(J):
            e = _exp(_load(b, at + j * width) * factor - top)
            _store(b, at + j * width, e)
            total = total + e
        share = _number(1.0) / total
        for j in range(J):
            _store(b, at + j * width, _load(b, at + j * width) * share)


# --------------------------------------------------------------------------------------------------------- passes


@_inner
def _scratch(size):
    """An array and where in it a cache line begins."""
    b = np.empty(size + LANES, np.float32)
    return b, (-(b.ctypes.data >> 2)) & (LANES - 1)


@_inner
def _clear(b, start, size):
    for k in range(start, start + size, LANES):
        _store(b, k, _number(0.0))


@_outer
def _forward(children, weight, parents, scale, blocks, by_chunk, by_child, sizes):
    """Sums by child part, (by_child, J Q C T); all arrays flat."""
    num_children, J, Q, R, C, T = sizes
    rows = J * Q
    size = rows * C * T
    out = np.empty(by_child * size, np.float32)
    chunks = T // (blocks * LANES)
    wide = C * blocks * LANES
    for part in prange(by_chunk * by_child):
        own, over = part % by_child, part // by_child
        b, poses = _scratch((R + 3 * rows) * wide + J * blocks * LANES)
        votes = poses + R * wide
        above = votes + rows * wide
        sums = above + rows * wide
        routing = sums + rows * wide
        for chunk in range(chunks * over // by_chunk, chunks * (over + 1) // by_chunk):
            start = chunk * blocks * LANES
            _pack(parents, start, rows, C, T, b, above, blocks)
            _clear(b, sums, rows * wide)
            for i in range(num_children * own // by_child, num_children * (own + 1) // by_child):
                _pack(children, i * R * C * T + start, R, C, T, b, poses, blocks)
                _vote(weight, i * rows * R, J, Q, R, C, blocks, b, poses, votes, above, routing)
                _softmax(b, routing, J, blocks, scale)
                for j in range(J):
                    for block in range(blocks):
                        r = _load(b, routing + (j * blocks + block) * LANES)
                        at = (j * Q * C * blocks + block) * LANES
                        for _ in range(Q * C):
                            _store(b, sums + at, _fma(r, _load(b, votes + at), _load(b, sums + at)))
                            at += blocks * LANES
            _unpack(b, sums, rows, C, T, out, own * size + start, blocks)
    return out


@_inner
def _unblock(matrix, start, columns, b):
    """4 rows from blocks of 4 columns, one after another, to rows, by way of the scratch."""
    for k in range(0, 4 * columns, LANES):
        _store(b, k, _load(matrix, start + k))
    for column in range(0, columns, 4):
        for row in range(4):
            for k in range(4):
                matrix[start + row * columns + column + k] = b[column * 4 + row * 4 + k]


@_outer
def _backward(children, weight, parents, grad_sums, scale, blocks, parts, sizes):  # noqa: PLR0912
    """Gradients of children, of weights, and of parents by part, (parts, J Q C T); all arrays flat."""
    num_children, J, Q, R, C, T = sizes
    rows = J * Q
    size = rows * C * T
    grad_children = np.empty(children.size, np.float32)
    grad_weight = np.zeros(weight.size, np.float32)
    grad_parents = np.empty(parts * size, np.float32)
    n = C * blocks
    wide = n * LANES
    factor = np.float32(scale)
    for part in prange(parts):
        b, poses = _scratch((2 * R + 4 * rows) * wide + 2 * J * blocks * LANES)
        grad_poses = poses + R * wide
        own = range(num_children * part // parts, num_children * (part + 1) // parts)
        votes = grad_poses + R * wide
        above = votes + rows * wide
        grads = above + rows * wide
        grad_above = grads + rows * wide
        routing = grad_above + rows * wide
        grad_routing = routing + J * blocks * LANES
        for chunk in range(T // (blocks * LANES)):
            start = chunk * blocks * LANES
            _pack(parents, start, rows, C, T, b, above, blocks)
            _pack(grad_sums, start, rows, C, T, b, grads, blocks)
            _clear(b, grad_above, rows * wide)
            for i in own:
                child = i * R * C * T + start
                _pack(children, child, R, C, T, b, poses, blocks)
                _vote(weight, i * rows * R, J, Q, R, C, blocks, b, poses, votes, above, routing)
                _multiply_rows(b, votes, grads, J, Q, C, blocks, grad_routing)
                _softmax(b, routing, J, blocks, scale)
                for block in range(blocks):
                    inner = _number(0.0)
                    for j in range(J):
                        at = (j * blocks + block) * LANES
                        inner = _fma(_load(b, routing + at), _load(b, grad_routing + at), inner)
                    for j in range(J):
                        at = (j * blocks + block) * LANES
                        r = _load(b, routing + at)
                        g = (_load(b, grad_routing + at) - inner) * r * _repeat(factor)
                        at = (j * Q * n + block) * LANES
                        for _ in range(Q * C):
                            _store(b, grad_above + at, _fma(g, _load(b, votes + at), _load(b, grad_above + at)))
                            _store(b, votes + at, _fma(g, _load(b, above + at), r * _load(b, grads + at)))
                            at += blocks * LANES
                # What lies at `votes` is their gradient from here on.
                for r4 in range(0, R, 4):
                    for column in range(0, n, 4):
                        x = _multiply(weight, i * rows * R + r4, 1, R, rows, b, votes + column * LANES, n)
                        at = grad_poses + (r4 * n + column) * LANES
                        _store_row(b, at, x[0])
                        _store_row(b, at + wide, x[1])
                        _store_row(b, at + 2 * wide, x[2])
                        _store_row(b, at + 3 * wide, x[3])
                _unpack(b, grad_poses, R, C, T, grad_children, child, blocks)
                for row in range(0, rows, 4):
                    for r4 in range(0, R, 4):
                        sums = _sum_lanes(_multiply_transposed(b, votes + row * wide, poses + r4 * wide, n))
                        at = i * rows * R + row * R + r4 * 4
                        _store(grad_weight, at, _load(grad_weight, at) + sums)
            _unpack(b, grad_above, rows, C, T, grad_parents, part * size + start, blocks)
        for i in own:
            for row in range(i * rows, (i + 1) * rows, 4):
                _unblock(grad_weight, row * R, R, b)
    return grad_children, grad_weight, grad_parents


# ---------------------------------------------------------------------------------------------------------- torch


def attention_pass(children: Tensor, weight: Tensor, parents: Tensor, scale: float) -> Tensor:
    """The routed pass over gathered children.

    Args:
        children: poses of the children, (I, R, C, T), float32.
        weight: transformation matrices, (I, J, Q, R).
        parents: poses of the parents, (J, Q, C, T).
        scale: factor of the agreement.

    Returns:
        The sums, (J, Q, C, T).
    """
    _, R, C, T = children.shape
    Q = parents.shape[1]
    blocks = _choose_blocks(C)
    more_rows, more_parent_rows, more = -R % 4, -Q % 4, -T % (blocks * LANES)
    if more_rows or more_parent_rows or more:
        children = pad(children, (0, more, 0, 0, 0, more_rows))
        weight = pad(weight, (0, more_rows, 0, more_parent_rows))
        parents = pad(parents, (0, more, 0, 0, 0, more_parent_rows))
    sums: Tensor = _AttentionPass.apply(children.contiguous(), weight.contiguous(), parents.contiguous(), scale)
    return sums[:, :Q, :, :T]


def _choose_blocks(columns: int) -> int:
    blocks = 4 // math.gcd(columns, 4)
    return blocks * max(1, MIN_COLUMNS // (columns * blocks))


def _flatten(tensor: Tensor) -> np.ndarray[Any, Any]:
    return tensor.detach().view(-1).numpy()


class _AttentionPass(torch.autograd.Function):
    """Hands flat arrays to the compiled loops; sizes are multiples of those of the blocks."""

    @staticmethod
    def forward(ctx: Any, children: Tensor, weight: Tensor, parents: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(children, weight, parents)
        C, T = children.shape[2:]
        ctx.sizes, ctx.scale, ctx.blocks = (*weight.shape, C, T), np.float32(scale), _choose_blocks(C)
        threads = min(torch.get_num_threads(), _MAX_THREADS)
        numba.set_num_threads(threads)
        by_chunk, by_child = threads, 1
        if T // (ctx.blocks * LANES) < 4 * threads:
            by_chunk, by_child = 1, min(threads, len(children))
        arrays = (_flatten(tensor) for tensor in (children, weight, parents))
        out = _forward(*arrays, ctx.scale, ctx.blocks, by_chunk, by_child, ctx.sizes)
        return _add_parts(out, by_child, parents)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_sums: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        children, weight, parents = ctx.saved_tensors
        threads = min(torch.get_num_threads(), _MAX_THREADS)
        numba.set_num_threads(threads)
        parts = min(threads, len(children))
        arrays = [_flatten(tensor) for tensor in (children, weight, parents, grad_sums.contiguous())]
        grads = _backward(*arrays, ctx.scale, ctx.blocks, parts, ctx.sizes)
        grad_children, grad_weight = (torch.from_numpy(grad) for grad in grads[:2])
        grad_parents = _add_parts(grads[2], parts, parents)
        return grad_children.view_as(children), grad_weight.view_as(weight), grad_parents, None


def _add_parts(parts: np.ndarray[Any, Any], number: int, like: Tensor) -> Tensor:
    copies = torch.from_numpy(parts).view(number, *like.shape)
    return copies[0] if number == 1 else copies.sum(0)
