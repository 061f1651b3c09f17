"""Triton kernels over stacked clients, called by `layer_kernels`. A program works for one client, chosen by its number.

Images lie as (k b, H, W, C): a client's images together, channels last. A convolution is a matrix product whose left
side is never written down: a pixel of the result is a row, a weight of the filter a column. WHOLE says that a step
along the columns stays within one place (tap) of the filter, so that a look at the pixel tells whether that place lies
inside the image; otherwise images come with zeros around them.
"""

import triton
import triton.language as tl

# Numbers that are named here are not looked at by the compiler, which would else make a kernel for ones, one for
# multiples of 16 and one for others: what has to be compiled anew for a layer of another size is less by half.
SIDES = ["images", "H", "W", "M", "R", "S"]
PLACES = ["OH", "OW", "OHW", "steps", "top", "left_most", "across"]
MOVES = ["stride_h", "stride_w", "pad_h", "pad_w"]
SHARES = ["P", "splits"]


@triton.jit
def _top(x):
    """The first eight binary digits of float32 numbers: what a bfloat16 holds exactly."""
    return (x.to(tl.uint32, bitcast=True) & 0xFFFF0000).to(tl.float32, bitcast=True)


@triton.jit
def _near(x):
    """The nearest number that a bfloat16 holds. A NaN stays one: to a GPU's own, one can add and come out at zero."""
    return tl.where(x == x, ((x.to(tl.uint32, bitcast=True) + 0x8000) & 0xFFFF0000).to(tl.float32, bitcast=True), x)


