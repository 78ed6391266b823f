# SPDX-License-Identifier: MIT OR Apache-2.0
"""Small programs that count their own uses of memory: a dispatch mode sees the tensors of every operator.

Arguments: the program, and the file for the counts.
"""

import json
import sys
import weakref

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

#: Operators that look at a tensor's shape and type only.
SHAPE_ONLY = ("empty", "new_", "zeros_like", "ones_like", "full_like", "resize_", "set_", "record_stream", "rand_like")

#: Arguments and results, by position, that no kernel reads or writes: shapes are taken from one, and the others have no
#: meaning in training, or none at all.
UNREAD = {
    "nll_loss_backward": (1,),
    "cudnn_batch_norm_backward": (3, 4),
    "_scaled_dot_product_flash_attention_backward": (13,),
}
UNWRITTEN = {"_scaled_dot_product_flash_attention": (7,)}


class Counting(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.known, self.blocks = {}, []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        begin = allocations()
        result = function(*args, **(kwargs or {}))
        end = allocations()
        name = function.name().removeprefix("aten::")
        is_view = function.is_view or name.startswith(("detach", "alias", "_unsafe_view", "_reshape_alias"))
        uses_inputs = not is_view and not name.startswith(SHAPE_ONLY)
        uses_result = not is_view and not name.startswith(("empty", "new_empty", "resize_", "set_"))
        if name == "pow.Tensor_Scalar" and args[1] == 0:
            uses_inputs = False  # the result is 1 everywhere
        results = result if isinstance(result, tuple) else (result,)
        trees = [(tree, uses_inputs and at not in UNREAD.get(name, ())) for at, tree in enumerate(args)]
        trees += [(kwargs, uses_inputs)]
        trees += [(tree, uses_result and at not in UNWRITTEN.get(name, ())) for at, tree in enumerate(results)]
        seen = set()
        for tree, is_use in trees:
            for tensor in tree_leaves(tree):
                if not isinstance(tensor, torch.Tensor) or tensor.device.type != "cuda" or tensor.numel() == 0:
                    continue
                storage = tensor.untyped_storage()
                block = self.known.get(storage._cdata)
                if block is None:
                    block = {"address": storage.data_ptr(), "seen": end, "bytes": storage.nbytes(), "uses": []}
                    self.blocks.append(block)
                    self.known[storage._cdata] = block
                    weakref.finalize(storage, self.known.pop, storage._cdata, None)
                if is_use and id(block) not in seen:
                    seen.add(id(block))
                    block["uses"].append((begin, end, name))
        return result


def allocations():
    return torch.cuda.memory_stats().get("allocation.all.allocated", 0)


def mlp():
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Dropout(0.1), nn.Linear(256, 64)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    kept = []
    for _ in range(3):
        loss = model(torch.randn(128, 64, device="cuda")).square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        kept.append(torch.ones(1 << 18, device="cuda"))


def images():
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    head = nn.Linear(16 * 15 * 15, 10).cuda()
    model = model.cuda()
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], 0.1, momentum=0.9, fused=True)
    for _ in range(3):
        pictures = torch.randn(8, 3, 32, 32).cuda(non_blocking=True)
        labels = torch.randint(10, (8,)).cuda()
        F.cross_entropy(head(model(pictures)), labels).backward()
        optimizer.step()
        optimizer.zero_grad()


def attention():
    table = nn.Embedding(100, 64).cuda()
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).cuda()
    optimizer = torch.optim.Adam([*table.parameters(), *layer.parameters()], foreach=False)
    for _ in range(2):
        tokens = torch.randint(100, (4, 32), device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            logits = layer(table(tokens)) @ table.weight.T
            loss = F.cross_entropy(logits.flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def pieces():
    base = torch.randn(64, 64, device="cuda", requires_grad=True)
    parts = base.split(16)
    joined = torch.cat([parts[3], parts[0].flip(0), parts[1].roll(1)])
    picked = joined[torch.tensor([0, 5, 9], device="cuda")]
    where = torch.where(joined > 0, joined, joined.exp())
    sums = torch.zeros(64, 64, device="cuda").scatter_add(0, torch.zeros(64, 64, dtype=torch.long, device="cuda"), base)
    (gradient,) = torch.autograd.grad((picked.sum() + where.square().sum() + sums.sum()), base, create_graph=True)
    gradient.square().sum().backward()
    order = base.detach().sort(dim=1).values.cumsum(1)
    top = order.flatten().topk(7).values.cpu()
    base.detach().copy_(torch.ones(64, 64).pin_memory(), non_blocking=True)
    order.index_put_((torch.tensor([1], device="cuda"),), top.cuda().sum())


def algebra():
    side = torch.cuda.Stream()
    matrices = torch.randn(8, 16, 16, device="cuda")
    product = torch.bmm(matrices, matrices) + torch.eye(16, device="cuda")
    with torch.cuda.stream(side):
        side.wait_stream(torch.cuda.default_stream())
        spectrum = torch.fft.rfft(matrices)
        back = torch.fft.irfft(spectrum)
    torch.cuda.default_stream().wait_stream(side)
    summed = torch.einsum("bij,bjk->bik", product, back)
    half = summed.half()
    low = torch.nn.functional.pad(half, (1, 1)).unfold(2, 4, 2).contiguous()
    complex_ = torch.complex(summed, product)
    (complex_.conj() * complex_).real.sum().item()
    torch.stack([low.float().mean((1, 2)).sum(1), summed.mean((1, 2))])
    triangular = torch.linalg.solve_triangular(product.tril(), summed, upper=False)
    triangular.norm().item()


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.empty(1, device="cuda")
    counting = Counting()
    with counting:
        globals()[sys.argv[1]]()
    with open(sys.argv[2], "w") as file:
        json.dump(counting.blocks, file)
