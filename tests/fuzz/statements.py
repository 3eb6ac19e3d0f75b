"""The statements that random programs are made of: a table of templates by family.

A template is a line of Python with placeholders for what is drawn: operands are `{f}` of a real floating type, `{g}`
those of them that are contiguous, for which random ops promise eager's numbers, `{n}` any number, `{i}` integers, `{b}`
truth values, `{c}` complex, `{x}` anything; `{f2}` has two dimensions at least, `{f=}` broadcasts with the first
operand, `{f@}` can be multiplied with it. `{d}` is a dimension of the first operand, `{D}` a list of some, `{s}` a
number, `{k}` a small one, `{size}` a size of the first operand's number of elements, `{at}` an index of its dimension
0, `{type}` a floating type. A template that writes begins with `!`. A division by `min({f2}.shape[0], 1)` leaves out
empty operands, of which torch returns uninitialised memory.
"""

from __future__ import annotations

import re

_TEMPLATES = """
[pointwise]
torch.sin({f})
torch.tanh({f})
{f}.sigmoid()
F.gelu({f})
F.silu({f})
F.relu({f})
F.softplus({f})
{f}.abs()
-{n}
{f}.square()
({f}.abs() + 1).log()
({f}.abs() + 0.5).rsqrt()
torch.exp(-{f}.abs())
{f}.erf()
{f}.clamp(-0.5, {s})
{f} ** 2
F.leaky_relu({f}, {s})
F.hardtanh({f})
{f}.sign()
torch.atan2({f}, {f=})
F.elu({f})
{f}.floor()
{f}.round()
F.hardswish({f})
{f}.frac()
[arithmetic]
{n} + {n=}
{n} - {n=}
{n} * {n=}
{f} / ({f=}.abs() + 1)
torch.add({n}, {n=}, alpha=2)
{n} * {s}
{n} + {s}
{s} - {f}
{f} / 3
torch.maximum({n}, {n=})
torch.minimum({n}, {n=})
torch.lerp({f}, {f=}, 0.25)
torch.addcmul({f}, {f=}, {f=}, value=0.5)
{f}.fmod(2)
torch.where({b}, {n=}, {n=})
torch.where({n} > 0, {n=}, {s})
{f}.masked_fill({b=}, {s})
torch.hypot({f}, {f=})
torch.copysign({f}, {f=})
[compare]
{n} > {n=}
{n} <= {s}
{x} == {x=}
{n}.ne({n=})
{b} & {b=}
{b} | {b=}
~{b}
{b} ^ {b=}
torch.isfinite({f})
{b}.any()
{b}.all({d})
{b}.any({d}, keepdim=True)
{b}.sum()
{n} != 0
{b}.logical_not()
[integers]
{i} % 3
{i} // 2
{i} & {i=}
{i} | {i=}
{i} << 1
{i} >> 1
{i}.bitwise_not()
{i}.abs()
{i}.sum({d})
{i}.amax({d})
{i}.prod()
{i}.cumsum({d})
{i}.to(torch.float64)
{i}.clamp(0, 2)
{i}.to(torch.int32)
{i}.to(torch.uint8)
F.one_hot({i} % 3, 3)
{i}.mean(dtype=torch.float64)
({i} % 4).bincount(minlength=4)
{i} ** 2
{i}.float()
[reduce]
{n}.sum()
{n}.sum({d})
{n}.sum({D})
{n}.sum({d}, keepdim=True)
{f}.mean({d})
{f}.mean()
{f}.mean({D}, keepdim=True)
{f}.amax({d})
{f}.amin({D})
{f}.max({d}).values
{f}.min({d})[1]
{f}.var({d})
{f}.std({D}, correction=0)
torch.var_mean({f}, {d})[0]
{f}.logsumexp({d})
{f}.norm()
torch.linalg.vector_norm({f}, 2, {d})
torch.linalg.vector_norm({f}, 1)
{f}.prod({d})
{f}.argmax({d})
{f}.argmin()
{f}.cumsum({d})
{f}.cumprod({d})
{f}.max()
{n}.count_nonzero({d})
{f}.median({d}).values
{f}.nansum({d})
torch.aminmax({f}, dim={d}).max
{f}.logcumsumexp({d})
{f}.cummax({d}).values
torch.linalg.vector_norm({f}, float('inf'), {d})
[contract]
{f2} @ {f@}
torch.matmul({f2}, {f@})
{f2} @ {f=}.mT
torch.einsum('...ij,...kj->...ik', {f2}, {f=})
torch.einsum('...i,...i->...', {f1}, {f=})
F.linear({f}, {f=})
torch.einsum('i...,i...->...', {f1}, {f=})
torch.outer({f1}.flatten(), {f=}.flatten())
torch.addmm({f=}, {f2}, {f@})
torch.bmm({f3}, {f@})
torch.tensordot({f1}, {f=}, 1)
torch.einsum('ij,ij->ji', {f2}, {f=})
{f1}.flatten().dot({f=}.flatten())
torch.baddbmm({f=}, {f3}, {f@}, beta=0.5)
torch.mv({f2}, {f@})
torch.kron({f}, {f=})
[normal]
{f}.softmax({d})
{f}.log_softmax({d})
F.layer_norm({f1}, {f=}.shape[-1:])
F.layer_norm({f1}, {f1}.shape[-1:], eps=0.1)
F.normalize({f}, dim={d})
F.rms_norm({f1}, {f1}.shape[-1:], eps=0.1)
F.group_norm({f2}, 1, eps=0.1)
F.cosine_similarity({f}, {f=}, {d})
F.mse_loss({f}, {f=})
F.smooth_l1_loss({f}, {f=}, reduction='sum')
F.glu({f}, {d})
F.binary_cross_entropy_with_logits({f}, {f=})
F.cross_entropy({f2}.flatten(1), {f=}.flatten(1).softmax(1))
F.kl_div({f}, {f=}.softmax(-1), reduction='batchmean')
[window]
F.conv1d({f3}, {f3=})
F.conv1d({f3}, {f3=}, padding=1)
F.avg_pool1d({f2}, 2)
F.max_pool1d({f2}, 2)
F.pad({f1}, (1, {k}))
F.pad({f2}, (0, 1, {k}, 0), value=0.5)
F.avg_pool1d({f2}, 2, 1)
F.pad({f2}, (1, 0), mode='replicate')
{f}.roll(1, {d})
{f}.diff(dim={d})
F.conv1d({f3}, {f3=}, stride=2)
F.interpolate({f3}, scale_factor=2)
F.adaptive_avg_pool1d({f2}, 2)
[index]
{x}[{at}]
{x}[{i}.flatten() % {x}.shape[0]]
{x}.index_select(0, {i}.flatten() % {x}.shape[0])
F.embedding({i}.abs() % 3, {f2}[:3])
{f}.gather({d}, ({f} > 0).long())
{x}[:, {i}.flatten() % 2]
{f1}.take_along_dim({f1}.argsort(0), 0)
torch.zeros_like({f}).scatter({d}, ({f} > 0).long(), {f})
torch.zeros_like({f}).scatter_add({d}, ({f} > 0).long(), {f})
{f}.index_add(0, {i}.flatten()[:1] % 2, {f}[:1])
{f}.index_copy(0, {i}.flatten()[:1] % 2, {f}[:1])
{f}.index_put(({i}.flatten() % 2,), {f}[0])
{f}.index_put(({i}.flatten() % 2,), {f}[0], accumulate=True)
{f}.take({i} % 2)
{f}.scatter_reduce({d}, ({f} > 0).long(), {f}, 'amax')
{f}.index_fill({d}, {i}.flatten() % 2, {s})
F.embedding_bag({i}.flatten()[:2].view(1, -1) % 2, {f2})[0]
{x}[..., -1]
{x}[None]
[order]
{f}.sort({d}).values
{f}.argsort({d})
{f}.topk({k}, {d}).values
{f}.topk({k}, {d})[1]
{f}.kthvalue({k}, {d})[0]
{f}.sort({d}, descending=True)[0]
torch.searchsorted({f1}.flatten().sort()[0], {f=})
{n}.flip({d})
torch.bucketize({f}, {f=}.flatten().sort()[0])
{x}.tril()
{f2}.triu(1)
{f2}.diagonal()
{i}.sort({d})[0]
[view]
{x}.reshape({size})
{x}.flatten()
{x}.unsqueeze({d})
{x}.squeeze()
{x}.transpose({d}, 0)
{x}.T
{x2}.mT
{x}[1:]
{x}[..., :-1]
{x}[::2]
{x}.expand(2, *{x}.shape)
{x}.select({d}, 0)
{x}.narrow({d}, 0, {k})
{x}.chunk(2, {d})[0]
{x}.split({k}, {d})[-1]
{x}.unfold({d}, 2, {k})
{x}.permute(*reversed(range({x}.dim())))
{x}.movedim({d}, 0)
{x}.unbind({d})[-1]
{x}.contiguous()
{x}.view({x}.shape)
{x}.view({size})
{x}.detach()
{x}.expand_as({x=})
{x}.diagonal()
{x}.view(-1)
{x}.view_as({x})
{x}.tensor_split(2, {d})[0]
{x}.broadcast_to({x=}.shape)
{x}.unflatten({d}, (1, -1))
[join]
torch.cat([{x}, {x=}], {d})
torch.stack([{x}, {x=}], {d})
torch.cat([{x}, {x}], {d})
torch.cat([{n}, {n=}, {n=}])
{x}.repeat(2, *[1] * ({x}.dim() - 1))
{x}.repeat_interleave(2, {d})
torch.hstack([{x}, {x=}])
torch.block_diag({f2}, {f=})
torch.broadcast_tensors({x}, {x=})[0]
{f}.tile(2)
torch.meshgrid({f1}.flatten(), {f=}.flatten(), indexing='ij')[1]
{x}.clone()
torch.cartesian_prod({f1}.flatten(), {f=}.flatten())
[cast]
{x}.to({type})
{f}.bfloat16()
{f}.half()
{f}.float()
{f}.double()
{f}.long()
{n}.bool()
{f}.to(torch.float8_e4m3fn).to(torch.float32)
{f}.type_as({f=})
{b}.to({type})
{b}.long()
{b}.float() * {f=}
torch.ones_like({f})
torch.full_like({f}, {s})
{f}.new_zeros({size})
torch.arange(6, dtype={type}) + {f=}
{n} + torch.arange(4)[:, None]
torch.eye(3, dtype={type})
[complex]
torch.complex({f}, {f})
{c}.real
{c}.imag
{c}.abs()
{c}.conj()
{c} * {c=}
{c} + {f=}
{c}.sum({d})
torch.view_as_real({c})
{c} * 2j
{c}.conj() @ {c@}
{c}.mean()
{c}.angle()
torch.polar({f}.abs(), {f})
{c}.sum({d}).real
torch.fft.fft({f1}).abs()
torch.view_as_complex(torch.stack([{f}, {f}], -1))
{c}.exp().real
[random]
torch.rand_like({g})
torch.randn_like({g}) * {g}
F.dropout({g}, 0.5)
torch.randn({size}, dtype={type})
torch.bernoulli({g}.sigmoid())
torch.randint(0, 5, {size})
torch.randperm({f1}.shape[0])
{g}.dropout(0.0, True)
torch.rand(3, dtype={type}) + {f=}
F.dropout({g}, 0.25, training=False)
torch.randint_like({g}, 3)
torch.normal({g}, 1.0)
F.rrelu({g}, training=True)
torch.empty_like({g}).uniform_(-1, 1)
F.dropout1d({f3}, 0.5)
F.alpha_dropout({g}, 0.3, True)
torch.multinomial({f1}.softmax(-1), 1)
{g}[torch.randperm({g}.shape[0])]
[write]
!{f}.mul_({s})
!{n}.add_({n=})
!{f}.sub_({f=}, alpha=2)
!{f}.relu_()
!{n}.zero_()
!{f}.fill_({s})
!{f}.copy_({f=})
!{f}[0] = {s}
!{f}[:, 1:] += {f=}
!{f}[..., 0] *= 2
!{f}.masked_fill_({f} > 0, {s})
!{f}.div_(2)
!{f}.t_()
!{f}.unsqueeze_({d})
!{f}.index_add_(0, {i}.flatten()[:1] % 2, {f}[:1])
!{f}.clamp_(-1, 1)
!{f}.index_put_(({i}.flatten() % 2,), {f=})
!{f}[{b=}] = {s}
!{f}.scatter_({d}, ({f} > 0).long(), {s})
!{f}.transpose_(0, {d})
!{f}.exp_().neg_().sigmoid_()
!{f}.index_copy_(0, {i}.flatten()[:1] % 2, {f}[:1])
!{f}.squeeze_()
!{f}.tanh_()
!{f}.addcmul_({f=}, {f=})
!{f2}.diagonal().add_(1)
!{i}.add_(1)
!{f}.swapaxes_(0, {d})
!{f}.lerp_({f=}, 0.5)
!torch.add({f}, {f=}, out={f=})
!{f}.T[0] = {s}
!{f}.view(-1)[{k}:].add_(1)
!{f}.chunk(2, {d})[0].mul_(3)
!{f}.split({k})[-1].zero_()
!{f}.cumsum_({d})
!{f}.tril_()
!{f}.unfold({d}, 2, 2).sub_(0.25)
!{b}.logical_not_()
!{f}.squeeze({d}).add_(1)
!{f}.reshape({size}).mul_(2)
!{f}.flatten().add_(1)
!{f}.detach().add_(1)
[draw_into]
!{g}.uniform_()
!{g}.normal_(0, 2)
!{g}.bernoulli_(0.5)
!F.dropout({g}, 0.5, True, True)
!{g}.exponential_()
[tall]
torch.linalg.inv({f2} @ {f2}.mT + 5 * torch.eye({f2}.shape[-2], dtype={f2}.dtype))
torch.linalg.det({f2} @ {f2}.mT)
F.scaled_dot_product_attention({f3}, {f3}, {f3})
F.scaled_dot_product_attention({f3}, {f=}, {f=}, is_causal=True)
F.batch_norm({f2}, None, None, training=True, eps=0.5)
F.multi_margin_loss({f2}.flatten(1), {f2}.flatten(1).argmax(1), margin=1 / min({f2}.shape[0], 1))
F.nll_loss({f2}.flatten(1).log_softmax(1), {f2}.flatten(1).argmin(1))
torch.cdist({f2}, {f=})
F.cross_entropy({f2}.flatten(1), {f2}.flatten(1).argmin(1), label_smoothing=0.1)
F.pdist({f2})
F.bilinear({f1}, {f=}, {f3=})
F.fold(F.unfold({f2}.flatten(1)[None, None], 2), {f2}.flatten(1).shape, 2)
F.huber_loss({f}, {f=})
{f}.renorm(2, {d}, 1.0)
F.conv2d({f2}.flatten(1)[None, None], {f2}.flatten(1)[None, None, :2, :2])
torch.cross({f}, {f=}, {d})
{f2}.trace()
F.pixel_shuffle({f3}, 1)
torch.linalg.matrix_power({f2} @ {f2}.mT, 2)
{f}.quantile(0.5, {d})
[constrained]
spmdir.constrain({f}, "dp: R")
spmdir.constrain({f1}, "dp: S(0)")
spmdir.constrain({f2}, "dp: S(1)")
spmdir.constrain({f2}, "dp: S(1)") @ {f@}
[losses]
F.cross_entropy({f2}.flatten(1), {f2}.flatten(1).argmin(1))
F.nll_loss(spmdir.constrain({f2}.flatten(1), "dp: R").log_softmax(1), {f2}.flatten(1).argmin(1), reduction='sum')
F.max_pool1d(spmdir.constrain({f2}, "dp: R"), 2)
F.multi_margin_loss({f2}.flatten(1), {f2}.flatten(1).argmax(1), margin=1 / min({f2}.shape[0], 1))
"""

FAMILIES: dict[str, tuple[str, ...]] = {
    name: tuple(lines.splitlines())
    for name, lines in re.findall(r"^\[(\w+)\]\n((?:[^\[\n].*\n)+)", _TEMPLATES, re.MULTILINE)
}