@triton.jit(do_not_specialize=SIDES + PLACES + MOVES)
def convolve(
    x, w, bias, y,
    images, H, W, OW, OHW, M, O, K, S, steps, top, left_most, across,
    stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w,
    C: tl.constexpr, BIASED: tl.constexpr, WHOLE: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """y (k, M, O) = the convolution of x (k b, H, W, C) with w (k, O, K), K = (r, s, c); M pixels a client.

    WHOLE: `steps` are those of the filter's places that reach the image anywhere: `across` in a row, from (top,
    left_most) on.
    """
    client = tl.program_id(1).to(tl.int64)
    tiles_n = tl.cdiv(O, BN)
    at_m, at_n = tl.program_id(0) // tiles_n, tl.program_id(0) % tiles_n
    rm, rn, lane = at_m * BM + tl.arange(0, BM), at_n * BN + tl.arange(0, BN), tl.arange(0, BK)
    pixel = tl.minimum(rm, M - 1)
    place = pixel % OHW
    h, v = (place // OW) * stride_h - pad_h, (place % OW) * stride_w - pad_w
    left = x + client * images * H * W * C + ((pixel // OHW) * H * W + h * W + v) * C
    right = w + client * O * K + tl.minimum(rn, O - 1) * K
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for step in range(steps):
        if WHOLE:
            # Not (step * BK) // C: of that the compiler sees less, and does not fetch ahead.
            tap, first = step // (C // BK), (step % (C // BK)) * BK
            r, s = top + tap // across, left_most + tap % across
            dh, dv = r * dilation_h, s * dilation_w
            inside = (h + dh >= 0) & (h + dh < H) & (v + dv >= 0) & (v + dv < W)
            a = tl.load(left[:, None] + ((dh * W + dv) * C + first + lane)[None, :], mask=inside[:, None], other=0.0)
            b = tl.load(right[None, :] + ((r * S + s) * C + first + lane)[:, None])
        else:
            k = step * BK + lane
            tap, real = k // C, k < K
            offset = ((tap // S) * dilation_h * W + (tap % S) * dilation_w) * C + k % C
            a = tl.load(left[:, None] + offset[None, :], mask=real[None, :], other=0.0)
            b = tl.load(right[None, :] + k[:, None], mask=real[:, None], other=0.0)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    if BIASED:
        acc += tl.load(bias + client * O + rn, mask=rn < O, other=0.0)[None, :]
    target = y + client * M * O + rm[:, None] * O + rn[None, :]
    tl.store(target, acc.to(y.dtype.element_ty), mask=(rm < M)[:, None] & (rn < O)[None, :])


@triton.jit(do_not_specialize=SIDES + PLACES + MOVES)
def convolve_back(
    dy, w, dx,
    images, H, W, OH, OW, C, O, R, S,
    pad_h, pad_w, dilation_h, dilation_w,
    STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """dx (k b, H, W, C): what reaches the input of `convolve` from dy (k b, OH, OW, O), with w (k, C, R, S, O).

    Pixels are worked by their place in a stride, since only every stride-th row of the filter touches a pixel. With a
    stride there is no dilation. EVEN: O is a multiple of BK.
    """
    client = tl.program_id(1).to(tl.int64)
    phase_h, phase_w = tl.program_id(2) // STRIDE_W, tl.program_id(2) % STRIDE_W
    # Pixels u = pad + h of the padded input with u % STRIDE = phase, numbered q = u // STRIDE from `low` on.
    low_h, low_w = (pad_h - phase_h + STRIDE_H - 1) // STRIDE_H, (pad_w - phase_w + STRIDE_W - 1) // STRIDE_W
    # One stride is added before the division: of what is below zero it would round up.
    count_h = (pad_h + H - 1 - phase_h + STRIDE_H) // STRIDE_H - low_h
    count_w = (pad_w + W - 1 - phase_w + STRIDE_W) // STRIDE_W - low_w
    M = images * count_h * count_w
    tiles_n = tl.cdiv(C, BN)
    at_m, at_n = tl.program_id(0) // tiles_n, tl.program_id(0) % tiles_n
    if at_m * BM < M:
        rm, rn, lane = at_m * BM + tl.arange(0, BM), at_n * BN + tl.arange(0, BN), tl.arange(0, BK)
        pixel = tl.minimum(rm, M - 1)
        image, place = pixel // (count_h * count_w), pixel % (count_h * count_w)
        q_h, q_w = low_h + place // count_w, low_w + place % count_w
        left = dy + client * images * OH * OW * O + (image * OH * OW + q_h * OW + q_w) * O
        taps_h, taps_w = (R - phase_h + STRIDE_H - 1) // STRIDE_H, (S - phase_w + STRIDE_W - 1) // STRIDE_W
        # Those of them that reach dy from any pixel, from `top` and `left_most` on.
        top = tl.cdiv(tl.maximum(low_h - OH + 1, 0), dilation_h)
        left_most = tl.cdiv(tl.maximum(low_w - OW + 1, 0), dilation_w)
        taps_h = tl.maximum(tl.minimum(taps_h, (low_h + count_h - 1) // dilation_h + 1) - top, 0)
        taps_w = tl.maximum(tl.minimum(taps_w, (low_w + count_w - 1) // dilation_w + 1) - left_most, 0)
        right = w + client * C * R * S * O + tl.minimum(rn, C - 1) * R * S * O
        per_tap = tl.cdiv(O, BK)
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        for step in range(taps_h * taps_w * per_tap):
            tap, first = step // per_tap, (step % per_tap) * BK
            j_h, j_w = top + tap // taps_w, left_most + tap % taps_w
            dh, dv = j_h * dilation_h, j_w * dilation_w
            inside = (q_h >= dh) & (q_h - dh < OH) & (q_w >= dv) & (q_w - dv < OW)
            o = first + lane
            source = left[:, None] + (o - (dh * OW + dv) * O)[None, :]
            weights = right[None, :] + (((phase_h + STRIDE_H * j_h) * S + phase_w + STRIDE_W * j_w) * O + o)[:, None]
            if EVEN:
                a = tl.load(source, mask=inside[:, None], other=0.0)
                b = tl.load(weights)
            else:
                a = tl.load(source, mask=inside[:, None] & (o < O)[None, :], other=0.0)
                b = tl.load(weights, mask=(o < O)[:, None], other=0.0)
            acc = tl.dot(a, b, acc, input_precision=PRECISION)
        h, v = q_h * STRIDE_H + phase_h - pad_h, q_w * STRIDE_W + phase_w - pad_w
        target = dx + client * images * H * W * C + ((image * H + h) * W + v)[:, None] * C + rn[None, :]
        tl.store(target, acc.to(dx.dtype.element_ty), mask=(rm < M)[:, None] & (rn < C)[None, :])


@triton.jit(do_not_specialize=SIDES)
def convolve_weights(
    x, dy, dw,
    images, H, W, M, O, K, S, per_split,
    stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w,
    dw_client, dw_split,
    C: tl.constexpr, OW: tl.constexpr, OHW: tl.constexpr,
    WHOLE: tl.constexpr, BEYOND: tl.constexpr, PRECISION: tl.constexpr, PARTS: tl.constexpr, HALF: tl.constexpr,
    BO: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """dw (k, splits, O, K): what reaches the weights of `convolve`, from x and dy (k, M, O).

    The pixels are shared among `splits` programs, `per_split` each, whose sums are added up afterwards, in order.
    BEYOND: some places of the filter never reach the image, and have nothing to add up. PARTS: of float32, which matrix
    units do not take in this order, three products of their bfloat16 parts: more digits than TF32 has. The result's
    sides are known to the compiler: dividing by anything else would take longer here than the products.
    """
    client, split = tl.program_id(1).to(tl.int64), tl.program_id(2)
    tiles_n = tl.cdiv(K, BN)
    at_o, at_n = tl.program_id(0) // tiles_n, tl.program_id(0) % tiles_n
    ro, rn, lane = at_o * BO + tl.arange(0, BO), at_n * BN + tl.arange(0, BN), tl.arange(0, BK)
    if WHOLE:
        tap, part = at_n // (C // BN), (at_n % (C // BN)) * BN
        dh, dv = (tap // S) * dilation_h, (tap % S) * dilation_w
        offset = (dh * W + dv) * C + part + tl.arange(0, BN)
    else:
        offset = (((rn // C) // S) * dilation_h * W + ((rn // C) % S) * dilation_w) * C + rn % C
    images_of = x + client * images * H * W * C
    slopes_of = dy + client * M * O + ro
    acc = tl.zeros((BO, BN), dtype=tl.float32)
    first, last = split * per_split, tl.minimum((split + 1) * per_split, M)
    if BEYOND:
        low_h, low_v = tl.cdiv(tl.maximum(pad_h - dh, 0), stride_h), tl.cdiv(tl.maximum(pad_w - dv, 0), stride_w)
        high_h, high_v = H - 1 + pad_h - dh, W - 1 + pad_w - dv
        reached = (high_h >= low_h * stride_h) & (high_v >= low_v * stride_w) & (low_h < OHW // OW) & (low_v < OW)
        last = tl.where(reached, last, first)
    for at in range(first, last, BK):
        pixel = at + lane
        real = pixel < last
        pixel = tl.minimum(pixel, M - 1)
        place = pixel % OHW
        h, v = (place // OW) * stride_h - pad_h, (place % OW) * stride_w - pad_w
        rows = ((pixel // OHW) * H * W + h * W + v) * C
        a = tl.load(slopes_of[None, :] + (pixel * O)[:, None], mask=real[:, None] & (ro < O)[None, :], other=0.0)
        if WHOLE:
            inside = real & (h + dh >= 0) & (h + dh < H) & (v + dv >= 0) & (v + dv < W)
            b = tl.load(images_of + rows[:, None] + offset[None, :], mask=inside[:, None], other=0.0)
        else:
            b = tl.load(images_of + rows[:, None] + offset[None, :], mask=real[:, None] & (rn < K)[None, :], other=0.0)
        if PARTS:
            a_top, b_top = _near(a), _near(b)
            a_low, b_low = _near(a - a_top), _near(b - b_top)
            if HALF:
                a_top, a_low = a_top.to(tl.bfloat16), a_low.to(tl.bfloat16)
                b_top, b_low = b_top.to(tl.bfloat16), b_low.to(tl.bfloat16)
            acc = tl.dot(tl.trans(a_low), b_top, acc, input_precision="ieee")
            acc = tl.dot(tl.trans(a_top), b_low, acc, input_precision="ieee")
            acc = tl.dot(tl.trans(a_top), b_top, acc, input_precision="ieee")
        else:
            acc = tl.dot(tl.trans(a), b, acc, input_precision=PRECISION)
    target = dw + client * dw_client + split * dw_split + ro[:, None] * K + rn[None, :]
    tl.store(target, acc, mask=(ro < O)[:, None] & (rn < K)[None, :])


@triton.jit
def patches(
    x, y, pixels, pad_h, pad_w,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, OW: tl.constexpr, OHW: tl.constexpr, K: tl.constexpr,
    S: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr, DILATION_H: tl.constexpr, DILATION_W: tl.constexpr,
    WIDTH: tl.constexpr, BP: tl.constexpr, BW: tl.constexpr,
):  # fmt: skip
    """y (n OH OW, WIDTH): for every pixel of a convolution's result what the filter sees, K = (r, s, c), then zeros.

    All sides are known to the compiler: this is arithmetic of places, most of all."""
    pixel, k = tl.program_id(0) * BP + tl.arange(0, BP), tl.program_id(1) * BW + tl.arange(0, BW)
    image, place = (pixel // OHW).to(tl.int64), pixel % OHW
    h, v = (place // OW) * STRIDE_H - pad_h, (place % OW) * STRIDE_W - pad_w
    tap = k // C
    # Read with the pixels side by side, as they lie in x, and written with the places side by side.
    h = h[None, :] + ((tap // S) * DILATION_H)[:, None]
    v = v[None, :] + ((tap % S) * DILATION_W)[:, None]
    inside = (k < K)[:, None] & (pixel < pixels)[None, :] & (h >= 0) & (h < H) & (v >= 0) & (v < W)
    value = tl.load(x + (image * H * W * C)[None, :] + (h * W + v) * C + (k % C)[:, None], mask=inside, other=0.0)
    target = y + pixel.to(tl.int64)[:, None] * WIDTH + k[None, :]
    tl.store(target, tl.trans(value), mask=(pixel < pixels)[:, None])


@triton.jit
def rounded(x, y, n, x_row, BLOCK: tl.constexpr):
    """y (k, n) = rows of x, in y's precision."""
    row, at = tl.program_id(1).to(tl.int64), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + row * x_row + at, mask=at < n)
    tl.store(y + row * n + at, value.to(y.dtype.element_ty), mask=at < n)


@triton.jit
def turned(
    x, y, rows, columns, x_client, y_client,
    BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """y (k, parts, columns, rows) = x (k, parts, rows, columns), every matrix turned over, in y's precision."""
    part, client = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    across = tl.cdiv(columns, BC)
    r = (tl.program_id(0) // across) * BR + tl.arange(0, BR)
    c = (tl.program_id(0) % across) * BC + tl.arange(0, BC)
    source = x + client * x_client + part * rows * columns + r[:, None] * columns + c[None, :]
    value = tl.load(source, mask=(r < rows)[:, None] & (c < columns)[None, :], other=0.0)
    target = y + client * y_client + part * rows * columns + c[:, None] * rows + r[None, :]
    tl.store(target, tl.trans(value).to(y.dtype.element_ty), mask=(c < columns)[:, None] & (r < rows)[None, :])


@triton.jit(do_not_specialize=SIDES + PLACES)
def pool(x, y, where, OW, OH, H, W, C, P: tl.constexpr, BV: tl.constexpr, BC: tl.constexpr):
    """y (n, OH, OW, C) = relu of the largest of P x P pixels, and (uint8) which of them it was, the first of equals.

    A program does a row of an image. Which is 255 where the largest is not above zero.
    """
    row = tl.program_id(0).to(tl.int64)
    image, h = row // OH, row % OH
    v, c = tl.program_id(1) * BV + tl.arange(0, BV), tl.program_id(2) * BC + tl.arange(0, BC)
    real = (v < OW)[:, None] & (c < C)[None, :]
    source = x + (image * H + h * P) * W * C + (v * P * C)[:, None] + c[None, :]
    best = tl.load(source, mask=real, other=0.0).to(tl.float32)
    chosen = tl.zeros((BV, BC), dtype=tl.int32)
    for i in tl.static_range(1, P * P):
        value = tl.load(source + ((i // P) * W + i % P) * C, mask=real, other=0.0).to(tl.float32)
        larger = (value > best) | (value != value)
        best, chosen = tl.where(larger, value, best), tl.where(larger, i, chosen)
    best = tl.where(best < 0, 0.0, best)  # a NaN stays one
    target = row * OW * C + (v * C)[:, None] + c[None, :]
    tl.store(y + target, best.to(y.dtype.element_ty), mask=real)
    tl.store(where + target, tl.where(best == 0, 255, chosen).to(tl.uint8), mask=real)


@triton.jit(do_not_specialize=SIDES + PLACES)
def pool_back(dy, where, dx, OW, OH, H, W, C, P: tl.constexpr, BV: tl.constexpr, BC: tl.constexpr):
    """dx (n, H, W, C) from dy (n, OH, OW, C): each slope goes to the pixel that was largest, or nowhere.

    A program does the P rows of dx that lie under a row of dy, and past the last those that lie under none.
    """
    row = tl.program_id(0).to(tl.int64)
    under = (H + P - 1) // P
    image, h = row // under, row % under
    v, c = tl.program_id(1) * BV + tl.arange(0, BV), tl.program_id(2) * BC + tl.arange(0, BC)
    real = (v * P < W)[:, None] & (c < C)[None, :]
    above = (image * OH + h) * OW * C + (v * C)[:, None] + c[None, :]
    known = real & ((v < OW) & (v * 0 + h < OH))[:, None]
    chosen = tl.load(where + above, mask=known, other=255).to(tl.int32)
    slope = tl.load(dy + above, mask=known, other=0.0)
    target = dx + (image * H + h * P) * W * C + (v * P * C)[:, None] + c[None, :]
    for i in tl.static_range(P * P):
        inside = real & ((v * P + i % P < W) & (v * 0 + h * P + i // P < H))[:, None]
        tl.store(target + ((i // P) * W + i % P) * C, tl.where(chosen == i, slope, 0.0), mask=inside)


@triton.jit(do_not_specialize=SHARES)
def moments(x, mean, spread, P, C, splits, per_split, BP: tl.constexpr, BC: tl.constexpr):
    """Of x (k, P, C), for each client, split of its rows and channel: the mean and the sum of squares around it."""
    client, split = tl.program_id(0).to(tl.int64), tl.program_id(2)
    c, lane = tl.program_id(1) * BC + tl.arange(0, BC), tl.arange(0, BP)
    first, last = split * per_split, tl.minimum((split + 1) * per_split, P)
    rows = x + client * P * C + c
    origin = tl.load(rows + first * C, mask=c < C, other=0.0).to(tl.float32)  # so that nothing large is subtracted
    sums, squares = tl.zeros((BP, BC), dtype=tl.float32), tl.zeros((BP, BC), dtype=tl.float32)
    for at in range(first, last, BP):
        p = at + lane
        real = (p < last)[:, None] & (c < C)[None, :]
        value = tl.load(rows[None, :] + (p * C)[:, None], mask=real, other=0.0).to(tl.float32) - origin[None, :]
        value = tl.where(real, value, 0.0)
        sums += value
        squares += value * value
    count = (last - first).to(tl.float32)
    total = tl.sum(sums, 0)
    target = (client * splits + split) * C + c
    tl.store(mean + target, origin + total / count, mask=c < C)
    tl.store(spread + target, tl.sum(squares, 0) - total * total / count, mask=c < C)


@triton.jit(do_not_specialize=SHARES)
def scaled(
    x, factor, summand, other, y,
    P, C,
    ADDED: tl.constexpr, RELU: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """y (k, P, C) = x factor + summand, which are (k, C); ADDED: + other (k, P, C); RELU: if that is above zero."""
    client = tl.program_id(1).to(tl.int64)
    c, p = tl.program_id(2) * BC + tl.arange(0, BC), tl.program_id(0) * BP + tl.arange(0, BP)
    a = tl.load(factor + client * C + c, mask=c < C, other=0.0)
    b = tl.load(summand + client * C + c, mask=c < C, other=0.0)
    real = (p < P)[:, None] & (c < C)[None, :]
    at = client * P * C + (p * C)[:, None] + c[None, :]
    value = tl.load(x + at, mask=real, other=0.0).to(tl.float32) * a[None, :] + b[None, :]
    if ADDED:
        value += tl.load(other + at, mask=real, other=0.0).to(tl.float32)
    if RELU:
        value = tl.where(value < 0, 0.0, value)  # a NaN stays one
    tl.store(y + at, value.to(y.dtype.element_ty), mask=real)


@triton.jit(do_not_specialize=SHARES)
def slopes(
    x, dy, y, mean, sum_dy, sum_dyx,
    P, C, splits, per_split,
    RELU: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """(k, splits, C) sums of dy and of dy (x - mean) over a split of the rows. RELU: where y is above zero."""
    client, split = tl.program_id(0).to(tl.int64), tl.program_id(2)
    c, lane = tl.program_id(1) * BC + tl.arange(0, BC), tl.arange(0, BP)
    first, last = split * per_split, tl.minimum((split + 1) * per_split, P)
    centre = tl.load(mean + client * C + c, mask=c < C, other=0.0)
    plain, along = tl.zeros((BP, BC), dtype=tl.float32), tl.zeros((BP, BC), dtype=tl.float32)
    for start in range(first, last, BP):
        p = start + lane
        real = (p < last)[:, None] & (c < C)[None, :]
        at = client * P * C + (p * C)[:, None] + c[None, :]
        slope = tl.load(dy + at, mask=real, other=0.0).to(tl.float32)
        if RELU:
            slope = tl.where(tl.load(y + at, mask=real, other=0.0) > 0, slope, 0.0)
        value = tl.load(x + at, mask=real, other=0.0).to(tl.float32)
        plain += slope
        along += slope * (value - centre[None, :])
    target = (client * splits + split) * C + c
    tl.store(sum_dy + target, tl.sum(plain, 0), mask=c < C)
    tl.store(sum_dyx + target, tl.sum(along, 0), mask=c < C)


@triton.jit(do_not_specialize=SHARES)
def scaled_back(
    x, dy, y, of_dy, of_x, summand, dx, dother,
    P, C,
    ADDED: tl.constexpr, RELU: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """dx (k, P, C) = dy of_dy + x of_x + summand, which are (k, C), and dother = dy. RELU: where y is above zero."""
    client = tl.program_id(1).to(tl.int64)
    c, p = tl.program_id(2) * BC + tl.arange(0, BC), tl.program_id(0) * BP + tl.arange(0, BP)
    a = tl.load(of_dy + client * C + c, mask=c < C, other=0.0)
    b = tl.load(of_x + client * C + c, mask=c < C, other=0.0)
    e = tl.load(summand + client * C + c, mask=c < C, other=0.0)
    real = (p < P)[:, None] & (c < C)[None, :]
    at = client * P * C + (p * C)[:, None] + c[None, :]
    slope = tl.load(dy + at, mask=real, other=0.0).to(tl.float32)
    if RELU:
        slope = tl.where(tl.load(y + at, mask=real, other=0.0) > 0, slope, 0.0)
    if ADDED:
        tl.store(dother + at, slope.to(dother.dtype.element_ty), mask=real)
    value = tl.load(x + at, mask=real, other=0.0).to(tl.float32)
    result = slope * a[None, :] + value * b[None, :] + e[None, :]
    tl.store(dx + at, result.to(dx.dtype.element_ty), mask=real)


@triton.jit
def adam(
    W, G, first, second, anchor, size, root, pull,
    d, w_row, g_row, first_row, second_row, anchor_row,
    share1, keep2, share2, eps, decay,
    ANCHORED: tl.constexpr, EXACT: tl.constexpr, DECAYED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One step of Adam for every row of W: the formulas of `Optimiser.step`, each number read and written once.

    ANCHORED: the gradient of ||w - anchor||^2 / (2 pull) is added, pull (k,); EXACT: in its place weights go, after
    their step, the share `pull` of the way to the anchor, rounded as torch's `lerp` has it.
    """
    row = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = column < d
    w = tl.load(W + row * w_row + column, mask=real)
    g = tl.load(G + row * g_row + column, mask=real)
    if ANCHORED:
        u, p = tl.load(anchor + row * anchor_row + column, mask=real), tl.load(pull + row)
        if not EXACT:
            g += (w - u) / p
    if DECAYED:
        g += decay * w
    m = tl.load(first + row * first_row + column, mask=real)
    v = tl.load(second + row * second_row + column, mask=real)
    m += share1 * (g - m)
    v = v * keep2 + share2 * (g * g)
    w -= m / ((tl.sqrt(v) / tl.load(root + row) + eps) / tl.load(size + row))
    if EXACT:
        w = tl.where(p < 0.5, w + p * (u - w), u - (1 - p) * (u - w))
    tl.store(first + row * first_row + column, m, mask=real)
    tl.store(second + row * second_row + column, v, mask=real)
    tl.store(W + row * w_row + column, w, mask=real)


@triton.jit
def gram(
    W, scale, mean, out, squares,
    m, d, w_row, M, per_split,
    UNIT: tl.constexpr, SCALED: tl.constexpr, SINGLE: tl.constexpr, HALF: tl.constexpr,
    BM: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """out (splits, M, M): products of rows of W (m, d), scaled and less their mean, over a split of the columns; and
    squares (splits, M): of the rows before the mean is taken off. d and w_row, the way from row to row, count units.

    SINGLE: one tile has all rows, and sees their mean by itself. A centred number is the sum of two bfloat16, top and
    low, and a rest of 2^-17 of it that has either sign. Matrix units round sums towards zero, so that sums would shrink
    with every product: they add up BK columns only, the smallest products first; these sums are added as float32 are,
    and splits in float64 later. In a single tile top low^T is taken twice, in place of its mirror: the mean of `out`
    and its mirror is right.
    """
    split, at_i, at_j = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    if at_j <= at_i:
        ri, rj, lane = at_i * BM + tl.arange(0, BM), at_j * BM + tl.arange(0, BM), tl.arange(0, BK)
        of_i, of_j = W + ri.to(tl.int64) * w_row * UNIT, W + rj.to(tl.int64) * w_row * UNIT
        acc, total = tl.zeros((BM, BM), dtype=tl.float32), tl.zeros((BM,), dtype=tl.float32)
        first = split * per_split
        last = tl.minimum(first + per_split, d * UNIT)
        for at in range(first, last, BK):
            c = at + lane
            real = (ri < m)[:, None] & (c < last)[None, :]
            a = tl.load(of_i[:, None] + c[None, :], mask=real, other=0.0)
            if SCALED:
                a *= tl.load(scale + ri, mask=ri < m, other=0.0)[:, None]
            total += tl.sum(a * a, 1)
            if SINGLE:
                centre = tl.sum(a, 0) / m
            else:
                centre = tl.load(mean + c, mask=c < last, other=0.0)
            a = tl.where(real, a - centre[None, :], 0.0)
            a_top = _near(a)
            a_low = _near(a - a_top)
            if SINGLE:
                b_top, b_low = a_top, a_low
            else:
                real = (rj < m)[:, None] & (c < last)[None, :]
                b = tl.load(of_j[:, None] + c[None, :], mask=real, other=0.0)
                if SCALED:
                    b *= tl.load(scale + rj, mask=rj < m, other=0.0)[:, None]
                b = tl.where(real, b - centre[None, :], 0.0)
                b_top = _near(b)
                b_low = _near(b - b_top)
            if HALF:
                a_top, a_low = a_top.to(tl.bfloat16), a_low.to(tl.bfloat16)
                b_top, b_low = b_top.to(tl.bfloat16), b_low.to(tl.bfloat16)
            part = tl.dot(a_low, tl.trans(b_low), input_precision="ieee")
            if SINGLE:
                part = 2.0 * tl.dot(a_top, tl.trans(b_low), 0.5 * part, input_precision="ieee")
            else:
                part = tl.dot(a_top, tl.trans(b_low), part, input_precision="ieee")
                part = tl.dot(a_low, tl.trans(b_top), part, input_precision="ieee")
            part = tl.dot(a_top, tl.trans(b_top), part, input_precision="ieee")
            acc += 2.0 * part  # a factor keeps the compiler from adding up in the matrix units after all
        tl.store(out + split * M * M + ri[:, None] * M + rj[None, :], 0.5 * acc)
        if at_i == at_j:
            tl.store(squares + split * M + ri, total)


@triton.jit
def mix(
    xi, W, U,
    r, m, D, w_row, u_row, R, M, tiles,
    UNIT: tl.constexpr, SINGLE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """U (r, D) = xi W, W (m, D), from xi (3, R, M) in three parts that a bfloat16 holds exactly, as W is taken apart
    here. Of nine products the three smallest are left out. With xi the identity, U is W bit for bit (but for the sign
    of zeros, and the last bits of what is below 1e-33).

    A program goes from tile to tile of the columns. SINGLE: M is BK, so that it keeps xi at hand. Matrix units add up
    BK rows at a time, the smallest products first, as in `gram`. D, w_row and u_row count units.
    """
    rm, lane, k = tl.program_id(1) * BM + tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BK)
    source = xi + rm[:, None] * M + k[None, :]
    of_m = U + rm.to(tl.int64)[:, None] * u_row * UNIT
    if SINGLE:
        x_high, x_middle, x_low = tl.load(source), tl.load(source + R * M), tl.load(source + 2 * R * M)
        of_k = W + k.to(tl.int64)[:, None] * w_row * UNIT
        for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
            rn = tile * BN + lane
            w = tl.load(of_k + rn[None, :], mask=(k < m)[:, None] & (rn < D * UNIT)[None, :], other=0.0)
            acc = _product(x_high, x_middle, x_low, w)
            tl.store(of_m + rn[None, :], acc, mask=(rm < r)[:, None] & (rn < D * UNIT)[None, :])
    else:
        rn = tl.program_id(0) * BN + lane
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        for at in range(0, m, BK):
            known = (at + k < m)[:, None] & (rn < D * UNIT)[None, :]
            of_k = W + (at + k).to(tl.int64)[:, None] * w_row * UNIT
            w = tl.load(of_k + rn[None, :], mask=known, other=0.0)
            x_high, x_middle = tl.load(source + at), tl.load(source + at + R * M)
            acc += 2.0 * _product(x_high, x_middle, tl.load(source + at + 2 * R * M), w)
        tl.store(of_m + rn[None, :], 0.5 * acc, mask=(rm < r)[:, None] & (rn < D * UNIT)[None, :])


@triton.jit
def _product(x_high, x_middle, x_low, w):
    """x w, x in three parts."""
    high = _top(w)
    middle = _top(w - high)
    low = (w - high - middle).to(x_high.dtype)
    high, middle = high.to(x_high.dtype), middle.to(x_high.dtype)
    part = tl.dot(x_low, high, input_precision="ieee")
    part = tl.dot(x_middle, middle, part, input_precision="ieee")
    part = tl.dot(x_high, low, part, input_precision="ieee")
    part = tl.dot(x_middle, high, part, input_precision="ieee")
    part = tl.dot(x_high, middle, part, input_precision="ieee")
    return tl.dot(x_high, high, part, input_precision="ieee")
