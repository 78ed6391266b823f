# SPDX-License-Identifier: MIT OR Apache-2.0
"""Eighty operators one after the other; each must run."""

import torch
import torch.nn.functional as F

d = "cuda"
a, b = torch.randn(64, 64, device=d), torch.randn(64, 64, device=d)
positive = a @ a.T + 64 * torch.eye(64, device=d)
image, volume = torch.randn(2, 8, 32, 32, device=d), torch.randn(1, 4, 8, 16, 16, device=d)
ids = torch.randint(0, 64, (200,), device=d)
tried = {
    "cholesky": lambda: torch.linalg.cholesky(positive),
    "solve": lambda: torch.linalg.solve(positive, b),
    "inv": lambda: torch.linalg.inv(positive),
    "qr": lambda: torch.linalg.qr(a),
    "svd": lambda: torch.linalg.svd(a),
    "eigh": lambda: torch.linalg.eigh(positive),
    "eigvals": lambda: torch.linalg.eigvals(a),
    "lstsq": lambda: torch.linalg.lstsq(a, b),
    "det": lambda: torch.linalg.det(a),
    "matrix_exp": lambda: torch.linalg.matrix_exp(a / 64),
    "pinv": lambda: torch.linalg.pinv(a),
    "lu": lambda: torch.linalg.lu(a),
    "norm": lambda: torch.linalg.norm(a, 2),
    "fft": lambda: torch.fft.fft(a),
    "rfft2": lambda: torch.fft.rfft2(image),
    "irfft": lambda: torch.fft.irfft(torch.fft.rfft(a)),
    "stft": lambda: torch.stft(
        torch.randn(2, 4000, device=d), 400, return_complex=True, window=torch.hann_window(400, device=d)
    ),
    "conv1d": lambda: F.conv1d(torch.randn(2, 8, 100, device=d), torch.randn(4, 8, 5, device=d)),
    "conv2d": lambda: F.conv2d(image, torch.randn(16, 8, 3, 3, device=d), padding=1),
    "conv3d": lambda: F.conv3d(volume, torch.randn(8, 4, 3, 3, 3, device=d)),
    "conv_transpose2d": lambda: F.conv_transpose2d(image, torch.randn(8, 4, 2, 2, device=d), stride=2),
    "grouped conv": lambda: F.conv2d(image, torch.randn(8, 1, 3, 3, device=d), groups=8),
    "batch_norm": lambda: torch.nn.BatchNorm2d(8).cuda()(image),
    "group_norm": lambda: F.group_norm(image, 4),
    "instance_norm": lambda: F.instance_norm(image),
    "layer_norm": lambda: F.layer_norm(a, (64,)),
    "max_pool2d": lambda: F.max_pool2d(image, 2, return_indices=True),
    "max_unpool2d": lambda: F.max_unpool2d(*F.max_pool2d(image, 2, return_indices=True), 2),
    "adaptive_avg_pool2d": lambda: F.adaptive_avg_pool2d(image, 5),
    "interpolate": lambda: F.interpolate(image, scale_factor=2, mode="bicubic"),
    "grid_sample": lambda: F.grid_sample(image, torch.rand(2, 16, 16, 2, device=d) * 2 - 1, align_corners=False),
    "unfold": lambda: F.fold(F.unfold(image, 2, stride=2), (32, 32), 2, stride=2),
    "pixel_shuffle": lambda: F.pixel_shuffle(image, 2),
    "embedding": lambda: F.embedding(ids, a),
    "embedding_bag": lambda: F.embedding_bag(ids.view(20, 10), a),
    "one_hot": lambda: F.one_hot(ids, 64),
    "nonzero": lambda: torch.nonzero(ids > 31),
    "masked_select": lambda: ids[ids > 31],
    "unique": lambda: torch.unique(ids, return_counts=True, return_inverse=True),
    "bincount": lambda: torch.bincount(ids),
    "histc": lambda: torch.histc(a),
    "sort": lambda: torch.sort(a, stable=True),
    "topk": lambda: torch.topk(a, 5),
    "kthvalue": lambda: torch.kthvalue(a, 3),
    "median": lambda: a.median(),
    "quantile": lambda: torch.quantile(a, 0.5),
    "cumsum": lambda: a.cumsum(0),
    "scatter_add": lambda: torch.zeros(64, device=d).scatter_add_(0, ids, torch.ones(200, device=d)),
    "index_add": lambda: torch.zeros(64, 4, device=d).index_add_(0, ids, torch.ones(200, 4, device=d)),
    "segment": lambda: torch.scatter_reduce(torch.zeros(64, device=d), 0, ids, torch.ones(200, device=d), "amax"),
    "repeat_interleave": lambda: torch.repeat_interleave(
        torch.arange(4, device=d), torch.tensor([1, 2, 3, 4], device=d)
    ),
    "searchsorted": lambda: torch.searchsorted(torch.arange(64, device=d), ids),
    "einsum": lambda: torch.einsum("ij,kj->ik", a, b),
    "bmm": lambda: torch.bmm(a.view(4, 16, 64), b.view(4, 64, 16)),
    "baddbmm": lambda: torch.baddbmm(torch.zeros(4, 16, 16, device=d), a.view(4, 16, 64), b.view(4, 64, 16)),
    "cdist": lambda: torch.cdist(a, b),
    "sparse mm": lambda: torch.sparse.mm((a * (a > 1)).to_sparse(), b),
    "csr mm": lambda: (a * (a > 1)).to_sparse_csr() @ b,
    "nested": lambda: torch.nested.nested_tensor([a[:3], a[:5]]).to_padded_tensor(0.0),
    "multinomial": lambda: torch.multinomial(torch.softmax(a, 1), 3),
    "bernoulli": lambda: torch.bernoulli(torch.rand(64, device=d)),
    "randperm": lambda: torch.randperm(1000, device=d),
    "dropout": lambda: F.dropout(a),
    "gumbel_softmax": lambda: F.gumbel_softmax(a, hard=True),
    "cross_entropy": lambda: F.cross_entropy(a, torch.arange(64, device=d), label_smoothing=0.1),
    "ctc_loss": lambda: F.ctc_loss(
        torch.randn(50, 4, 20, device=d).log_softmax(2),
        torch.randint(1, 20, (4, 10), device=d),
        torch.full((4,), 50),
        torch.full((4,), 10),
    ),
    "multi_head_attention": lambda: torch.nn.MultiheadAttention(64, 4).cuda()(a[None], a[None], a[None]),
    "transformer": lambda: torch.nn.Transformer(64, 4, 1, 1, batch_first=True).cuda()(a[None], b[None]),
    "lstm cell": lambda: torch.nn.LSTMCell(64, 64).cuda()(a),
    "bilinear": lambda: torch.nn.Bilinear(64, 64, 8).cuda()(a, b),
    "complex": lambda: torch.complex(a, b) @ torch.complex(b, a),
    "half matmul": lambda: a.half() @ b.half(),
    "int8 matmul": lambda: torch._int_mm(
        torch.ones(32, 64, dtype=torch.int8, device=d), torch.ones(64, 64, dtype=torch.int8, device=d)
    ),
    "double": lambda: a.double() @ b.double(),
    "where": lambda: torch.where(a > 0, a, b),
    "roll": lambda: torch.roll(a, 3, 1),
    "tril": lambda: torch.tril(a),
    "logsumexp": lambda: a.logsumexp(1),
    "vmap": lambda: torch.func.vmap(torch.dot)(a, b),
    "jacobian": lambda: torch.func.jacrev(lambda v: v.square().sum())(a[0]),
    "tensordot": lambda: torch.tensordot(a, b, 1),
}
failed = {}
for name, run in tried.items():
    try:
        run()
        torch.cuda.synchronize()
    except Exception as error:
        failed[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
for name, error in failed.items():
    print(f"{name}: {error}")
print(f"done, {len(tried) - len(failed)} of {len(tried)} operators")
if failed:
    raise SystemExit(1)
