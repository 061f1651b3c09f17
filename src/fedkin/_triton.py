"""Triton kernels over stacked clients. `kernels` calls them; everything here is per client, chosen by a program's number.

Images lie as (k b, H, W, C): a client's images together, channels last. A convolution is a matrix product whose left
side is never written down: a pixel of the result is a row, a weight of the filter a column. Images come padded, so that
no kernel has to look where an image ends.
"""

import triton
import triton.language as tl


@triton.jit
def convolve(
    x, w, bias, y,
    images, M, O, K, C, S, OW, OHW,
    x_image, x_row, x_column,
    stride_h, stride_w, dilation_h, dilation_w,
    BIASED: tl.constexpr, ALIGNED: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """y (k, M, O) = the convolution of x with w (k, O, K), K = (r, s, c); M pixels a client.

    ALIGNED: C is a multiple of BK, so that a step along K stays within one place of the filter.
    """
    client = tl.program_id(1).to(tl.int64)
    tiles_n = tl.cdiv(O, BN)
    at_m, at_n = tl.program_id(0) // tiles_n, tl.program_id(0) % tiles_n
    rm, rn, lane = at_m * BM + tl.arange(0, BM), at_n * BN + tl.arange(0, BN), tl.arange(0, BK)
    pixel = tl.minimum(rm, M - 1)
    place = pixel % OHW
    rows = (pixel // OHW) * x_image + (place // OW) * stride_h * x_row + (place % OW) * stride_w * x_column
    left = x + client * images * x_image + rows
    right = w + client * O * K + tl.minimum(rn, O - 1) * K
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for step in range(0, tl.cdiv(K, BK)):
        if ALIGNED:
            tap, first = (step * BK) // C, (step * BK) % C
            offset = (tap // S) * dilation_h * x_row + (tap % S) * dilation_w * x_column + first + lane
            a = tl.load(left[:, None] + offset[None, :])
            b = tl.load(right[None, :] + (step * BK + lane)[:, None])
        else:
            k = step * BK + lane
            tap, real = k // C, k < K
            offset = (tap // S) * dilation_h * x_row + (tap % S) * dilation_w * x_column + k % C
            a = tl.load(left[:, None] + offset[None, :], mask=real[None, :], other=0.0)
            b = tl.load(right[None, :] + k[:, None], mask=real[:, None], other=0.0)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    if BIASED:
        acc += tl.load(bias + client * O + rn, mask=rn < O, other=0.0)[None, :]
    target = y + client * M * O + rm[:, None] * O + rn[None, :]
    tl.store(target, acc.to(y.dtype.element_ty), mask=(rm < M)[:, None] & (rn < O)[None, :])


@triton.jit
def convolve_back(
    dy, w, dx,
    images, H, W, C, O, R, S,
    pad_h, pad_w, front_h, front_w,
    dy_image, dy_row, dy_column,
    dilation_h, dilation_w,
    STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr, ALIGNED: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """dx (k b, H, W, C): what reaches the input of `convolve` from dy, with w (k, C, R, S, O).

    Pixels are worked by their place in a stride, since only every stride-th row of the filter touches a pixel. dy is
    padded by `front` before, and enough behind. With a stride there is no dilation.
    """
    client = tl.program_id(1).to(tl.int64)
    phase_h, phase_w = tl.program_id(2) // STRIDE_W, tl.program_id(2) % STRIDE_W
    # Pixels u = pad + h of the padded input with u % STRIDE = phase, numbered q = u // STRIDE from `low` on.
    low_h, low_w = (pad_h - phase_h + STRIDE_H - 1) // STRIDE_H, (pad_w - phase_w + STRIDE_W - 1) // STRIDE_W
    count_h = (pad_h + H - 1 - phase_h) // STRIDE_H - low_h + 1
    count_w = (pad_w + W - 1 - phase_w) // STRIDE_W - low_w + 1
    M = images * count_h * count_w
    tiles_n = tl.cdiv(C, BN)
    at_m, at_n = tl.program_id(0) // tiles_n, tl.program_id(0) % tiles_n
    if at_m * BM < M:
        rm, rn, lane = at_m * BM + tl.arange(0, BM), at_n * BN + tl.arange(0, BN), tl.arange(0, BK)
        pixel = tl.minimum(rm, M - 1)
        image, place = pixel // (count_h * count_w), pixel % (count_h * count_w)
        q_h, q_w = low_h + place // count_w, low_w + place % count_w
        left = dy + client * images * dy_image + image * dy_image + (q_h + front_h) * dy_row + (q_w + front_w) * dy_column
        taps_h, taps_w = (R - phase_h + STRIDE_H - 1) // STRIDE_H, (S - phase_w + STRIDE_W - 1) // STRIDE_W
        right = w + client * C * R * S * O + tl.minimum(rn, C - 1) * R * S * O
        per_tap = tl.cdiv(O, BK)
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        for step in range(0, taps_h * taps_w * per_tap):
            tap, first = step // per_tap, (step % per_tap) * BK
            j_h, j_w = tap // taps_w, tap % taps_w
            r, s = phase_h + STRIDE_H * j_h, phase_w + STRIDE_W * j_w
            o = first + lane
            offset = o - j_h * dilation_h * dy_row - j_w * dilation_w * dy_column
            if ALIGNED:
                a = tl.load(left[:, None] + offset[None, :])
                b = tl.load(right[None, :] + ((r * S + s) * O + o)[:, None])
            else:
                a = tl.load(left[:, None] + offset[None, :], mask=(o < O)[None, :], other=0.0)
                b = tl.load(right[None, :] + ((r * S + s) * O + o)[:, None], mask=(o < O)[:, None], other=0.0)
            acc = tl.dot(a, b, acc, input_precision=PRECISION)
        h, v = q_h * STRIDE_H + phase_h - pad_h, q_w * STRIDE_W + phase_w - pad_w
        target = dx + client * images * H * W * C + ((image * H + h) * W + v)[:, None] * C + rn[None, :]
        tl.store(target, acc.to(dx.dtype.element_ty), mask=(rm < M)[:, None] & (rn < C)[None, :])


@triton.jit
def convolve_weights(
    x, dy, dw,
    images, M, O, K, S, OW, OHW, splits, per_split,
    x_image, x_row, x_column,
    stride_h, stride_w, dilation_h, dilation_w,
    C: tl.constexpr, PRECISION: tl.constexpr,
    BO: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """dw (k, splits, O, K): what reaches the weights of `convolve`, from x (padded) and dy (k, M, O).

    The pixels are shared among `splits` programs, `per_split` each, whose sums are added up afterwards, in order.
    """
    client, split = tl.program_id(1).to(tl.int64), tl.program_id(2)
    tiles_n = tl.cdiv(K, BN)
    at_o, at_n = tl.program_id(0) // tiles_n, tl.program_id(0) % tiles_n
    ro, rn, lane = at_o * BO + tl.arange(0, BO), at_n * BN + tl.arange(0, BN), tl.arange(0, BK)
    tap = rn // C
    offset = (tap // S) * dilation_h * x_row + (tap % S) * dilation_w * x_column + rn % C
    images_of = x + client * images * x_image
    slopes_of = dy + client * M * O + ro
    acc = tl.zeros((BO, BN), dtype=tl.float32)
    first, last = split * per_split, tl.minimum((split + 1) * per_split, M)
    for at in range(first, last, BK):
        pixel = at + lane
        real = pixel < last
        pixel = tl.minimum(pixel, M - 1)
        place = pixel % OHW
        rows = (pixel // OHW) * x_image + (place // OW) * stride_h * x_row + (place % OW) * stride_w * x_column
        a = tl.load(slopes_of[None, :] + (pixel * O)[:, None], mask=real[:, None] & (ro < O)[None, :], other=0.0)
        b = tl.load(images_of + rows[:, None] + offset[None, :], mask=real[:, None] & (rn < K)[None, :], other=0.0)
        acc = tl.dot(tl.trans(a), b, acc, input_precision=PRECISION)
    target = dw + (client * splits + split) * O * K + ro[:, None] * K + rn[None, :]
    tl.store(target, acc, mask=(ro < O)[:, None] & (rn < K)[None, :])


@triton.jit
def pool(x, y, where, total, OH, OW, H, W, C, P: tl.constexpr, BLOCK: tl.constexpr):
    """y (n, OH, OW, C) = relu of the largest of P x P pixels, and (uint8) which of them it was, the first of equals."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    real = at < total
    c, place = at % C, at // C
    v, h, image = place % OW, (place // OW) % OH, place // (OW * OH)
    source = x + ((image * H + h * P) * W + v * P) * C + c
    best = tl.load(source, mask=real, other=0.0).to(tl.float32)
    chosen = tl.zeros((BLOCK,), dtype=tl.int32)
    for i in tl.static_range(1, P * P):
        value = tl.load(source + ((i // P) * W + i % P) * C, mask=real, other=0.0).to(tl.float32)
        larger = (value > best) | (value != value)
        best, chosen = tl.where(larger, value, best), tl.where(larger, i, chosen)
    best = tl.where(best < 0, 0.0, best)  # a NaN stays one
    tl.store(y + at, best.to(y.dtype.element_ty), mask=real)
    tl.store(where + at, tl.where(best == 0, 255, chosen).to(tl.uint8), mask=real)


@triton.jit
def pool_back(dy, where, dx, total, OH, OW, H, W, C, P: tl.constexpr, BLOCK: tl.constexpr):
    """dx (n, H, W, C) from dy (n, OH, OW, C): each slope goes to the pixel that was largest, nowhere (255) if that was
    not above zero."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    real = at < total
    c, place = at % C, at // C
    v, h, image = place % W, (place // W) % H, place // (W * H)
    inside = real & (h // P < OH) & (v // P < OW)
    above = ((image * OH + h // P) * OW + v // P) * C + c
    chosen = tl.load(where + above, mask=inside, other=255).to(tl.int32)
    slope = tl.load(dy + above, mask=inside, other=0.0)
    mine = chosen == (h % P) * P + v % P
    tl.store(dx + at, tl.where(mine, slope, 0.0).to(dx.dtype.element_ty), mask=real)


@triton.jit
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


@triton.jit
def scaled(x, factor, summand, y, P, C, BP: tl.constexpr, BC: tl.constexpr):
    """y (k, P, C) = x factor + summand, which are (k, C)."""
    client = tl.program_id(0).to(tl.int64)
    c, p = tl.program_id(2) * BC + tl.arange(0, BC), tl.program_id(1) * BP + tl.arange(0, BP)
    a = tl.load(factor + client * C + c, mask=c < C, other=0.0)
    b = tl.load(summand + client * C + c, mask=c < C, other=0.0)
    real = (p < P)[:, None] & (c < C)[None, :]
    at = client * P * C + (p * C)[:, None] + c[None, :]
    value = tl.load(x + at, mask=real, other=0.0).to(tl.float32)
    tl.store(y + at, (value * a[None, :] + b[None, :]).to(y.dtype.element_ty), mask=real)


@triton.jit
def slopes(x, dy, mean, sum_dy, sum_dyx, P, C, splits, per_split, BP: tl.constexpr, BC: tl.constexpr):
    """(k, splits, C) sums of dy and of dy (x - mean) over a split of the rows."""
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
        value = tl.load(x + at, mask=real, other=0.0).to(tl.float32)
        plain += slope
        along += slope * (value - centre[None, :])
    target = (client * splits + split) * C + c
    tl.store(sum_dy + target, tl.sum(plain, 0), mask=c < C)
    tl.store(sum_dyx + target, tl.sum(along, 0), mask=c < C)


@triton.jit
def scaled_back(x, dy, of_dy, of_x, summand, dx, P, C, BP: tl.constexpr, BC: tl.constexpr):
    """dx (k, P, C) = dy of_dy + x of_x + summand, which are (k, C)."""
    client = tl.program_id(0).to(tl.int64)
    c, p = tl.program_id(2) * BC + tl.arange(0, BC), tl.program_id(1) * BP + tl.arange(0, BP)
    a = tl.load(of_dy + client * C + c, mask=c < C, other=0.0)
    b = tl.load(of_x + client * C + c, mask=c < C, other=0.0)
    e = tl.load(summand + client * C + c, mask=c < C, other=0.0)
    real = (p < P)[:, None] & (c < C)[None, :]
    at = client * P * C + (p * C)[:, None] + c[None, :]
    slope = tl.load(dy + at, mask=real, other=0.0).to(tl.float32)
    value = tl.load(x + at, mask=real, other=0.0).to(tl.float32)
    result = slope * a[None, :] + value * b[None, :] + e[None, :]
    tl.store(dx + at, result.to(dx.dtype.element_ty), mask=real)


@triton.jit
def adam(
    W, G, first, second, anchor, size, root, beta,
    d, w_row, g_row, state_row, anchor_row,
    share1, keep2, share2, eps, decay,
    ANCHORED: tl.constexpr, DECAYED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One step of Adam for every row of W: the formulas of `Optimiser.step`, each number read and written once.

    ANCHORED: the gradient of ||w - anchor||^2 / (2 beta) is added, beta (k,).
    """
    row = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = column < d
    w = tl.load(W + row * w_row + column, mask=real)
    g = tl.load(G + row * g_row + column, mask=real)
    if ANCHORED:
        g += (w - tl.load(anchor + row * anchor_row + column, mask=real)) / tl.load(beta + row)
    if DECAYED:
        g += decay * w
    m = tl.load(first + row * state_row + column, mask=real)
    v = tl.load(second + row * state_row + column, mask=real)
    m += share1 * (g - m)
    v = v * keep2 + share2 * (g * g)
    w -= m / ((tl.sqrt(v) / tl.load(root + row) + eps) / tl.load(size + row))
    tl.store(first + row * state_row + column, m, mask=real)
    tl.store(second + row * state_row + column, v, mask=real)
    tl.store(W + row * w_row + column, w, mask=real)
